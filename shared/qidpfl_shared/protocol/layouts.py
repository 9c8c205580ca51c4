"""The facts of the built-in data sets and networks: labels, image shapes, and the tensors of a model.

This is the only place that states them. The presets, the checks of a task and the workloads read them here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from .wire import TensorLayout, TensorSpec

NETWORKS = ("linear", "lenet", "mcmahan")
# The networks that a task of own data can name. mlp has a parameter, the widths of its hidden layers.
OWN_DATA_NETWORKS = ("linear", "mlp", "lenet", "mcmahan")
# Two unpadded 5x5 convolutions, each followed by pooling, need at least this side.
LENET_MIN_SIDE = 16
# The network of McMahan et al. takes the centre of a colour image.
MCMAHAN_CHANNELS, MCMAHAN_SIDE = 3, 24


class ImageShape(NamedTuple):
    """The shape of one image."""

    channels: int
    height: int
    width: int


@dataclass(frozen=True)
class ImageFacts:
    """What a task needs to know of a data set of images."""

    labels: int
    shape: ImageShape
    # How many records there are to train on.
    records: int


DATA_SETS = {
    "digits": ImageFacts(10, ImageShape(1, 8, 8), 1_437),
    "mnist": ImageFacts(10, ImageShape(1, 28, 28), 60_000),
    "cifar10": ImageFacts(10, ImageShape(3, 32, 32), 50_000),
    "emnist": ImageFacts(62, ImageShape(1, 28, 28), 731_668),
    "emnist-small": ImageFacts(62, ImageShape(1, 28, 28), 10_000),
}


def accepts(network: str, shape: ImageShape) -> bool:
    """Whether a built-in network accepts images of this shape."""
    side = min(shape.height, shape.width)
    match network:
        case "linear":
            return True
        case "lenet":
            return side >= LENET_MIN_SIDE
        case "mcmahan":
            return shape.channels == MCMAHAN_CHANNELS and side >= MCMAHAN_SIDE
        case _:
            return False


def misfit(*, dataset: str, network: str) -> str | None:
    """Say why a built-in network cannot learn a built-in data set; None if it can, or if one is not built in."""
    facts = DATA_SETS.get(dataset)
    if facts is None or network not in NETWORKS or accepts(network, facts.shape):
        return None
    side, kind = (LENET_MIN_SIDE, "images") if network == "lenet" else (MCMAHAN_SIDE, "colour images")
    shape = facts.shape
    has = f"{shape.height}x{shape.width} with {shape.channels} channel{'s' if shape.channels > 1 else ''}"
    fitting = ", ".join(name for name in NETWORKS if accepts(name, shape))
    return (
        f"network {network!r} accepts {kind} of at least {side}x{side}, but {dataset!r} has {has};"
        f" networks that fit: {fitting}"
    )


def built_in(*, dataset: str, network: str) -> TensorLayout | None:
    """Return the layout of a built-in network on a built-in data set.

    The result is None if either is not built in, or if the network does not accept these images.
    """
    facts = DATA_SETS.get(dataset)
    if facts is None or not accepts(network, facts.shape):
        return None
    match network:
        case "linear":
            return linear(inputs=math.prod(facts.shape), labels=facts.labels)
        case "lenet":
            return lenet(channels=facts.shape.channels, side=facts.shape.height, labels=facts.labels)
        case _:
            return mcmahan_cifar(labels=facts.labels)


def of_records(
    *, network: str, hidden: Sequence[int], record_shape: tuple[int, ...], labels: int
) -> TensorLayout | None:
    """Return the layout of a built-in network for records of this shape; None if it does not accept them."""
    match network, record_shape:
        case "linear", _:
            return linear(inputs=math.prod(record_shape), labels=labels)
        case "mlp", _:
            return mlp(inputs=math.prod(record_shape), hidden=hidden, labels=labels)
        case "lenet", (channels, height, width) if height == width >= LENET_MIN_SIDE:
            return lenet(channels=channels, side=height, labels=labels)
        case "mcmahan", (3, 24, 24):
            return mcmahan_cifar(labels=labels)
        case _:
            return None


def mlp(*, inputs: int, hidden: Sequence[int], labels: int) -> TensorLayout:
    """Fully connected layers of these widths with tanh between."""
    widths = (inputs, *hidden, labels)
    layers = (_pair(f"full{place}", (wide, before)) for place, (before, wide) in enumerate(pairwise(widths), 1))
    return _layout(*(tensor for layer in layers for tensor in layer))


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
        *_pair("conv1", (64, MCMAHAN_CHANNELS, 5, 5)),
        *_pair("conv2", (64, 64, 5, 5)),
        *_pair("full1", (384, 64 * (MCMAHAN_SIDE // 4) ** 2)),
        *_pair("full2", (192, 384)),
        *_pair("full3", (labels, 192)),
    )


def _pair(name: str, shape: tuple[int, ...]) -> tuple[tuple[str, tuple[int, ...]], tuple[str, tuple[int, ...]]]:
    return (f"{name}.weight", shape), (f"{name}.bias", shape[:1])


def _layout(*tensors: tuple[str, tuple[int, ...]]) -> TensorLayout:
    return TensorLayout(tensors=tuple(TensorSpec(name=name, shape=shape) for name, shape in tensors))
