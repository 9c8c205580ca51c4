"""The tensor layouts of the built-in networks."""

import math

from .wire import TensorLayout, TensorSpec

# Labels, and the channels, height and width of one record, of every built-in data set.
_DATA_SETS = {
    "digits": (10, (1, 8, 8)),
    "mnist": (10, (1, 28, 28)),
    "cifar10": (10, (3, 32, 32)),
    "emnist": (62, (1, 28, 28)),
    "emnist-small": (62, (1, 28, 28)),
}


def built_in(*, dataset: str, network: str) -> TensorLayout | None:
    """The layout of a built-in network on a built-in data set; None where either is somebody's own."""
    if dataset not in _DATA_SETS:
        return None
    labels, (channels, height, width) = _DATA_SETS[dataset]
    match network:
        case "linear":
            return linear(inputs=math.prod((channels, height, width)), labels=labels)
        case "lenet":
            return lenet(channels=channels, side=height, labels=labels) if height >= 16 else None
        case "mcmahan":
            return mcmahan_cifar(labels=labels) if channels == 3 else None
        case _:
            return None


def linear(*, inputs: int, labels: int) -> TensorLayout:
    """Softmax regression with bias."""
    return _layout(("weight", (labels, inputs)), ("bias", (labels,)))


def lenet(*, channels: int, side: int, labels: int) -> TensorLayout:
    """Like LeNet-5: two unpadded 5x5 convolutions of 6 and 16 channels, each pooled; then 120, 84, labels."""
    width = 16 * (((side - 4) // 2 - 4) // 2) ** 2
    return _layout(
        *_pair("conv1", (6, channels, 5, 5)),
        *_pair("conv2", (16, 6, 5, 5)),
        *_pair("full1", (120, width)),
        *_pair("full2", (84, 120)),
        *_pair("full3", (labels, 84)),
    )


def mcmahan_cifar(*, labels: int) -> TensorLayout:
    """The CIFAR-10 network of McMahan et al. 2017, on 24x24 crops: 64 and 64 channels, then 384, 192, labels."""
    return _layout(
        *_pair("conv1", (64, 3, 5, 5)),
        *_pair("conv2", (64, 64, 5, 5)),
        *_pair("full1", (384, 64 * 6 * 6)),
        *_pair("full2", (192, 384)),
        *_pair("full3", (labels, 192)),
    )


def _pair(name: str, shape: tuple[int, ...]) -> tuple[tuple[str, tuple[int, ...]], tuple[str, tuple[int, ...]]]:
    return (f"{name}.weight", shape), (f"{name}.bias", shape[:1])


def _layout(*tensors: tuple[str, tuple[int, ...]]) -> TensorLayout:
    return TensorLayout(tensors=tuple(TensorSpec(name=name, shape=shape) for name, shape in tensors))
