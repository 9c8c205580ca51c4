"""How a testbed divides its data."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qidpfl_shared.core.privacy.histogram import private_histogram
from qidpfl_shared.core.selection import label_distances
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.task_spec import Partition, PartitionKind
from qidpfl_shared.workloads.datasets.digits import read_digits
from qidpfl_shared.workloads.label_pools import LabelPools, Shard
from qidpfl_shared.workloads.partitions import LEAST_RECORDS, all_shards, shard
from qidpfl_shared.workloads.records import Labels
from qidpfl_shared.workloads.workload import PartitionError

BALANCED: Labels = np.tile(np.arange(10, dtype=np.int64), 600)
UNIFORM = [0.1] * 10


def divided(kind: str, *, clients: int = 20, concentration: float = 1.0, seed: int = 0) -> Partition:
    return Partition(kind=PartitionKind(kind), clients=clients, concentration=concentration, seed=seed)


def counts(labels: Labels, shards: list[Shard]) -> list[np.ndarray]:
    return [np.bincount(labels[indices], minlength=10) for indices in shards]


def distances(partition: Partition, labels: Labels = BALANCED) -> np.ndarray:
    return label_distances(histograms=counts(labels, all_shards(labels=labels, partition=partition)), reference=UNIFORM)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Labels, Partition]:
    kind = draw(st.sampled_from(PartitionKind))
    clients = draw(st.integers(1, 12))
    labels = draw(st.lists(st.integers(0, 4), min_size=2 * clients, max_size=150))
    labels += [0, 1]
    bad = draw(st.sets(st.integers(0, clients - 1))) if kind is PartitionKind.QUALITY_MIX else set()
    partition = Partition(
        kind=kind,
        clients=clients,
        concentration=draw(st.sampled_from([1e-6, 0.1, 1.0, 100.0])),
        two_class_ordinals=tuple(sorted(bad)),
        seed=draw(st.integers(0, 2**32 - 1)),
    )
    return np.array(labels, dtype=np.int64), partition


@given(cases())
def test_shards_are_disjoint_ascending_and_never_empty(case: tuple[Labels, Partition]) -> None:
    labels, partition = case
    shards = all_shards(labels=labels, partition=partition)
    assert len(shards) == partition.clients
    together = np.concatenate(shards)
    assert len(np.unique(together)) == len(together)
    assert together.min() >= 0 and together.max() < len(labels)
    assert all(len(indices) > 0 and (np.diff(indices) > 0).all() for indices in shards)


@given(cases())
def test_a_two_label_client_has_at_most_two_labels(case: tuple[Labels, Partition]) -> None:
    labels, partition = case
    shards = all_shards(labels=labels, partition=partition)
    assert all(len(np.unique(labels[shards[ordinal]])) <= 2 for ordinal in partition.two_class_ordinals)


@given(cases())
def test_one_shard_is_the_same_as_among_all(case: tuple[Labels, Partition]) -> None:
    labels, partition = case
    last = partition.clients - 1
    alone = shard(labels=labels, partition=partition, ordinal=last)
    assert np.array_equal(alone, all_shards(labels=labels, partition=partition)[last])


@pytest.mark.parametrize("kind", ["iid", "dirichlet_class", "shards"])
def test_some_partitions_give_every_record_away(kind: str) -> None:
    shards = all_shards(labels=BALANCED, partition=divided(kind, clients=7))
    assert np.array_equal(np.sort(np.concatenate(shards)), np.arange(len(BALANCED)))


@pytest.mark.parametrize("kind", list(PartitionKind))
def test_another_seed_gives_another_partition(kind: str) -> None:
    one, other = (all_shards(labels=BALANCED, partition=divided(kind, seed=seed)) for seed in (0, 1))
    assert any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))


# Clients on other machines compute their own shards: a change here would give one record to two clients.
KNOWN = {
    "iid": "8ae7c8af4a40bbb0",
    "dirichlet_class": "bd7fd11966728cb3",
    "dirichlet_client": "a53d26ec94791ef7",
    "shards": "db2ab5c156ebbe1b",
    "quality_mix": "6e1ed3ee147b5ce4",
}


@pytest.mark.parametrize("kind", list(PartitionKind))
def test_the_partition_of_a_seed_never_changes(kind: str) -> None:
    bad = (1, 3) if kind == "quality_mix" else ()
    partition = divided(kind, clients=5, seed=7).model_copy(update={"two_class_ordinals": bad})
    digest = hashlib.sha256()
    for indices in all_shards(labels=BALANCED, partition=partition):
        digest.update(indices.astype("<i8").tobytes() + b"|")
    assert digest.hexdigest()[:16] == KNOWN[kind]


@pytest.mark.parametrize("ordinal", [-1, 20, 1000])
def test_there_is_no_shard_beyond_the_clients(ordinal: int) -> None:
    with pytest.raises(PartitionError, match=f"no shard {ordinal}: .* 20 clients"):
        shard(labels=BALANCED, partition=divided("iid"), ordinal=ordinal)


@pytest.mark.parametrize("kind", list(PartitionKind))
def test_there_must_be_a_record_for_each_client(kind: str) -> None:
    with pytest.raises(PartitionError, match="3 records cannot be divided among 4 clients"):
        all_shards(labels=BALANCED[:3], partition=divided(kind, clients=4))


def test_two_shards_each_need_two_records_each() -> None:
    with pytest.raises(PartitionError, match="two shards"):
        all_shards(labels=BALANCED[:5], partition=divided("shards", clients=3))


def test_a_mix_needs_two_labels() -> None:
    with pytest.raises(PartitionError, match="two labels"):
        all_shards(labels=np.zeros(50, dtype=np.int64), partition=divided("quality_mix", clients=3))


@pytest.mark.parametrize("kind", ["dirichlet_class", "dirichlet_client", "quality_mix"])
def test_a_dirichlet_partition_needs_a_concentration(kind: str) -> None:
    with pytest.raises(PartitionError, match="concentration"):
        all_shards(labels=BALANCED, partition=Partition(kind=PartitionKind(kind), clients=3))


def test_iid_shards_have_equal_sizes_and_nearly_the_labels_of_all() -> None:
    sizes = {len(indices) for indices in all_shards(labels=BALANCED, partition=divided("iid", clients=7))}
    assert sizes == {857, 858}
    assert distances(divided("iid")).mean() < 0.2


def test_class_wise_dirichlet_gives_a_mean_distance_of_about_seven_tenths_and_unequal_sizes() -> None:
    means = [distances(divided("dirichlet_class", seed=seed)).mean() for seed in range(10)]
    assert 0.63 < float(np.mean(means)) < 0.75
    sizes = [len(indices) for indices in all_shards(labels=BALANCED, partition=divided("dirichlet_class"))]
    assert max(sizes) > 1.5 * min(sizes)


def test_class_wise_dirichlet_gives_each_client_the_least_number_of_records() -> None:
    shards = all_shards(labels=BALANCED, partition=divided("dirichlet_class", clients=100, concentration=0.01))
    assert min(map(len, shards)) == LEAST_RECORDS


def test_client_wise_dirichlet_is_far_more_skewed_at_equal_sizes() -> None:
    shards = all_shards(labels=BALANCED, partition=divided("dirichlet_client"))
    assert {len(indices) for indices in shards} == {300}
    means = [distances(divided("dirichlet_client", seed=seed)).mean() for seed in range(10)]
    assert 1.35 < float(np.mean(means)) < 1.55


def test_a_large_concentration_is_nearly_iid() -> None:
    assert distances(divided("dirichlet_client", concentration=1e6)).max() < 0.05
    assert distances(divided("dirichlet_class", concentration=1e6)).max() < 0.05


def test_label_sorted_shards_hold_few_labels() -> None:
    shards = all_shards(labels=BALANCED, partition=divided("shards"))
    assert all(np.count_nonzero(row) <= 2 for row in counts(BALANCED, shards))


@pytest.mark.parametrize("seed", range(5))
def test_the_digits_preset_shows_seven_good_and_three_bad_clients_through_the_noise(seed: int) -> None:
    spec, labels = preset("digits"), read_digits(training=True).labels
    assert spec.workload.partition is not None and spec.privacy.histogram_rho is not None
    partition = spec.workload.partition.model_copy(update={"seed": seed})
    shards = all_shards(labels=labels, partition=partition)
    assert all(105 <= len(indices) <= 125 for indices in shards)
    rng = np.random.default_rng(seed)
    noisy = [
        private_histogram(counts=row, rho=spec.privacy.histogram_rho, standard_noise=rng.standard_normal(10))
        for row in counts(labels, shards)
    ]
    found = label_distances(histograms=noisy, reference=UNIFORM)
    bad = np.isin(np.arange(10), partition.two_class_ordinals)
    assert (found[bad] > 1.35).all() and (found[bad] <= 1.65).all()
    assert (found[~bad] > 0.1).all() and (found[~bad] < 0.65).all()


@pytest.mark.parametrize("name", ["digits", "mnist-bad-clients"])
def test_in_a_mix_the_union_of_all_is_skewed_and_that_of_the_good_clients_is_not(name: str) -> None:
    partition = preset(name).workload.partition
    assert partition is not None
    rows = np.array(counts(BALANCED, all_shards(labels=BALANCED, partition=partition)))
    good = ~np.isin(np.arange(partition.clients), partition.two_class_ordinals)
    all_clients, selected = label_distances(histograms=[rows.sum(axis=0), rows[good].sum(axis=0)], reference=UNIFORM)
    assert all_clients > 0.15
    assert selected < 0.11


def test_pools_give_other_labels_when_the_wanted_ones_run_out() -> None:
    pools = LabelPools(np.array([0, 0, 1, 1, 2], dtype=np.int64), np.random.RandomState(0))
    assert sorted(pools.take_like([1, 0, 0], 4).tolist())[:2] == [0, 1]
    assert sum(map(pools.left, pools.present)) == 1
    assert len(pools.take_like([1, 0, 0], 4)) == 1
