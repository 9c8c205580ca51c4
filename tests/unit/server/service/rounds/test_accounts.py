"""The accounts that a round uses: the same amounts as from all rows, at a cost that does not grow."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event

from qidpfl_server.service.rounds.accounts import paid_micro, present_accounts, privacy_accounts
from support.use_cases import ServedClient, ServedTask, UseCases

LONG: dict[str, Any] = {"game": {"horizon": 40}, "privacy": {"lifetime_rho": 100.0}}


def compare_accounts(cases: UseCases, task: ServedTask, clients: list[ServedClient], number: int) -> None:
    """Compare the amounts that round `number` uses with those from all rows."""
    rows = [client.now for client in clients]
    from_sums = cases.write(lambda tx: present_accounts(tx, task.now, rows, number))
    from_rows = cases.read(lambda tx: privacy_accounts(tx, task.now, rows))
    for client_id, account in from_rows.items():
        assert from_sums[client_id].spent_rho == account.spent_rho
        assert from_sums[client_id].remaining_rho == account.remaining_rho
    paid = cases.write(lambda tx: paid_micro(tx, task.now, number))
    assert paid == cases.read(lambda tx: tx.payments.total_micro(task.task_id))


def test_amounts_from_sums_equal_those_from_all_rows_bit_for_bit(cases: UseCases) -> None:
    task, clients = cases.training(4, **LONG)
    for number in range(1, 12):
        compare_accounts(cases, task, clients, number)
        # One client declines now and then, so that the sums differ.
        playing = clients if number % 3 else clients[:-1]
        if playing != clients:
            clients[-1].decline(number)
        task.play(playing, number)


def test_a_transaction_that_is_rolled_back_leaves_no_trace_in_the_sums(cases: UseCases) -> None:
    task, clients = cases.training(**LONG)
    for number in (1, 2, 3):
        task.play(clients, number)

    rows = [client.now for client in clients]

    def fail(tx: Any) -> None:
        present_accounts(tx, task.now, rows, 4)
        paid_micro(tx, task.now, 4)
        raise ValueError("rolled back")

    with pytest.raises(ValueError, match="rolled back"):
        cases.write(fail)
    task.play(clients, 4)
    task.play(clients, 5)
    assert cases.violations() == []


@contextmanager
def counted_statements(cases: UseCases) -> Iterator[list[int]]:
    """Counts the statements that the database runs."""
    count = [0]

    def before(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        count[0] += 1

    event.listen(cases.store.engine, "before_cursor_execute", before)
    try:
        yield count
    finally:
        event.remove(cases.store.engine, "before_cursor_execute", before)


def test_a_late_round_takes_as_many_statements_and_rows_as_an_early_one(cases: UseCases) -> None:
    task, clients = cases.training(**LONG)
    statements, visits = [], []
    for number in range(1, 31):
        with counted_statements(cases) as count, visited_rows(cases) as visited:
            task.play(clients, number)
        statements.append(count[0])
        visits.append(visited[0])
    # After the rounds in which updates are compared with each other, every round is like the one before.
    assert statements[29] == statements[14]
    assert visits[29] <= visits[14] * 1.1


@contextmanager
def visited_rows(cases: UseCases) -> Iterator[list[int]]:
    """Counts the steps of SQLite's virtual machine, in tens: they grow with the rows that a statement visits."""
    steps = [0]

    def step() -> int:
        steps[0] += 1
        return 0

    def watch(connection: Any, *_: Any) -> None:
        connection.connection.driver_connection.set_progress_handler(step, 10)

    event.listen(cases.store.engine, "begin", watch)
    try:
        yield steps
    finally:
        event.remove(cases.store.engine, "begin", watch)
