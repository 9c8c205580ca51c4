"""Batches of records, and their conversion to tensors on the device of the network."""

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qidpfl_shared.core.privacy.mechanisms import batch_sizes
from qidpfl_shared.workloads.records import Records, bounded

Batch = npt.NDArray[np.int64]
# Features up to this size are converted once and cached: the conversion costs more than softmax regression.
KEPT_BYTES = 32 * 2**20


def epoch_batches(*, size: int, batch_size: int, release: str, epoch: int) -> Iterator[Batch]:
    """The disjoint batches of one epoch, as indices of records.

    The order is public: it depends on the names of the release and the epoch, never on the records.
    """
    seed = hashlib.sha256(f"order of records/{epoch}/{release}".encode()).digest()
    order = np.random.default_rng(int.from_bytes(seed, "big")).permutation(size)
    start = 0
    for length in batch_sizes(size=size, batch_size=batch_size):
        yield order[start : start + length]
        start += length


class Chunk(NamedTuple):
    """Some records as tensors."""

    inputs: Tensor
    labels: Tensor


class DataLoader:
    """Loads the records of a client to one device. With `feature_norm`, each record is scaled to at most that norm."""

    def __init__(self, records: Records, device: torch.device, *, feature_norm: float | None = None) -> None:
        self.records = records
        self._device = device
        self._feature_norm = feature_norm
        fits = 4 * records.features.size <= KEPT_BYTES
        self._kept = self._converted(slice(None)) if fits else None

    @property
    def kept_bytes(self) -> int:
        """The memory that the converted features need; 0 if they are converted again in every pass."""
        return 0 if self._kept is None else self._kept.inputs.nbytes

    def chunk(self, batch: Batch) -> Chunk:
        """The records of a batch."""
        if self._kept is None:
            return self._converted(batch)
        indices = torch.from_numpy(batch).to(self._device)
        return Chunk(self._kept.inputs[indices], self._kept.labels[indices])

    def chunks(self, batch: Batch, *, length: int) -> Iterator[Chunk]:
        """The records of a batch, in chunks of `length`."""
        return (self.chunk(batch[start : start + length]) for start in range(0, len(batch), length))

    def all_chunks(self, *, length: int) -> Iterator[Chunk]:
        """All records in their stored order, in chunks of `length`."""
        for start in range(0, len(self.records), length):
            if self._kept is None:
                yield self._converted(slice(start, start + length))
            else:
                yield Chunk(self._kept.inputs[start : start + length], self._kept.labels[start : start + length])

    def _converted(self, indices: Batch | slice) -> Chunk:
        inputs = self.records.inputs(indices)
        if self._feature_norm is not None:
            inputs = bounded(inputs, norm=self._feature_norm)
        # A copy: torch warns about arrays that are read-only or shared.
        labels = np.array(self.records.labels[indices], dtype=np.int64)
        return Chunk(torch.from_numpy(inputs).to(self._device), torch.from_numpy(labels).to(self._device))
