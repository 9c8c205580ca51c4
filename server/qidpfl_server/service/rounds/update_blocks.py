"""Reads the accepted updates of a round once, in blocks of coordinates, and combines them.

Each block of each update is read, hashed and scaled in a thread of a small pool; the sum runs in the order of the
updates. So memory depends neither on the number of clients nor on that of the parameters, and every coordinate is
computed by the same operations in the same order as by `weighted_mean` on whole vectors: the bits are the same.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from qidpfl_shared.core.aggregation import AggregationRule, trimmed_mean
from qidpfl_shared.core.arguments import ImpossibleArgument, Vector
from qidpfl_shared.core.noise_audit import RoundMoments
from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.protocol.wire import BYTES_PER_PARAMETER

from ...store.blob_reader import BlobReader
from ...store.blobs import Blobs
from .weights import WeightedUpload

# Coordinates of a block: small enough for the processor's cache, large enough for threads to pay.
LARGEST_BLOCK = 1 << 16
_SMALLEST_BLOCK = 1 << 12
# The memory for the rows of a block that must exist at the same time.
_ROW_BYTES = 16 << 20
# Rows of a block that are read ahead.
_AHEAD = 4


class UpdateMoments:
    """Inner products of the weighted updates, added up block by block."""

    def __init__(self, updates: int) -> None:
        self._norms, self._products, self._total = np.zeros(updates), np.zeros(updates), 0.0

    def add(self, rows: Sequence[Vector], total: Vector) -> None:
        """Add a block: the weighted rows and their sum."""
        for index, row in enumerate(rows):
            self._norms[index] += _dot(row, row)
            self._products[index] += _dot(row, total)
        self._total += _dot(total, total)

    def result(self) -> RoundMoments:
        return RoundMoments(squared_norms=self._norms, sum_products=self._products, sum_squared_norm=self._total)


@dataclass(frozen=True)
class MeanBlock:
    """The mean of the updates in the coordinates from `start` on."""

    start: int
    mean: Vector


def mean_blocks(
    blobs: Blobs,
    spec: TaskSpec,
    parts: Sequence[WeightedUpload],
    *,
    threads: Executor | None = None,
    moments: UpdateMoments | None = None,
) -> Iterator[MeanBlock]:
    """The mean by the rule of the task, block by block. Adds to `moments` if it is given.

    The digests of the updates are checked after the last block: no result counts before the iterator has ended.

    Raises:
        UnreadableBlob: an update is missing or damaged.
        ImpossibleArgument: there is no update, or a number is not finite.
    """
    if not parts:
        raise ImpossibleArgument("updates", (), "must hold at least one update")
    with ExitStack() as files:
        readers = [
            files.enter_context(blobs.reader(part.digest, BYTES_PER_PARAMETER * spec.dimension, together=len(parts)))
            for part in parts
        ]
        yield from _mean_blocks(readers, spec, parts, threads, moments)


def _mean_blocks(
    readers: Sequence[BlobReader],
    spec: TaskSpec,
    parts: Sequence[WeightedUpload],
    threads: Executor | None,
    moments: UpdateMoments | None,
) -> Iterator[MeanBlock]:
    trims = spec.aggregation.rule is AggregationRule.TRIMMED_MEAN
    length = block_length(len(parts) if trims or moments is not None else _AHEAD, spec.dimension)
    for start in range(0, spec.dimension, length):
        rows = _rows(readers, parts, min(length, spec.dimension - start), threads)
        if trims:
            clipped = list(rows)
            mean = _trimmed(clipped, parts, spec.aggregation.trim or 0.0)
            if moments is not None:
                _weighted_sum(iter(clipped), parts, moments)
        else:
            mean = _weighted_sum(rows, parts, moments)
            mean /= sum(part.weight for part in parts)
        yield MeanBlock(start, mean)
    for reader in readers:
        reader.finish()


def _rows(
    readers: Sequence[BlobReader], parts: Sequence[WeightedUpload], count: int, threads: Executor | None
) -> Iterator[Vector]:
    """The next coordinates of each update within its norm bound, in the order of the updates."""
    if threads is None or count < _SMALLEST_BLOCK or not any(reader.is_slow for reader in readers):
        yield from (_clipped_row(reader, part, count) for reader, part in zip(readers, parts, strict=True))
        return
    for first in range(0, len(parts), _AHEAD):
        ahead = slice(first, first + _AHEAD)
        yield from threads.map(_clipped_row, readers[ahead], parts[ahead], repeat(count))


def _weighted_sum(rows: Iterator[Vector], parts: Sequence[WeightedUpload], moments: UpdateMoments | None) -> Vector:
    """The sum of the weighted rows. Overwrites them."""
    total: Vector | None = None
    kept = []
    for row, part in zip(rows, parts, strict=True):
        row *= part.weight
        total = np.zeros(row.size) if total is None else total
        total += row
        if moments is not None:
            kept.append(row)
    assert total is not None
    if not np.isfinite(total).all():
        raise ImpossibleArgument("updates", "NaN or infinity", "must be finite")
    if moments is not None:
        moments.add(kept, total)
    return total


def block_length(rows: int, dimension: int) -> int:
    """The coordinates of a block of which so many rows are in memory at the same time."""
    return min(dimension, LARGEST_BLOCK, max(_SMALLEST_BLOCK, _ROW_BYTES // (8 * rows)))


def _dot(one: Vector, other: Vector) -> float:
    """The inner product. BLAS would start threads of its own for each block, which costs more than the product."""
    return float(np.einsum("i,i->", one, other))


def _clipped_row(reader: BlobReader, part: WeightedUpload, count: int) -> Vector:
    """The next coordinates of an update within its norm bound, in float64."""
    values = np.empty(count, dtype="<f4")
    reader.read_into(values.data.cast("B"))
    row: Vector = values.astype(np.float64)
    if part.scale != 1:
        row *= part.scale
    return row


def _trimmed(rows: Sequence[npt.NDArray[Any]], parts: Sequence[WeightedUpload], trim: float) -> Vector:
    return trimmed_mean(
        read=lambda index, piece: rows[index][piece],
        weights=[part.weight for part in parts],
        dimension=rows[0].size,
        trim=trim,
    )
