"""Batches of records, and their conversion to tensors on the device of the network."""

import hashlib
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qidpfl_shared.core.privacy.mechanisms import batch_sizes
from qidpfl_shared.workloads.records import Records, bounded

from .per_sample.gradients import squared_lengths

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


class MeasuredChunk(NamedTuple):
    """Some records as tensors, with the squared norms of their inputs where they are known."""

    inputs: Tensor
    labels: Tensor
    input_norms: Tensor | None


class DataLoader:
    """Loads the records of a client to one device. With `feature_norm`, each record is scaled to at most that norm."""

    def __init__(self, records: Records, device: torch.device, *, feature_norm: float | None = None) -> None:
        self.records = records
        self._device = device
        self._feature_norm = feature_norm
        fits = 4 * records.features.size <= KEPT_BYTES
        self._kept = self._converted(slice(None)) if fits else None
        # Only vectors enter a layer that needs their norms. Torch counts the changes of a tensor and all of its views.
        self._norms: Tensor | None = None
        self._version = 0 if self._kept is None else self._kept.inputs._version

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

    def measured_chunks(self, batch: Batch | None, *, length: int) -> Iterator[MeasuredChunk]:
        """The records of a batch, or all of them, in chunks of `length`, with what is known of their norms."""
        chunks = self.all_chunks(length=length) if batch is None else self.chunks(batch, length=length)
        for start, chunk in zip(itertools.count(0, length), chunks, strict=False):
            norms = self._kept_norms()
            if norms is not None:
                part = slice(start, start + length)
                norms = norms[part] if batch is None else norms[torch.from_numpy(batch[part]).to(norms.device)]
            yield MeasuredChunk(*chunk, norms)

    def _kept_norms(self) -> Tensor | None:
        """The squared norm of each record, measured once; None if records are not kept, or something changed them."""
        if self._kept is None or self._kept.inputs.ndim != 2 or self._kept.inputs._version != self._version:
            return None
        if self._norms is None:
            self._norms = squared_lengths(self._kept.inputs)
        return self._norms

    def _converted(self, indices: Batch | slice) -> Chunk:
        inputs = self.records.inputs(indices)
        if self._feature_norm is not None:
            inputs = bounded(inputs, norm=self._feature_norm)
        # A copy: torch warns about arrays that are read-only or shared.
        labels = np.array(self.records.labels[indices], dtype=np.int64)
        return Chunk(torch.from_numpy(inputs).to(self._device), torch.from_numpy(labels).to(self._device))
