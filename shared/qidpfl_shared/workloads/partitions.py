"""How a testbed divides one data set. Every machine computes the same shards from the labels and a seed.

The random numbers come from numpy's old generator, because its stream is guaranteed not to change. Random proportions
become whole numbers before they are used, so that rounding cannot move a record to another client.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ..protocol.task_spec import Partition, PartitionKind
from .label_pools import LabelPools, Shard
from .records import Labels
from .workload import PartitionError

# Class-wise Dirichlet shards may be empty. Each client gets at least this many records, if there are enough.
LEAST_RECORDS = 10
# Sizes of quality_mix, in percent of an equal share. Below 100, so that the last client still gets its labels.
_SIZE_PERCENT = (73, 87)
_WHOLE = 1 << 32


def shard(*, labels: Labels, partition: Partition, ordinal: int) -> Shard:
    """Return the records of one client, as ascending indices into the training records.

    Raises `PartitionError` if there is no such shard, or if the records cannot be divided.
    """
    require_shard(partition, ordinal)
    return all_shards(labels=labels, partition=partition)[ordinal]


def require_shard(partition: Partition, ordinal: int) -> None:
    """Raise `PartitionError` if the partition has no shard for this ordinal."""
    if not 0 <= ordinal < partition.clients:
        raise PartitionError(
            f"there is no shard {ordinal}: the task divides its data among {partition.clients} clients, 0 to"
            f" {partition.clients - 1}; other clients must use their own data"
        )


def all_shards(*, labels: Labels, partition: Partition) -> list[Shard]:
    """Return the records of each client. No record belongs to two clients. Raises `PartitionError`."""
    if len(labels) < partition.clients:
        raise PartitionError(f"{len(labels)} records cannot be divided among {partition.clients} clients")
    rng = np.random.RandomState(partition.seed)
    shards = _DIVIDE[partition.kind](labels, partition, rng)
    return [np.sort(indices) for indices in shards]


def _iid(labels: Labels, partition: Partition, rng: np.random.RandomState) -> list[Shard]:
    """Equal shards of the shuffled records."""
    order = rng.permutation(len(labels)).astype(np.int64)
    return _cut(order, [1] * partition.clients)


def _dirichlet_class(labels: Labels, partition: Partition, rng: np.random.RandomState) -> list[Shard]:
    """Divide each label in separate Dirichlet proportions: unequal sizes, a mild skew at 1."""
    parts: list[list[Shard]] = [[] for _ in range(partition.clients)]
    pools = LabelPools(labels, rng)
    for label in pools.present:
        weights = _dirichlet(np.full(partition.clients, _concentration(partition)), rng)
        for part, piece in zip(parts, _cut(pools.take(label, pools.left(label)), weights), strict=True):
            part.append(piece)
    shards = [rng.permutation(np.concatenate(part)) for part in parts]
    return _fill_small_shards(shards, least=min(LEAST_RECORDS, len(labels) // partition.clients))


def _fill_small_shards(shards: list[Shard], *, least: int) -> list[Shard]:
    """Move records from the largest shard to those that have fewer than the least."""
    for receiver in range(len(shards)):
        while (short := least - len(shards[receiver])) > 0:
            giver = max(range(len(shards)), key=lambda ordinal: len(shards[ordinal]))
            moved = min(short, len(shards[giver]) - least)
            shards[receiver] = np.concatenate([shards[receiver], shards[giver][-moved:]])
            shards[giver] = shards[giver][:-moved]
    return shards


def _dirichlet_client(labels: Labels, partition: Partition, rng: np.random.RandomState) -> list[Shard]:
    """Draw label proportions for each client, Dirichlet around those of the data (Hsu et al. 2019): equal sizes.

    The last clients get what is left. The clients are therefore served in random order.
    """
    pools = LabelPools(labels, rng)
    size = len(labels) // partition.clients
    shards: list[Shard] = [np.empty(0, dtype=np.int64)] * partition.clients
    for ordinal in rng.permutation(partition.clients).tolist():
        weights = _dirichlet(_concentration(partition) * pools.prior(), rng)
        shards[ordinal] = pools.take_like(weights, size)
    return shards


def _label_sorted(labels: Labels, partition: Partition, rng: np.random.RandomState) -> list[Shard]:
    """Two random pieces of the records in order of their labels for each client (McMahan et al. 2017)."""
    order = np.argsort(labels, kind="stable").astype(np.int64)
    if len(order) < 2 * partition.clients:
        raise PartitionError(f"{len(order)} records do not make two shards for each of {partition.clients} clients")
    pieces = _cut(order, [1] * (2 * partition.clients))
    drawn = rng.permutation(len(pieces)).tolist()
    return [np.concatenate([pieces[one], pieces[two]]) for one, two in zip(drawn[::2], drawn[1::2], strict=True)]


def _quality_mix(labels: Labels, partition: Partition, rng: np.random.RandomState) -> list[Shard]:
    """Near-IID clients, and some with two labels only. Those share few labels, so the union of all is skewed."""
    pools = LabelPools(labels, rng)
    if len(pools.present) < 2:
        raise PartitionError("partition quality_mix needs records of at least two labels")
    sizes = _mixed_sizes(len(labels), partition.clients, rng)
    shards: list[Shard] = [np.empty(0, dtype=np.int64)] * partition.clients
    pairs = _pairs(pools, partition, rng)
    # The two-label clients come first, because they need their labels. The others can use what is left.
    for ordinal, pair in zip(partition.two_class_ordinals, pairs, strict=True):
        shards[ordinal] = pools.take_pair(pair, sizes[ordinal])
    alphas = _concentration(partition) * len(pools.present) * pools.prior()
    for ordinal in range(partition.clients):
        if ordinal not in partition.two_class_ordinals:
            shards[ordinal] = pools.take_like(_dirichlet(alphas, rng), sizes[ordinal])
    return shards


def _mixed_sizes(records: int, clients: int, rng: np.random.RandomState) -> list[int]:
    whole = 100 * clients
    low, high = ((percent * records + whole // 2) // whole for percent in _SIZE_PERCENT)
    sizes: list[int] = rng.randint(low, high + 1, size=clients).tolist()
    return sizes


def _pairs(pools: LabelPools, partition: Partition, rng: np.random.RandomState) -> list[tuple[int, int]]:
    """Choose two labels for each two-label client. A pair is reused while the near-IID clients keep their share."""
    labels, bad = len(pools.present), len(partition.two_class_ordinals)
    near_iid = partition.clients - bad
    # With sizes of 0.8 shares: a label has clients/labels shares, near-IID clients want 0.8/labels, a pair 0.4.
    uses = max(1, (10 * partition.clients - 8 * near_iid) // (4 * labels))
    drawn = [pools.present[place] for place in rng.permutation(labels).tolist()]
    pairs = list(zip(drawn[::2], drawn[1::2], strict=False))
    return [pairs[number // uses % len(pairs)] for number in range(bad)]


def _concentration(partition: Partition) -> float:
    if partition.concentration is None:
        raise PartitionError(f"partition {partition.kind} needs a concentration")
    return partition.concentration


def _dirichlet(alphas: npt.NDArray[np.float64], rng: np.random.RandomState) -> list[int]:
    """Dirichlet proportions as whole numbers, parts of about 2^32."""
    draws = rng.standard_gamma(alphas).tolist()
    total = math.fsum(draws)
    if total == 0:
        # All draws underflowed. In the limit of small concentrations one client takes all.
        draws[int(rng.randint(len(draws)))] = total = 1.0
    return [round(draw / total * _WHOLE) for draw in draws]


def _cut(indices: Shard, weights: Sequence[int]) -> list[Shard]:
    """Cut the indices into consecutive pieces, in proportion to the weights."""
    ends = np.cumsum(weights, dtype=np.int64)
    total = int(ends[-1])
    places = [int(end) * len(indices) // total for end in ends[:-1]]
    return np.split(indices, places)


_DIVIDE: dict[PartitionKind, Callable[[Labels, Partition, np.random.RandomState], list[Shard]]] = {
    PartitionKind.IID: _iid,
    PartitionKind.DIRICHLET_CLASS: _dirichlet_class,
    PartitionKind.DIRICHLET_CLIENT: _dirichlet_client,
    PartitionKind.SHARDS: _label_sorted,
    PartitionKind.QUALITY_MIX: _quality_mix,
}
