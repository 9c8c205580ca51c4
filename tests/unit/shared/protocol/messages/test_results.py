"""Ledgers, announcements, tasks and results of rounds."""

import json
import math

import pytest

from qidpfl_shared.protocol.ledger import Ledger, LedgerEntry
from qidpfl_shared.protocol.messages import (
    Announcement,
    RoundResult,
    SelectionVerdict,
    TaskState,
    TaskSummary,
    TaskView,
)
from support.protocol.message_examples import ENTRY, EXAMPLES, SUMMARY, Reader, body_of, example
from support.protocol.refusals import codes_of


def test_an_infinite_proven_budget_is_null() -> None:
    entry = LedgerEntry.model_validate(body_of(ENTRY) | {"proven_rho": None})
    assert json.loads(entry.model_dump_json())["proven_rho"] is None


@pytest.mark.parametrize("field", ["spent_rho", "epsilon"])
def test_an_infinite_sum_of_a_ledger_is_null(field: str) -> None:
    ledger = Ledger.model_validate(example(Ledger) | {field: None})
    assert json.loads(ledger.model_dump_json())[field] is None


def test_the_proven_budget_is_required(read: Reader) -> None:
    body = {name: value for name, value in body_of(ENTRY).items() if name != "proven_rho"}
    assert codes_of(read, LedgerEntry, body) == ["missing"]


def test_a_heuristic_may_prove_a_vacuous_budget(read: Reader) -> None:
    entry = read(LedgerEntry, body_of(ENTRY) | {"rho": 0.01, "proven_rho": 0.01 * 3000**2})
    assert isinstance(entry, LedgerEntry) and entry.proven_rho == 90_000.0


@pytest.mark.parametrize("state", TaskState)
def test_a_task_without_an_open_round_announces_its_state_alone(read: Reader, state: TaskState) -> None:
    announcement = read(Announcement, {"task_state": state.value})
    assert announcement == Announcement(task_state=state, reason=None, round=None)


def test_a_task_without_a_preset_is_valid(read: Reader) -> None:
    summary = read(TaskSummary, body_of(SUMMARY) | {"preset": None})
    assert isinstance(summary, TaskSummary) and summary.preset is None


def test_a_task_is_read_back_with_the_digest_that_clients_pin() -> None:
    view = next(message for message in EXAMPLES if isinstance(message, TaskView))
    copy = TaskView.model_validate_json(view.model_dump_json())
    assert copy.spec.digest == copy.spec_digest


@pytest.mark.parametrize("field", ["label_distance", "distance_threshold"])
def test_no_label_distance_exceeds_two(read: Reader, field: str) -> None:
    body = example(SelectionVerdict) | {field: math.nextafter(2.0, 3.0)}
    assert codes_of(read, SelectionVerdict, body) == ["less_than_equal"]


@pytest.mark.parametrize("accuracy", [-0.01, 1.01])
def test_an_accuracy_is_a_fraction(read: Reader, accuracy: float) -> None:
    body = example(RoundResult) | {"accuracy": accuracy}
    assert codes_of(read, RoundResult, body)[0] in {"greater_than_equal", "less_than_equal"}


@pytest.mark.parametrize("field", ["own", "clients", "accuracy", "loss", "model_digest", "declared_total"])
def test_a_result_may_omit_private_and_unknown_fields(read: Reader, field: str) -> None:
    result = read(RoundResult, example(RoundResult) | {field: None})
    assert getattr(result, field) is None
