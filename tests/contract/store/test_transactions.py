"""Commits, snapshots and the change counter of the store, on SQLite and on PostgreSQL."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from qidpfl_server.domain import Model
from qidpfl_server.errors import DamagedState, RequestRefused
from qidpfl_server.service.lifecycle import get_task, get_task_for_update
from qidpfl_server.store.store import Store
from qidpfl_server.store.transaction import Transaction
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import TaskState
from support.store_rows import NOW, Open, at_once, kinds, new_task


def test_a_refused_write_leaves_nothing_and_does_not_affect_the_others_of_its_commit(store: Store) -> None:
    task_id = new_task(store).task_id
    told: list[set[str]] = []
    store.on_commit(told.append)

    def good(tx: Transaction, name: str) -> str:
        tx.events.add(task_id, name, at=NOW)
        return name

    def refused(tx: Transaction, name: str) -> str:
        tx.touch("never")
        good(tx, name)
        raise RequestRefused(ErrorCode.NOT_FOUND, name)

    def impossible(tx: Transaction, name: str) -> str:
        tx.touch("never")
        good(tx, name)
        tx.tasks.add_model(task_id, Model(version=0, digest="d", momentum_digest=None), NOW)
        return name

    def surprising(tx: Transaction, name: str) -> str:
        good(tx, name)
        raise ZeroDivisionError(name)

    works = [good, refused, good, impossible, surprising, good] * 3
    names = [f"{work.__name__}-{number}" for number, work in enumerate(works)]
    with ThreadPoolExecutor(len(works)) as threads, held_up(store):
        writes = [
            threads.submit(store.write, lambda tx, work=work, name=name: work(tx, name))
            for work, name in zip(works, names, strict=True)
        ]
    expected = {
        "good": type(None),
        "refused": RequestRefused,
        "impossible": DamagedState,
        "surprising": ZeroDivisionError,
    }
    assert [type(write.exception()) for write in writes] == [expected[work.__name__] for work in works]
    assert [write.result() for write in writes if write.exception() is None] == [n for n in names if "good" in n]
    assert {name for name in kinds(store, task_id) if "-" in name} == {name for name in names if "good" in name}
    assert not any("never" in touched for touched in told)


def test_concurrent_writes_are_all_durable_when_they_return(opened: Open) -> None:
    stores = [opened(), opened()]
    task_id = new_task(stores[0]).task_id
    names = [f"write-{number}" for number in range(60)]
    reader = opened()

    def add(store: Store, name: str) -> bool:
        store.write(lambda tx: tx.events.add(task_id, name, at=NOW))
        return name in kinds(reader, task_id)

    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(add, stores * 30, names))
    assert sorted(kind for kind in kinds(stores[0], task_id) if "write" in kind) == sorted(names)


def test_a_write_sees_what_it_wrote_and_so_does_every_later_read(opened: Open) -> None:
    store, other = opened(), opened()
    task_id = new_task(store).task_id

    def write_then_read(tx: Transaction) -> list[str]:
        tx.events.add(task_id, "written", at=NOW)
        return [event.kind for event in tx.events.after(task_id, 0)]

    assert "written" in store.write(write_then_read)
    assert "written" in kinds(store, task_id) and "written" in kinds(other, task_id)


def test_a_snapshot_shows_one_moment_while_others_write(opened: Open) -> None:
    store, other = opened(), opened()
    task_id = new_task(store).task_id

    def read_twice(tx: Transaction) -> bool:
        before = tx.events.after(task_id, 0)
        other.write(lambda tx: tx.events.add(task_id, "in-between", at=NOW))
        return before == tx.events.after(task_id, 0)

    assert store.read(read_twice, snapshot=True)
    assert "in-between" in kinds(store, task_id)


def test_a_read_does_not_wait_for_a_writer_of_the_task(opened: Open) -> None:
    store, other = opened(), opened()
    task_id = new_task(store).task_id

    def change_and_ask(tx: Transaction) -> TaskState:
        get_task_for_update(tx, task_id)
        tx.tasks.move(task_id, before=TaskState.ENROLLING, after=TaskState.TRAINING)
        return other.read(lambda reading: get_task(reading, task_id).state)

    assert store.write(change_and_ask) is TaskState.ENROLLING


def test_the_change_counter_counts_the_commits_that_change_a_task(opened: Open) -> None:
    store, other = opened(), opened()
    task_id = new_task(store).task_id
    start = store.read(lambda tx: tx.change_counter())
    assert start == 1
    store.write(lambda tx: tx.touch(task_id))
    other.write(lambda tx: tx.touch(task_id))
    store.write(lambda tx: tx.events.add(task_id, "quiet", at=NOW))

    def refused(tx: Transaction) -> None:
        tx.touch(task_id)
        raise RequestRefused(ErrorCode.NOT_FOUND)

    with pytest.raises(RequestRefused):
        store.write(refused)
    assert store.read(lambda tx: tx.change_counter()) == start + 2


def test_the_first_counted_changes_of_several_processes_do_not_collide(opened: Open) -> None:
    stores = [opened() for _ in range(4)]
    at_once(stores, lambda store: store.write(lambda tx: tx.touch("a task")))
    # Each process commits by itself.
    assert stores[0].read(lambda tx: tx.change_counter()) == len(stores)


@contextmanager
def held_up(store: Store) -> Iterator[None]:
    """Keep the writer thread busy, so that all writes inside this block share its next commit."""
    busy, go_on = threading.Event(), threading.Event()

    def hold(_: Transaction) -> None:
        busy.set()
        go_on.wait(60)

    with ThreadPoolExecutor(1) as thread:
        holding = thread.submit(store.write, hold)
        busy.wait(60)
        yield
        # Time for the threads to submit their writes; a later write gets a separate commit.
        go_on.wait(0.3)
        go_on.set()
        holding.result()


def test_an_audit_may_compute_for_longer_than_a_writer_may_pause(store: Store) -> None:
    """The fault: PostgreSQL ends a snapshot that is idle for some seconds, while the audit recomputes a model."""
    if store.has_one_server:
        pytest.skip("SQLite ends no transaction")

    def longest_pause(tx: Transaction) -> str:
        return str(tx.connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar())

    assert store.read(longest_pause, snapshot=True) == "10min"
    assert store.read(longest_pause) == store.write(longest_pause) == "4s"
