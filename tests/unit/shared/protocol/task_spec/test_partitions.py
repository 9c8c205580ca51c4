"""Partitions of a testbed: which ones a task may have."""

import pytest

from qidpfl_shared.protocol.task_spec import PartitionKind
from support.protocol.refusals import Json, codes_of
from support.protocol.task_texts import PARTITIONS, Reader, task


@pytest.mark.parametrize("partition", PARTITIONS.values(), ids=PARTITIONS)
def test_a_partition_of_each_kind_is_admissible(read: Reader, partition: Json) -> None:
    spec = read(task({"workload.partition": partition, "rounds.expected_clients": 5}))
    assert spec.workload.partition is not None and spec.workload.partition.kind == partition["kind"]


def test_every_kind_of_partition_is_tested() -> None:
    assert set(PARTITIONS) == {kind.value for kind in PartitionKind}


@pytest.mark.parametrize("change", [{"concentration": None}, {}], ids=["said", "unsaid"])
@pytest.mark.parametrize("kind", ["dirichlet_class", "dirichlet_client", "quality_mix"])
def test_a_partition_that_draws_needs_a_concentration(read: Reader, kind: str, change: Json) -> None:
    partition = {"kind": kind, "clients": 5, **change}
    assert codes_of(read, task({"workload.partition": partition})) == ["inconsistent_spec"]


@pytest.mark.parametrize("kind", ["iid", "shards", "dirichlet_class", "dirichlet_client"])
def test_no_other_partition_takes_clients_of_two_labels(read: Reader, kind: str) -> None:
    partition = PARTITIONS[kind] | {"two_class_ordinals": [1]}
    assert codes_of(read, task({"workload.partition": partition})) == ["inconsistent_spec"]


@pytest.mark.parametrize("ordinals", [[5], [0, 1_000_000], [1, 1], [0, 4, 0]], ids=repr)
def test_clients_of_two_labels_are_different_clients_of_the_partition(read: Reader, ordinals: list[int]) -> None:
    partition = PARTITIONS["quality_mix"] | {"two_class_ordinals": ordinals}
    assert codes_of(read, task({"workload.partition": partition})) == ["inconsistent_spec"]


@pytest.mark.parametrize("ordinals", [[], [4], [4, 3, 2, 1, 0]], ids=repr)
def test_any_clients_of_the_partition_may_hold_two_labels(read: Reader, ordinals: list[int]) -> None:
    partition = PARTITIONS["quality_mix"] | {"two_class_ordinals": ordinals}
    spec = read(task({"workload.partition": partition}))
    assert spec.workload.partition is not None and spec.workload.partition.two_class_ordinals == tuple(ordinals)


@pytest.mark.parametrize("field", ["training_records", "validation_records"])
def test_portions_of_the_records_belong_to_a_testbed(read: Reader, field: str) -> None:
    portion = {f"workload.{field}": 50}
    assert codes_of(read, task(portion)) == ["inconsistent_spec"]
    assert codes_of(read, task(portion | {"workload.partition": PARTITIONS["iid"]})) == []
    for count in (0, -1, 1.0, True):
        refused = {f"workload.{field}": count, "workload.partition": PARTITIONS["iid"]}
        assert len(codes_of(read, task(refused))) == 1


@pytest.mark.parametrize(("records", "codes"), [(4, ["inconsistent_spec"]), (5, [])])
def test_every_client_has_a_record_to_train_on(read: Reader, records: int, codes: list[str]) -> None:
    spec = task({"workload.partition": PARTITIONS["iid"], "workload.training_records": records})
    assert codes_of(read, spec) == codes


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param({"expected_clients": 6}, id="expected clients"),
        pytest.param({"expected_clients": None, "min_clients": 6}, id="least clients"),
    ],
)
@pytest.mark.parametrize("partition", PARTITIONS.values(), ids=PARTITIONS)
def test_a_partition_has_a_shard_for_every_expected_client(read: Reader, partition: Json, rounds: Json) -> None:
    assert codes_of(read, task({"workload.partition": partition, "rounds": rounds})) == ["inconsistent_spec"]


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param({"expected_clients": 5}, id="expected clients"),
        pytest.param({"expected_clients": None, "min_clients": 5}, id="least clients"),
        pytest.param({"expected_clients": 4}, id="fewer clients"),
    ],
)
def test_a_partition_needs_no_more_shards_than_are_expected(read: Reader, rounds: Json) -> None:
    assert read(task({"workload.partition": PARTITIONS["iid"], "rounds": rounds})).dimension == 15


def test_without_a_partition_any_number_of_clients_may_be_expected(read: Reader) -> None:
    assert read(task({"workload.partition": None, "rounds.expected_clients": 1000})).workload.partition is None
