"""Statements that the driver runs itself: the same rows, events and errors as SQLAlchemy's, on both databases."""

from typing import Any

import pytest
from sqlalchemy import event, insert, select, text, update
from sqlalchemy.exc import IntegrityError

from qidpfl_server.errors import CoordinatorError, StoreBusy
from qidpfl_server.store.prepared import Prepared
from qidpfl_server.store.schema import clients, events, invitations, rounds
from qidpfl_server.store.store import Store
from qidpfl_server.store.transaction import Transaction
from support.store_rows import NOW, new_task, open_round

ROLLED_BACK = RuntimeError("rolled back")


@pytest.mark.parametrize("table", [clients, rounds, invitations], ids=lambda table: str(table.name))
def test_rows_are_those_of_sqlalchemy(store: Store, table: Any) -> None:
    open_round(store)
    query = select(table).order_by(*table.primary_key)

    def both(tx: Transaction) -> tuple[list[Any], list[Any]]:
        return [*tx.connection.execute(query)], Prepared(query).run(tx.connection, {}).all()

    expected, found = store.read(both)
    assert expected
    assert [row._asdict() for row in found] == [row._asdict() for row in expected]
    assert [[type(value) for value in row] for row in found] == [[type(value) for value in row] for row in expected]


def test_one_statement_serves_one_and_many_sets_of_parameters(store: Store) -> None:
    task = new_task(store)
    add = Prepared(insert(events))
    rows = [{"task_id": task.task_id, "at": NOW + k, "kind": f"test.{k}"} for k in range(3)]
    found = Prepared(select(events.c.kind).where(events.c.kind.like("test.%")).order_by(events.c.at))

    def work(tx: Transaction) -> list[str]:
        add.run(tx.connection, rows[0])
        add.run(tx.connection, rows[1:])
        return found.run(tx.connection, {}).scalars()

    assert store.write(work) == ["test.0", "test.1", "test.2"]


def test_a_change_says_how_many_rows_it_has_changed(store: Store) -> None:
    round_, _ = open_round(store)
    change = Prepared(update(rounds).where(rounds.c.task_id == text(":of_task").bindparams(of_task="nobody")))
    known = Prepared(update(rounds).where(rounds.c.round_number == 1))
    assert store.write(lambda tx: change.run(tx.connection, {"total": 1.0}).rowcount) == 0
    assert store.write(lambda tx: known.run(tx.connection, {"total": 1.0}).rowcount) == 1
    assert store.read(lambda tx: tx.rounds.get(round_.task_id, 1)) != round_


def test_several_rows_are_not_taken_for_one(store: Store) -> None:
    open_round(store)
    with pytest.raises(ValueError, match="3 rows"):
        store.read(lambda tx: Prepared(select(clients)).run(tx.connection, {}).one_or_none())


def test_a_statement_is_in_the_transaction_of_its_connection(store: Store) -> None:
    task = new_task(store)

    def work(tx: Transaction) -> None:
        tx.events.add(task.task_id, "test", at=NOW)
        raise ROLLED_BACK

    with pytest.raises(RuntimeError, match="rolled back"):
        store.write(work)
    assert store.read(lambda tx: tx.events.of_kind(task.task_id, "test")) == []


def test_an_error_is_that_of_sqlalchemy_and_is_translated(store: Store) -> None:
    round_, _ = open_round(store)
    seen: list[type[BaseException]] = []

    def insert_again(tx: Transaction) -> None:
        try:
            tx.rounds.insert(round_)
        except Exception as error:
            seen.append(type(error))
            raise

    with pytest.raises(CoordinatorError):
        store.write(insert_again)
    assert seen == [IntegrityError]


def test_listeners_see_every_statement(store: Store) -> None:
    task, heard = new_task(store), []

    def listen(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        heard.append(statement)

    event.listen(store.engine, "before_cursor_execute", listen)
    try:
        store.read(lambda tx: tx.tasks.get(task.task_id))
    finally:
        event.remove(store.engine, "before_cursor_execute", listen)
    assert [statement for statement in heard if "FROM tasks" in statement]


def test_a_lost_connection_is_found_and_replaced(store: Store) -> None:
    task = new_task(store)
    if store.engine.dialect.name != "postgresql":
        pytest.skip("SQLite has no connection to lose")

    def lose(tx: Transaction) -> None:
        session = tx.connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        with store.engine.begin() as other:
            other.execute(text("SELECT pg_terminate_backend(:session)"), {"session": session})
        tx.tasks.get(task.task_id)

    with pytest.raises(StoreBusy):
        store.write(lose)
    assert store.write(lambda tx: tx.tasks.get(task.task_id)) == task
