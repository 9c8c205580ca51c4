"""`LabelPools`: the records of each label in random order. A partition draws from them without replacement."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .records import Labels

Shard = npt.NDArray[np.int64]


class LabelPools:
    """The records of every label that are not taken yet."""

    def __init__(self, labels: Labels, rng: np.random.RandomState) -> None:
        order = np.argsort(labels, kind="stable").astype(np.int64)
        present, starts = np.unique(labels[order], return_index=True)
        self._pools = {
            int(label): rng.permutation(pool) for label, pool in zip(present, np.split(order, starts[1:]), strict=True)
        }
        self._sizes = [len(pool) for pool in self._pools.values()]
        self.present: tuple[int, ...] = tuple(self._pools)

    def prior(self) -> npt.NDArray[np.float64]:
        """Return the frequency of each present label before any record was taken."""
        return np.array(self._sizes) / sum(self._sizes)

    def left(self, label: int) -> int:
        """Return the number of records of a label that are left."""
        return len(self._pools[label])

    def take(self, label: int, count: int) -> Shard:
        """Take `count` records of a label, or all that are left."""
        pool = self._pools[label]
        self._pools[label] = pool[count:]
        return pool[:count]

    def take_like(self, weights: Sequence[int], size: int) -> Shard:
        """Take `size` records. The labels have these proportions as far as enough records are left."""
        taken: list[Shard] = []
        wanted = size
        while wanted > 0 and any(self.left(label) for label in self.present):
            open_weights = [
                weight if self.left(label) else 0 for weight, label in zip(weights, self.present, strict=True)
            ]
            if not any(open_weights):
                # No record of the wanted labels is left: take the others in equal parts.
                open_weights = [int(self.left(label) > 0) for label in self.present]
            for label, count in zip(self.present, _parts(wanted, open_weights), strict=True):
                taken.append(self.take(label, count))
            wanted = size - sum(map(len, taken))
        return np.concatenate([np.empty(0, dtype=np.int64), *taken])

    def take_pair(self, pair: tuple[int, int], size: int) -> Shard:
        """Take `size` records of two labels, half of each. If they have too few, use the two most frequent ones."""
        halves = (size - size // 2, size // 2)
        if any(self.left(label) < half for label, half in zip(pair, halves, strict=True)):
            one, two, *_ = sorted(self.present, key=lambda label: (-self.left(label), label))
            pair = (one, two)
        return np.concatenate([self.take(label, half) for label, half in zip(pair, halves, strict=True)])


def _parts(size: int, weights: Sequence[int]) -> list[int]:
    """Divide a size in proportion to the weights: rounded down, then one more for the largest remainders."""
    total = sum(weights)
    parts = [size * weight // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda place: (-(size * weights[place] % total), place))
    for place in by_remainder[: size - sum(parts)]:
        parts[place] += 1
    return parts
