"""Records on their way to the network: as tensors on its device, a chunk at a time."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from qidpfl_shared.workloads.records import Records, bounded

from .batches import Batch

# Features that fit are converted once and kept; a conversion costs more than softmax regression itself.
KEPT_BYTES = 32 * 2**20


class Chunk(NamedTuple):
    """Some records, as the network takes them."""

    inputs: Tensor
    labels: Tensor


class DataLoader:
    """The records of a client, for one device; with `feature_norm`, each scaled down to at most that norm."""

    def __init__(self, records: Records, device: torch.device, *, feature_norm: float | None = None) -> None:
        self.records = records
        self._device = device
        self._feature_norm = feature_norm
        fits = 4 * records.features.size <= KEPT_BYTES
        self._kept = self._converted(np.arange(len(records))) if fits else None

    def chunk(self, batch: Batch) -> Chunk:
        """These records."""
        if self._kept is None:
            return self._converted(batch)
        indices = torch.from_numpy(batch).to(self._device)
        return Chunk(self._kept.inputs[indices], self._kept.labels[indices])

    def chunks(self, batch: Batch, *, length: int) -> Iterator[Chunk]:
        """These records, so many at a time."""
        return (self.chunk(batch[start : start + length]) for start in range(0, len(batch), length))

    def all_chunks(self, *, length: int) -> Iterator[Chunk]:
        """All records in their own order, so many at a time."""
        for start in range(0, len(self.records), length):
            if self._kept is None:
                yield self._converted(slice(start, start + length))
            else:
                yield Chunk(self._kept.inputs[start : start + length], self._kept.labels[start : start + length])

    def _converted(self, indices: Batch | slice) -> Chunk:
        inputs = self.records.inputs(indices)
        if self._feature_norm is not None:
            inputs = bounded(inputs, norm=self._feature_norm)
        # A copy: torch warns of arrays that cannot be written to, and of those that others may change.
        labels = np.array(self.records.labels[indices], dtype=np.int64)
        return Chunk(torch.from_numpy(inputs).to(self._device), torch.from_numpy(labels).to(self._device))
