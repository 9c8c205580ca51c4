"""The networks of the built-in workloads, and the conversion between a network and the flat vector of the wire.

This is the only module here that imports torch at once.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import nn

from ..protocol.layouts import LENET_MIN_SIDE, MCMAHAN_CHANNELS, MCMAHAN_SIDE, OWN_DATA_NETWORKS
from ..protocol.wire import TensorLayout, TensorSpec, Vector32, unflatten
from .workload import LayoutMismatch, UnknownWorkload, WorkloadError

_MCMAHAN_SHAPE = (MCMAHAN_CHANNELS, MCMAHAN_SIDE, MCMAHAN_SIDE)
_TOLERANCE = 1e-3
# The check of a network clamps the values of its example records to this range.
_MODERATE = 1e3


def build_network(name: str, *, labels: int, record_shape: tuple[int, ...], hidden: Sequence[int] = ()) -> nn.Module:
    """Return a fresh network for records of this shape. Its parameters have the names of `protocol.layouts`.

    Raises `UnknownWorkload` for an unknown name, or if the network does not accept records of this shape.
    """
    if name not in OWN_DATA_NETWORKS:
        raise UnknownWorkload(f"there is no network {name!r}; use one of {', '.join(OWN_DATA_NETWORKS)}")
    if name == "mlp":
        return _mlp(labels, record_shape, hidden)
    return _BUILD[name](labels, record_shape)


def layout_of(network: nn.Module) -> TensorLayout:
    """Return the names and shapes of the network's parameters, in their order.

    Raises `LayoutMismatch` if a parameter is lazy, frozen or not float32, or if there is none.
    """
    tensors = []
    for name, parameter in network.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise LayoutMismatch(f"parameter {name!r} has no shape yet; give lazy layers their sizes")
        if parameter.dtype != torch.float32:
            raise LayoutMismatch(f"parameter {name!r} is {parameter.dtype}; the wire carries float32 only")
        if not parameter.requires_grad:
            raise LayoutMismatch(f"parameter {name!r} is frozen; register it as a buffer if it is not trained")
        tensors.append(TensorSpec(name=name, shape=tuple(parameter.shape)))
    if not tensors:
        raise LayoutMismatch("the network has no parameters")
    return TensorLayout(tensors=tuple(tensors))


def check_layout(network: nn.Module, layout: TensorLayout) -> None:
    """Raise `LayoutMismatch` if the network's parameters are not exactly those of the layout."""
    found = layout_of(network).tensors
    for has, wants in zip(found, layout.tensors, strict=False):
        if has != wants:
            raise LayoutMismatch(
                f"the network has {has.name!r} of shape {has.shape} where the task has {wants.name!r} of {wants.shape}"
            )
    if len(found) != len(layout.tensors):
        raise LayoutMismatch(f"the network has {len(found)} tensors, but the task has {len(layout.tensors)}")


def load_parameters(network: nn.Module, vector: Vector32, layout: TensorLayout) -> None:
    """Copy the parameters of a flat vector into the network. Raises `LayoutMismatch` if they do not fit."""
    check_layout(network, layout)
    tensors = unflatten(vector=vector, layout=layout)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            # A copy, because torch warns about read-only vectors, as those from the wire are.
            parameter.copy_(torch.from_numpy(tensors[name].copy()))


def check_records_stay_apart(network: nn.Module, examples: torch.Tensor | None = None) -> None:
    """Raise `WorkloadError` if one record can change what the network computes for another.

    The gradient of a record would then depend on other records, and clipping it would bound nothing. Known layers are
    found by their type. With some example records, others are found by comparing a batch with single records.
    """
    for name, layer in network.named_modules():
        if _mixes_records(layer):
            raise WorkloadError(
                f"layer {name or 'network'!r} ({type(layer).__name__}) mixes records, so no gradient belongs to"
                " one record alone; use GroupNorm or LayerNorm instead"
                " (qidpfl_shared.workloads.group_norm.with_group_norm converts batch normalisation)"
            )
    if examples is not None and not _answers_one_by_one(network, examples):
        raise WorkloadError("the network's output for a record depends on the other records of the batch")


def check_nothing_changes(network: nn.Module, examples: torch.Tensor) -> None:
    """Raise `WorkloadError` if the network changes its own parameters or buffers when it computes an answer.

    One record would then change the network for the records after it.
    """
    before = [tensor.detach().clone() for tensor in (*network.parameters(), *network.buffers())]
    with torch.no_grad():
        network(examples)
    after = (*network.parameters(), *network.buffers())
    if not all(torch.equal(first, second) for first, second in zip(before, after, strict=True)):
        raise WorkloadError("the network changes its parameters or buffers when it computes, so records mix through it")


def _mixes_records(layer: nn.Module) -> bool:
    # Lazy and synchronised forms are subclasses. Instance normalisation mixes records only if it keeps statistics.
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        return True
    # It shortens the rows of its table when a record looks them up, for all later records too.
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
        return True
    return isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats


def _answers_one_by_one(network: nn.Module, examples: torch.Tensor) -> bool:
    # Sums have another order in a batch. With an overflow the results could differ although no record is mixed.
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
    return together.shape == alone.shape and torch.allclose(together, alone, rtol=_TOLERANCE, atol=_TOLERANCE)


def _linear(labels: int, record_shape: tuple[int, ...]) -> nn.Module:
    """Softmax regression with bias, all zeros. Its loss is convex, so the start does not matter."""
    network = nn.Linear(math.prod(record_shape), labels)
    nn.init.zeros_(network.weight)
    nn.init.zeros_(network.bias)
    return network


def _mlp(labels: int, record_shape: tuple[int, ...], hidden: Sequence[int]) -> nn.Module:
    """Fully connected layers with tanh between."""
    layers: list[tuple[str, nn.Module]] = [("flat", nn.Flatten())]
    for place, (before, wide) in enumerate(pairwise((math.prod(record_shape), *hidden, labels)), 1):
        if place > 1:
            layers.append((f"tanh{place - 1}", nn.Tanh()))
        layers.append((f"full{place}", nn.Linear(before, wide)))
    return nn.Sequential(OrderedDict(layers))


def _lenet(labels: int, record_shape: tuple[int, ...]) -> nn.Module:
    """Like LeNet-5 (LeCun et al. 1998): tanh and mean pooling."""
    if len(record_shape) != 3 or record_shape[1] != record_shape[2] or record_shape[1] < LENET_MIN_SIDE:
        raise UnknownWorkload(
            f"network 'lenet' accepts square images of at least {LENET_MIN_SIDE}x{LENET_MIN_SIDE}, not {record_shape}"
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
        raise UnknownWorkload(f"network 'mcmahan' accepts records of shape {_MCMAHAN_SHAPE}, not {record_shape}")
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


_BUILD: dict[str, Callable[[int, tuple[int, ...]], nn.Module]] = {
    "linear": _linear,
    "lenet": _lenet,
    "mcmahan": _mcmahan,
}
