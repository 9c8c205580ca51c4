"""The objective of one client: the loss of its network over its records."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from qidpfl_shared.protocol.wire import TensorLayout
from qidpfl_shared.workloads.networks import check_records_stay_apart
from qidpfl_shared.workloads.records import Records

from ..errors import ClientError
from .data_loader import Batch, Chunk, DataLoader
from .devices import wide_dtype
from .flat_parameters import FlatParameters
from .per_sample.clipping import Clipper, fastest_clipper

_EXAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The mean cross entropy of a network over records. Its gradients are flat vectors of the widest type."""

    network: nn.Module
    parameters: FlatParameters
    loader: DataLoader
    clipper: Clipper
    chunk: int

    @property
    def size(self) -> int:
        """The number of records."""
        return len(self.loader.records)

    def clipped_mean(self, batch: Batch | None = None, *, bound: float) -> Tensor:
        """The mean of the per-record gradients, each clipped to `bound`. Without a batch: over all records."""
        total = self._zeros()
        for inputs, labels in self._chunks(batch):
            total += self.clipper.clipped_sum(inputs, labels, bound=bound)
        return total / (self.size if batch is None else len(batch))

    def mean_gradient(self, batch: Batch) -> Tensor:
        """The gradient of the mean loss over a batch, without clipping."""
        total = self._zeros()
        for inputs, labels in self._chunks(batch):
            loss = functional.cross_entropy(self.network(inputs), labels, reduction="sum")
            gradients = torch.autograd.grad(loss, self.parameters.tensors, allow_unused=True)
            total += self.parameters.flatten(gradients)
        return total / len(batch)

    def with_features_bounded(self, norm: float) -> "Objective":
        """A copy in which the features of every record are scaled to at most this norm."""
        return replace(self, loader=DataLoader(self.loader.records, self.parameters.device, feature_norm=norm))

    def examples(self) -> Chunk:
        """The first few records, for checks of shapes. They enter no release."""
        return self.loader.chunk(np.arange(min(_EXAMPLES, self.size)))

    def _chunks(self, batch: Batch | None) -> Iterable[Chunk]:
        return (
            self.loader.all_chunks(length=self.chunk) if batch is None else self.loader.chunks(batch, length=self.chunk)
        )

    def _zeros(self) -> Tensor:
        return torch.zeros_like(self.parameters.vector, dtype=wide_dtype(self.parameters.device))


def make_objective(
    *, network: nn.Module, records: Records, layout: TensorLayout, device: torch.device, chunk: int | None
) -> Objective:
    """The objective of one client.

    Raises `ClientError` or `WorkloadError` if records and network do not fit, or records influence each other.
    """
    if not len(records):
        raise ClientError("there are no records to train on")
    parameters = FlatParameters(network.eval(), layout, device)
    loader = DataLoader(records, device)
    examples = loader.chunk(np.arange(min(_EXAMPLES, len(records))))
    _check_fit(network, records, examples.inputs)
    check_records_stay_apart(network, examples.inputs)
    clipper = fastest_clipper(network, parameters, examples.inputs, examples.labels)
    return Objective(
        network=network, parameters=parameters, loader=loader, clipper=clipper, chunk=chunk or clipper.advised_chunk
    )


def _check_fit(network: nn.Module, records: Records, examples: Tensor) -> None:
    try:
        with torch.no_grad():
            shape = tuple(network(examples).shape)
    except (RuntimeError, ValueError, IndexError) as error:
        first_line = str(error).partition("\n")[0]
        record = tuple(examples.shape[1:])
        raise ClientError(f"the network does not accept records of shape {record}: {first_line}") from error
    lowest, highest = int(records.labels.min()), int(records.labels.max())
    if len(shape) != 2 or lowest < 0 or highest >= shape[1]:
        raise ClientError(f"labels {lowest} to {highest} do not fit the network's answers of shape {shape}")
