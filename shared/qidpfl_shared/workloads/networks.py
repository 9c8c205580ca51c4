"""The networks of the built-in workloads, and the way between a network and the flat vector of the wire.

This is the one module here that loads torch when it is imported.
"""

import math
from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import nn

from ..protocol.wire import TensorLayout, TensorSpec, Vector32, unflatten
from .workload import LayoutMismatch, UnknownWorkload, WorkloadError

# The least side of an image that two unpadded 5x5 convolutions, each pooled, leave something of.
_LENET_SIDE = 16
_MCMAHAN_SHAPE = (3, 24, 24)
_LOOSE = 1e-3
# Larger values of a record than this are cut where only the network is in question.
_MODERATE = 1e3


def build_network(name: str, *, labels: int, record_shape: tuple[int, ...]) -> nn.Module:
    """A fresh network of this name for records of this shape; its parameters are named as in `protocol.layouts`."""
    if name not in _NETWORKS:
        raise UnknownWorkload(f"there is no network {name!r}; there are {', '.join(_NETWORKS)}")
    return _NETWORKS[name](labels, record_shape)


def layout_of(network: nn.Module) -> TensorLayout:
    """The names and shapes of the network's parameters, in their order."""
    tensors = []
    for name, parameter in network.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise LayoutMismatch(f"parameter {name!r} has no shape yet: lazy layers cannot be described")
        if parameter.dtype != torch.float32:
            raise LayoutMismatch(f"parameter {name!r} is {parameter.dtype}, but the wire carries float32 only")
        if not parameter.requires_grad:
            raise LayoutMismatch(f"parameter {name!r} is frozen: keep what is not trained in a buffer")
        tensors.append(TensorSpec(name=name, shape=tuple(parameter.shape)))
    if not tensors:
        raise LayoutMismatch("the network has no parameters")
    return TensorLayout(tensors=tuple(tensors))


def check_layout(network: nn.Module, layout: TensorLayout) -> None:
    """Refuse a network whose parameters are not exactly those of the layout."""
    found = layout_of(network).tensors
    for has, wants in zip(found, layout.tensors, strict=False):
        if has != wants:
            raise LayoutMismatch(
                f"the network has {has.name!r} of shape {has.shape} where the task has {wants.name!r} of {wants.shape}"
            )
    if len(found) != len(layout.tensors):
        raise LayoutMismatch(f"the network has {len(found)} tensors, but the task has {len(layout.tensors)}")


def load_parameters(network: nn.Module, vector: Vector32, layout: TensorLayout) -> None:
    """Give the network the parameters of a flat vector."""
    check_layout(network, layout)
    tensors = unflatten(vector=vector, layout=layout)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            # A copy: torch warns of vectors from the wire, which cannot be written to.
            parameter.copy_(torch.from_numpy(tensors[name].copy()))


def check_records_stay_apart(network: nn.Module, examples: torch.Tensor | None = None) -> None:
    """Refuse a network in which one record can change what is computed for another.

    A record's gradient would then depend on its neighbours, and clipping it would bound nothing. Known layers are
    found by their type; with a few example records others are found too, by comparing a batch with single records.
    """
    for name, layer in network.named_modules():
        if _mixes_records(layer):
            raise WorkloadError(
                f"layer {name or 'network'!r} ({type(layer).__name__}) mixes records, so that no gradient belongs to"
                " one record alone; use GroupNorm or LayerNorm instead"
            )
    if examples is not None and not _answers_one_by_one(network, examples):
        raise WorkloadError("the network's answer to a record depends on the other records of the batch")


def _mixes_records(layer: nn.Module) -> bool:
    # The lazy and synchronised forms are subclasses. Instance normalisation is harmless until it keeps statistics.
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        return True
    return isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats


def _answers_one_by_one(network: nn.Module, examples: torch.Tensor) -> bool:
    # How an overflow ends depends on the order of a sum, which is another one in a batch: it says nothing about mixing.
    if examples.is_floating_point():
        examples = examples.nan_to_num().clamp(-_MODERATE, _MODERATE)
    was_training = network.training
    network.eval()
    try:
        with torch.no_grad():
            together = network(examples)
            alone = torch.cat([network(example[None]) for example in examples])
    finally:
        network.train(was_training)
    return together.shape == alone.shape and torch.allclose(together, alone, rtol=_LOOSE, atol=_LOOSE)


def _linear(labels: int, record_shape: tuple[int, ...]) -> nn.Module:
    """Softmax regression with bias, all zeros: its loss is convex, so that no start is better than another."""
    network = nn.Linear(math.prod(record_shape), labels)
    nn.init.zeros_(network.weight)
    nn.init.zeros_(network.bias)
    return network


def _lenet(labels: int, record_shape: tuple[int, ...]) -> nn.Module:
    """Like LeNet-5 (LeCun et al. 1998): tanh and mean pooling."""
    if len(record_shape) != 3 or record_shape[1] != record_shape[2] or record_shape[1] < _LENET_SIDE:
        raise UnknownWorkload(
            f"network 'lenet' takes square images of at least {_LENET_SIDE}x{_LENET_SIDE}, not {record_shape}"
        )
    channels, side, _ = record_shape
    width = 16 * (((side - 4) // 2 - 4) // 2) ** 2
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(channels, 6, 5),
            tanh1=nn.Tanh(),
            pool1=nn.AvgPool2d(2),
            conv2=nn.Conv2d(6, 16, 5),
            tanh2=nn.Tanh(),
            pool2=nn.AvgPool2d(2),
            flat=nn.Flatten(),
            full1=nn.Linear(width, 120),
            tanh3=nn.Tanh(),
            full2=nn.Linear(120, 84),
            tanh4=nn.Tanh(),
            full3=nn.Linear(84, labels),
        )
    )


def _mcmahan(labels: int, record_shape: tuple[int, ...]) -> nn.Module:
    """The CIFAR-10 network of McMahan et al. 2017, after TensorFlow's tutorial, without its response normalisation."""
    if record_shape != _MCMAHAN_SHAPE:
        raise UnknownWorkload(f"network 'mcmahan' takes records of shape {_MCMAHAN_SHAPE}, not {record_shape}")
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(3, 64, 5, padding=2),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(3, stride=2, padding=1),
            conv2=nn.Conv2d(64, 64, 5, padding=2),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(3, stride=2, padding=1),
            flat=nn.Flatten(),
            full1=nn.Linear(64 * 6 * 6, 384),
            relu3=nn.ReLU(),
            full2=nn.Linear(384, 192),
            relu4=nn.ReLU(),
            full3=nn.Linear(192, labels),
        )
    )


_NETWORKS: dict[str, Callable[[int, tuple[int, ...]], nn.Module]] = {
    "linear": _linear,
    "lenet": _lenet,
    "mcmahan": _mcmahan,
}
