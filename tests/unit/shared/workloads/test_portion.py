"""Portions of a testbed's records: chosen alike everywhere, never both trained on and evaluated with."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pytest

from qidpfl_shared.protocol.task_spec import WorkloadSpec
from qidpfl_shared.workloads.loading import load_workload
from qidpfl_shared.workloads.portion import portion
from qidpfl_shared.workloads.records import Records
from qidpfl_shared.workloads.workload import PartitionError, Workload

if TYPE_CHECKING:
    from torch import nn

ALL = 100
WHOLE = WorkloadSpec(dataset="numbered", network="none", labels=2)


def numbered(count: int, *, start: int = 0) -> Records:
    numbers = np.arange(start, start + count)
    return Records(features=numbers[:, None], labels=numbers % 2)


@dataclass
class Numbered:
    """Every record is a number of its own, so that it can be followed."""

    labels: int = 2
    convex: bool = True
    read: int = 0
    records: Records = field(default_factory=lambda: numbered(ALL))

    def training(self) -> Records:
        self.read += 1
        return self.records

    def held_out(self) -> Records | None:
        return numbered(10, start=ALL)

    def network(self) -> "nn.Module":
        raise AssertionError("no record is chosen by a network")


def spec(*, training: int | None = None, validation: int | None = None) -> WorkloadSpec:
    return WHOLE.model_copy(update={"training_records": training, "validation_records": validation})


def parts(*, training: int | None = None, validation: int | None = None) -> tuple[list[int], list[int]]:
    """The numbers that are trained on, and those that models are evaluated on."""
    chosen = portion(Numbered(), spec(training=training, validation=validation))
    held_out = chosen.held_out()
    assert held_out is not None
    return chosen.training().features[:, 0].tolist(), held_out.features[:, 0].tolist()


def test_a_task_that_names_no_portion_has_the_workload_itself() -> None:
    whole = Numbered()
    assert portion(whole, spec()) is whole


def test_training_uses_the_given_number_of_records_and_keeps_the_held_out_ones() -> None:
    trained, evaluated = parts(training=30)
    assert len(set(trained)) == 30
    assert set(trained) < set(range(ALL))
    assert trained != list(range(30))
    assert evaluated == list(range(ALL, ALL + 10))


def test_validation_records_are_not_trained_on() -> None:
    trained, evaluated = parts(validation=20)
    assert len(evaluated) == 20
    assert sorted(trained + evaluated) == list(range(ALL))


def test_the_validation_records_do_not_depend_on_the_number_of_training_records() -> None:
    few, many, rest = (parts(training=training, validation=20) for training in (10, 60, None))
    assert few[1] == many[1] == rest[1]
    assert set(few[0]) < set(many[0]) < set(rest[0])
    assert set(rest[0]).isdisjoint(rest[1])


def test_the_same_records_are_chosen_ever_after() -> None:
    """Written down: another choice would be another experiment under the same name."""
    assert parts(training=5, validation=5) == ([0, 12, 36, 48, 49], [2, 44, 56, 70, 74])


def test_features_and_labels_stay_together() -> None:
    chosen = portion(Numbered(), spec(training=40)).training()
    assert np.array_equal(chosen.labels, chosen.features[:, 0] % 2)


def test_all_records_may_be_used() -> None:
    trained, evaluated = parts(training=ALL - 20, validation=20)
    assert sorted(trained + evaluated) == list(range(ALL))


@pytest.mark.parametrize(
    ("training", "validation"), [(ALL + 1, None), (ALL - 19, 20), (None, ALL), (None, ALL + 1), (1, ALL)]
)
def test_more_records_than_the_data_set_has_are_refused_in_one_line(
    training: int | None, validation: int | None
) -> None:
    chosen = portion(Numbered(), spec(training=training, validation=validation))
    asked = [chosen.training, *([chosen.held_out] if validation else [])]
    for ask in asked:
        with pytest.raises(PartitionError, match=r"but there are 100$") as refusal:
            ask()
        assert "\n" not in str(refusal.value)


def test_the_held_out_records_are_read_without_the_training_records() -> None:
    whole = Numbered()
    portion(whole, spec(training=30)).held_out()
    assert whole.read == 0


def test_records_are_chosen_once() -> None:
    chosen = portion(Numbered(), spec(training=30, validation=20))
    assert chosen.training() is chosen.training()
    assert chosen.held_out() is chosen.held_out()


def test_a_loaded_workload_is_the_portion_that_the_task_names() -> None:
    digits = WorkloadSpec(dataset="digits", network="linear", labels=10, training_records=500, validation_records=300)
    workload = load_workload(digits)
    held_out = workload.held_out()
    assert isinstance(workload, Workload)
    assert (len(workload.training()), 0 if held_out is None else len(held_out)) == (500, 300)
    assert len(load_workload(digits.whole).training()) == 1437
