"""Rows that cannot be read: the audit names each with its table and key, and goes on with the other tasks."""

from collections.abc import Callable

import pytest

from qidpfl_server.audit import Report

pytestmark = pytest.mark.slow

Tamper = Callable[..., Report]
FINISHED = "(SELECT task_id FROM tasks WHERE name = 'finished')"
OPEN = "(SELECT task_id FROM tasks WHERE name = 'open')"
SECOND = f"task_id = {FINISHED} AND round_number = 2"
FIRST_CLIENT = f"(SELECT min(client_id) FROM payments WHERE {SECOND})"


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
    name: str, tampered: Tamper
) -> None:
    statement, table, finding = DAMAGES[name]
    report = tampered(statement)
    assert any(f"table {table}, " in violation and finding in violation for violation in report.violations)
    assert len(report.not_checkable) == 1
    assert report.checked > 20


def test_a_value_that_the_database_cannot_read_is_a_violation(tampered: Tamper) -> None:
    """Text that is not UTF-8 fails in the driver, before any check."""
    report = tampered(f"UPDATE budgets SET reason = CAST(x'ff' AS TEXT) WHERE {SECOND}")
    (violation,) = report.violations
    assert "reason" in violation and "decode" in violation.lower()
