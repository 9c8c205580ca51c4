"""The audit finds every manipulation of a store that was sound, says where, and never ends in a traceback."""

import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qidpfl_server.audit import Report, audit
from qidpfl_server.ops.open_store import opened_store
from qidpfl_server.settings import Settings
from support.coordinators import NO_TIMEOUTS, Coordinator, ScriptedClient

pytestmark = pytest.mark.live

CLIENTS = 3
ROUNDS = NO_TIMEOUTS | {"expected_clients": CLIENTS, "min_clients": 2, "min_updates": 2}
FINISHED = "(SELECT task_id FROM tasks WHERE name = 'finished')"
OPEN = "(SELECT task_id FROM tasks WHERE name = 'open')"
SECOND = f"task_id = {FINISHED} AND round_number = 2"
FIRST_CLIENT = f"(SELECT min(client_id) FROM payments WHERE {SECOND})"


def gathered(coordinator: Coordinator, name: str, **overrides: Any) -> list[ScriptedClient]:
    task_id, code = coordinator.create_task(name, rounds=ROUNDS, **overrides)
    clients = [ScriptedClient(coordinator.url, task_id, code, f"{name}-key-of-client-{n}") for n in range(CLIENTS)]
    for client, value in zip(clients, (1.0, 1.1, 1.2), strict=True):
        client.privacy_value = value
        client.enrol()
        client.profile().raise_for_status()
    return clients


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a coordinator with a finished task and one in its first round, where one client has delivered."""
    folder = tmp_path_factory.mktemp("sound")
    with Coordinator(folder) as coordinator:
        threads = [
            threading.Thread(target=client.run) for client in gathered(coordinator, "finished", game={"horizon": 3})
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client = gathered(coordinator, "open", game={"horizon": 3})[0]
        answer = client.poll()
        assert answer is not None
        client.play(answer["round"])
    yield folder


def audited(folder: Path) -> Report:
    with opened_store(Settings(state_dir=folder)) as store:
        return audit(store)


def tampered(sound: Path, folder: Path, statement: str) -> Report:
    shutil.copytree(sound, folder / "state")
    connection = sqlite3.connect(folder / "state" / "coordinator.db")
    # Whoever tampers is not stopped by the database.
    connection.execute("PRAGMA ignore_check_constraints = ON")
    assert connection.execute(statement).rowcount > 0
    connection.commit()
    connection.close()
    return audited(folder / "state")


def test_a_sound_store_violates_nothing(sound: Path) -> None:
    report = audited(sound)
    assert (report.violations, report.not_checkable) == ([], [])
    assert report.checked > 100


MANIPULATIONS = {
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
    "another spec": (
        f"UPDATE tasks SET spec = replace(spec, '\"horizon\":3', '\"horizon\":9') WHERE task_id = {OPEN}",
        "in table tasks does not have its recorded digest",
    ),
    "the clients of another task": (f"DELETE FROM tasks WHERE task_id = {OPEN}", "table clients: there is no task"),
}


@pytest.mark.parametrize("name", MANIPULATIONS)
def test_a_manipulation_is_found(name: str, sound: Path, tmp_path: Path) -> None:
    statement, finding = MANIPULATIONS[name]
    violations = tampered(sound, tmp_path, statement).violations
    assert any(finding in violation for violation in violations), violations


def test_rounds_with_another_number_are_found_though_all_their_rows_have_it(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "state")
    with sqlite3.connect(tmp_path / "state" / "coordinator.db") as connection:
        for table in ("rounds", "invitations", "budgets", "updates"):
            connection.execute(f"UPDATE {table} SET round_number = 7 WHERE task_id = {OPEN}")
    connection.close()
    assert "task open: the rounds are numbered [7]" in audited(tmp_path / "state").violations


DAMAGES = {
    "a state of a task": (f"UPDATE tasks SET state = 'foo' WHERE task_id = {OPEN}", "tasks", "state is 'foo'"),
    "a state of a round": (f"UPDATE rounds SET state = 'foo' WHERE task_id = {OPEN}", "rounds", "state is 'foo'"),
    "a state of a client": (f"UPDATE clients SET state = 'foo' WHERE task_id = {OPEN}", "clients", "state is 'foo'"),
    "a state of a budget": (f"UPDATE budgets SET state = 'foo' WHERE {SECOND}", "budgets", "state is 'foo'"),
    "a standing": (f"UPDATE invitations SET standing = '' WHERE {SECOND}", "invitations", "standing is ''"),
    "a verdict": (f"UPDATE updates SET verdict = 'good' WHERE {SECOND}", "updates", "verdict is 'good'"),
    "a histogram": (f"UPDATE clients SET label_counts = 'x' WHERE task_id = {OPEN}", "clients", "label_counts is 'x'"),
    "counts": (f"UPDATE clients SET label_counts = '[1.5]' WHERE task_id = {OPEN}", "clients", "label_counts is"),
    "a deadline": (f"UPDATE rounds SET deliver_by = 'x' WHERE task_id = {OPEN}", "rounds", "deliver_by is 'x'"),
    "a norm": (f"UPDATE updates SET squared_norm = 'abc' WHERE {SECOND}", "updates", "squared_norm is 'abc'"),
    "an endless budget": (f"UPDATE budgets SET rho = 9e999 WHERE {SECOND}", "budgets", "rho is inf"),
    "a negative payment": (f"UPDATE payments SET amount_micro = -5 WHERE {SECOND}", "payments", "amount_micro is -5"),
    "a truth value": (f"UPDATE clients SET set_aside = 2 WHERE task_id = {OPEN}", "clients", "set_aside is 2"),
    "a digest": (f"UPDATE models SET digest = '../x' WHERE task_id = {OPEN}", "models", "digest is '../x'"),
    "a name": (f"UPDATE tasks SET name = x'00ff' WHERE task_id = {OPEN}", "tasks", r"name is b'\x00\xff'"),
    "a round number": (
        f"UPDATE rounds SET round_number = 7 WHERE {SECOND}",
        "payments",
        "there is no such round or client",
    ),
    "a client": (
        f"UPDATE budgets SET client_id = 'me' WHERE {SECOND} AND client_id = {FIRST_CLIENT}",
        "budgets",
        "me:",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_row_is_named_with_its_table_and_key_and_the_other_task_is_checked(
    name: str, sound: Path, tmp_path: Path
) -> None:
    statement, table, finding = DAMAGES[name]
    report = tampered(sound, tmp_path, statement)
    assert any(f"table {table}, " in violation and finding in violation for violation in report.violations)
    assert len(report.not_checkable) == 1
    assert report.checked > 20


def test_what_the_database_cannot_read_is_a_violation(sound: Path, tmp_path: Path) -> None:
    """Text that is no UTF-8 fails in the driver, before any check sees it."""
    report = tampered(sound, tmp_path, f"UPDATE budgets SET reason = CAST(x'ff' AS TEXT) WHERE {SECOND}")
    (violation,) = report.violations
    assert "reason" in violation and "decode" in violation.lower()
