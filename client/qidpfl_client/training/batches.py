"""The order in which records are visited: public, and chosen without looking at them."""

import hashlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from qidpfl_shared.core.privacy.mechanisms import batch_sizes

Batch = npt.NDArray[np.int64]


def epoch_batches(*, size: int, batch_size: int, release: str, epoch: int) -> Iterator[Batch]:
    """The disjoint batches of one epoch, in an order that follows from the names of the release and the epoch."""
    seed = hashlib.sha256(f"order of records/{epoch}/{release}".encode()).digest()
    order = np.random.default_rng(int.from_bytes(seed, "big")).permutation(size)
    start = 0
    for length in batch_sizes(size=size, batch_size=batch_size):
        yield order[start : start + length]
        start += length
