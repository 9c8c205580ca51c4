"""The parameters of a network as one flat vector, in the order of the task's layout."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from qidpfl_shared.protocol.wire import TensorLayout, Vector32
from qidpfl_shared.workloads.networks import check_layout
from qidpfl_shared.workloads.workload import LayoutMismatch

from .devices import wide_dtype

_CHECKED_MODELS = 3


class FlatParameters:
    """The parameters of a network as views of one `vector`: a write to the vector changes the network."""

    def __init__(self, network: nn.Module, layout: TensorLayout, device: torch.device) -> None:
        network.to(device=device, dtype=torch.float32)
        check_layout(network, layout)
        self.tensors = list(network.parameters())
        self.vector = self.flatten([tensor.detach() for tensor in self.tensors])
        for tensor, part in zip(self.tensors, self.split(self.vector), strict=True):
            tensor.data = part.view(tensor.shape)

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self.vector.device

    def load(self, model: Vector32) -> None:
        """Copy a model into the network; raises `LayoutMismatch` if its size differs."""
        if model.shape != tuple(self.vector.shape):
            raise LayoutMismatch(f"the model has shape {model.shape}, the network {self.vector.numel()} parameters")
        self.vector.copy_(torch.from_numpy(np.array(model, dtype=np.float32)))

    def flatten(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """One tensor per parameter, dense or sparse, as a flat vector; None stands for zeros."""
        pairs = zip(tensors, self.tensors, strict=True)
        dense = (torch.zeros_like(own) if part is None else part.to_dense() for part, own in pairs)
        return torch.cat([part.reshape(-1) for part in dense])

    def split(self, vector: Tensor) -> Sequence[Tensor]:
        """The part of a flat vector that belongs to each parameter, as a flat view."""
        return torch.split_with_sizes(vector, [tensor.numel() for tensor in self.tensors])


def random_models(parameters: FlatParameters) -> list[Tensor]:
    """Some models without any symmetry, the same in every run, for checks of a network.

    A check at the parameters of a task could pass by chance: layers that start with zeros hide what follows them.
    """
    generator = torch.Generator().manual_seed(0)
    models = []
    for _ in range(_CHECKED_MODELS):
        # The usual scale of random weights, so that activations neither vanish nor saturate.
        drawn = [
            torch.randn(tensor.shape, generator=generator)
            / math.sqrt(max(1, tensor[0].numel() if tensor.ndim > 1 else 1))
            for tensor in parameters.tensors
        ]
        models.append(parameters.flatten([tensor.to(parameters.device) for tensor in drawn]))
    return models


class LocalUpdate:
    """What local training changes: the network's parameters are start − `total`, both kept in the widest type."""

    def __init__(self, parameters: FlatParameters) -> None:
        self._parameters = parameters
        self._start = parameters.vector.to(wide_dtype(parameters.device), copy=True)
        self.total = torch.zeros_like(self._start)

    def step(self, direction: Tensor, *, length: float) -> None:
        """A step against this direction."""
        self.total.add_(direction.to(self.total), alpha=length)
        self._parameters.vector.copy_(self._start - self.total)
