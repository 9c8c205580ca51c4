"""The writer remembers the heads of the chains only while no other connection changes the store."""

from contextlib import suppress

import pytest
from sqlalchemy import event, text

from qidpfl_server.errors import CoordinatorError
from qidpfl_server.store.store import Store
from qidpfl_server.store.transaction import Transaction
from support.store_rows import NOW, Open, new_task


def add(store: Store, task_id: str, kind: str = "test") -> None:
    store.write(lambda tx: tx.events.add(task_id, kind, at=NOW))


def sequences(store: Store, task_id: str) -> list[int]:
    return [entry.sequence for entry in store.read(lambda tx: [*tx.chain.entries(task_id)])]


def test_two_servers_extend_one_chain_in_turn(opened: Open) -> None:
    first, second = opened(), opened()
    task_id = new_task(first).task_id
    for _ in range(4):
        add(first, task_id)
        add(first, task_id)
        add(second, task_id)
    found = sequences(first, task_id)
    assert found == list(range(1, len(found) + 1))
    assert first.read(lambda tx: tx.chain.head(task_id)) == second.read(lambda tx: tx.chain.head(task_id))


def test_a_write_that_fails_changes_no_remembered_head(store: Store) -> None:
    task_id = new_task(store).task_id

    def fail(tx: Transaction) -> None:
        tx.events.add(task_id, "test", at=NOW)
        tx.chain.flush()
        raise ValueError("rolled back")

    add(store, task_id)
    with pytest.raises(ValueError, match="rolled back"):
        store.write(fail)
    add(store, task_id)
    found = sequences(store, task_id)
    assert found == list(range(1, len(found) + 1))


def test_a_commit_that_fails_is_not_remembered(store: Store) -> None:
    task_id = new_task(store).task_id
    add(store, task_id)
    before = sequences(store, task_id)

    def fail(_: object) -> None:
        raise OSError("the commit fails")

    event.listen(store.engine, "commit", fail)
    with suppress(CoordinatorError, OSError):
        add(store, task_id)
    event.remove(store.engine, "commit", fail)
    assert sequences(store, task_id) == before
    add(store, task_id)
    assert sequences(store, task_id) == [*before, before[-1] + 1]


def test_a_head_that_another_connection_has_changed_is_read_again(store: Store) -> None:
    task_id = new_task(store).task_id
    add(store, task_id)
    with store.engine.begin() as other:
        other.execute(text("UPDATE chain_heads SET sequence = sequence + 100"))
    add(store, task_id)
    found = sequences(store, task_id)
    assert found[-1] - found[-2] == 101
