"""Each check of the audit finds its violation in a store that was sound, and says where."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from qidpfl_server.audit import Report, audit
from support.fast_stores import fast_store

pytestmark = pytest.mark.slow

Tamper = Callable[..., Report]
FINISHED = "(SELECT task_id FROM tasks WHERE name = 'finished')"
OPEN = "(SELECT task_id FROM tasks WHERE name = 'open')"
SECOND = f"task_id = {FINISHED} AND round_number = 2"
FIRST_CLIENT = f"(SELECT min(client_id) FROM payments WHERE {SECOND})"


def test_a_sound_store_violates_nothing(sound: Path) -> None:
    with fast_store(sound / "coordinator.db", sound / "blobs") as store:
        report = audit(store)
    assert (report.violations, report.not_checkable) == ([], [])
    assert report.checked > 100


MANIPULATIONS = {
    "a norm that the bytes do not have": (
        f"UPDATE updates SET squared_norm = squared_norm * 1.001 WHERE {SECOND}",
        "the squared norm of the update is",
    ),
    "money moved between clients": (
        f"UPDATE payments SET amount_micro = amount_micro + iif(client_id = {FIRST_CLIENT}, 1000, -500) WHERE {SECOND}",
        "but its share is",
    ),
    "a payment struck out": (
        f"DELETE FROM payments WHERE {SECOND} AND client_id = {FIRST_CLIENT}",
        "was paid None, but its share is",
    ),
    "money kept that was to be paid": (
        f"UPDATE rounds SET reward_micro = reward_micro + 5, kept_micro = kept_micro + 5 WHERE {SECOND}",
        "but the plan says",
    ),
    "no word of what is kept": (f"UPDATE rounds SET kept_micro = NULL WHERE {SECOND}", "and None kept are not the"),
    "a sum of payments that is not theirs": (
        f"UPDATE rounds SET paid_micro = paid_micro + 1 WHERE {SECOND}",
        "but its rows give",
    ),
    "all budgets of a round doubled": (f"UPDATE budgets SET rho = rho * 2 WHERE {SECOND}", "the budgets add up to"),
    "a budget beyond all bounds": (
        f"UPDATE budgets SET rho = 0.6 WHERE task_id = {OPEN}",
        "budget 0.6 outside [0.0005, 0.5]",
    ),
    "an open reward raised": (
        f"UPDATE rounds SET reward_micro = reward_micro * 10 WHERE task_id = {OPEN}",
        "but the plan says",
    ),
    "an open total lowered": (f"UPDATE rounds SET total = total / 2 WHERE task_id = {OPEN}", "the total is"),
    "fewer updates asked for": (f"UPDATE rounds SET min_updates = 1 WHERE task_id = {OPEN}", "min_updates is 1"),
    "another expectation": (
        f"UPDATE invitations SET expected_rho = expected_rho * 1.1 WHERE task_id = {OPEN}",
        "is not that of the plan",
    ),
    "a cheaper client": (f"UPDATE clients SET privacy_value = 0.5 WHERE task_id = {OPEN}", "but the plan says"),
    "an attempt too many": (f"UPDATE rounds SET attempt = 9 WHERE task_id = {OPEN}", "attempt 9 of 3"),
    "an attempt before the first": (f"UPDATE rounds SET attempt = 0 WHERE task_id = {OPEN}", "attempt 0 of 3"),
    "a later deadline": (
        f"UPDATE rounds SET deliver_by = deliver_by + 1 WHERE task_id = {OPEN}",
        "its deadlines do not fit the task",
    ),
    "another model to start from": (f"UPDATE rounds SET base_version = 0 WHERE {SECOND}", "starts from model 0"),
    "a verdict turned round": (
        f"UPDATE updates SET accepted = 0 WHERE {SECOND} AND client_id = {FIRST_CLIENT}",
        "accepted is False, not True",
    ),
    "updates struck out": (f"DELETE FROM updates WHERE {SECOND}", "settled with 0 updates of 2"),
    "a declaration made a decline": (f"UPDATE budgets SET state = 'declined' WHERE {SECOND}", "without a declared"),
    "an invitation struck out": (f"DELETE FROM invitations WHERE {SECOND}", "an answer without an invitation"),
    "a task that goes on for ever": (
        f"UPDATE tasks SET state = 'training' WHERE task_id = {FINISHED}",
        "no open round",
    ),
    "a task that has quietly ended": (f"UPDATE tasks SET state = 'stopped' WHERE task_id = {OPEN}", "has ended, but"),
    "a model struck out": (f"DELETE FROM models WHERE task_id = {OPEN}", "model versions [] for 0 settled rounds"),
    "the model of another round": (
        f"UPDATE models SET digest = (SELECT digest FROM models WHERE task_id = {FINISHED} AND version = 1)"
        f" WHERE task_id = {FINISHED} AND version = 2",
        "the model recomputed from its updates differs from the published one",
    ),
    "an update of another length": (
        f"UPDATE updates SET byte_length = byte_length - 4 WHERE {SECOND}",
        "the update has another length",
    ),
    "an update after the deadline": (
        f"UPDATE updates SET received_at = received_at + 1000000000000 WHERE task_id = {OPEN}",
        "the update came after the deadline",
    ),
    "a refused client that takes part": (
        f"UPDATE clients SET state = 'refused' WHERE client_id = {FIRST_CLIENT}",
        "it is refused, but the selection says selected",
    ),
    "another distance": (
        f"UPDATE clients SET label_distance = 0.5 WHERE client_id = {FIRST_CLIENT}",
        "its label distance is 0.5, not",
    ),
    "a payment of an open round": (
        f"UPDATE rounds SET kept_micro = 5 WHERE task_id = {OPEN}",
        "payments in a round that is open",
    ),
    "an end without a reason": (
        f"UPDATE tasks SET reason = NULL WHERE task_id = {FINISHED}",
        "reason or end do not fit the state finished",
    ),
    "another spec": (
        f"UPDATE tasks SET spec = replace(spec, '\"horizon\":2', '\"horizon\":9') WHERE task_id = {OPEN}",
        "in table tasks does not have its recorded digest",
    ),
    "the clients of another task": (f"DELETE FROM tasks WHERE task_id = {OPEN}", "table clients: there is no task"),
}


@pytest.mark.parametrize("name", MANIPULATIONS)
def test_a_manipulation_is_found(name: str, tampered: Tamper) -> None:
    statement, finding = MANIPULATIONS[name]
    violations = tampered(statement).violations
    assert any(finding in violation for violation in violations), violations


def test_rounds_with_another_number_are_found_though_all_their_rows_have_it(tampered: Tamper) -> None:
    tables = ("rounds", "invitations", "budgets", "updates")
    report = tampered(*(f"UPDATE {table} SET round_number = 7 WHERE task_id = {OPEN}" for table in tables))
    assert "task open: the rounds are numbered [7]" in report.violations


@pytest.mark.parametrize("table", ["models", "updates"])
@pytest.mark.parametrize(("data", "finding"), [(None, "is missing"), (b"other", "does not match its digest")])
def test_a_blob_that_is_missing_or_changed_is_found(
    sound: Path, tmp_path: Path, table: str, data: bytes | None, finding: str
) -> None:
    shutil.copytree(sound, tmp_path / "state")
    with fast_store(tmp_path / "state" / "coordinator.db", tmp_path / "state" / "blobs") as store:
        newest = f"SELECT digest FROM {table} WHERE task_id = {FINISHED} ORDER BY rowid DESC"
        with store.engine.connect() as connection:
            digest = str(connection.exec_driver_sql(newest).scalar())
        blob = tmp_path / "state" / "blobs" / "objects" / digest
        blob.unlink()
        if data is not None:
            blob.write_bytes(data)
        assert any(digest in violation and finding in violation for violation in audit(store).violations)
