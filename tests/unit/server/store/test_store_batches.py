"""Writes that wait for the same round are run by one call, inside one commit, each with its own answer."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from qidpfl_server.store.blobs import FolderBlobs
from qidpfl_server.store.database import migrate, open_engine
from qidpfl_server.store.store import RoundKey, Store
from qidpfl_server.store.transaction import Transaction

ONE: RoundKey = ("a", 1)
TWO: RoundKey = ("a", 2)
Calls = list[tuple[str, int, list[int]]]
Double = Callable[[Transaction, str, int, Sequence[int]], list[int | Exception]]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    engine = open_engine(f"sqlite:///{tmp_path}/coordinator.db")
    migrate(engine)
    opened = Store(engine, FolderBlobs(tmp_path / "blobs"))
    yield opened
    opened.close()


@contextmanager
def busy(store: Store) -> Iterator[None]:
    """Keep the writer thread in a transaction, so that later writes wait."""
    begun, free = threading.Event(), threading.Event()

    def wait(_: Transaction) -> None:
        begun.set()
        free.wait(10)

    thread = threading.Thread(target=store.write, args=(wait,))
    thread.start()
    assert begun.wait(10)
    try:
        yield
    finally:
        free.set()
        thread.join()


def doubling(calls: Calls) -> Double:
    """Doubles numbers, refuses negative ones, fails at 13, and says that it changed its task."""

    def double(tx: Transaction, task_id: str, round_number: int, items: Sequence[int]) -> list[int | Exception]:
        calls.append((task_id, round_number, list(items)))
        tx.touch(f"{task_id}{round_number}")
        if 13 in items:
            raise ZeroDivisionError("thirteen")
        return [2 * item if item >= 0 else ValueError(item) for item in items]

    return double


async def submitted(
    store: Store, work: Double, *items: tuple[RoundKey, int], cancelled: Sequence[int] = ()
) -> list[int | BaseException]:
    """The answers to items that all wait for the same commit."""
    with busy(store):
        tasks = [asyncio.create_task(store.write_batched(work, key, item)) for key, item in items]
        await asyncio.sleep(0)
        for index in cancelled:
            tasks[index].cancel()
        await asyncio.sleep(0)
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_one_call_serves_the_items_of_a_round_and_each_gets_its_own_answer(store: Store) -> None:
    calls: Calls = []
    answers = asyncio.run(submitted(store, doubling(calls), (ONE, 1), (TWO, 2), (ONE, -3), (ONE, 4)))
    assert calls == [("a", 1, [1, -3, 4]), ("a", 2, [2])]
    assert [repr(answer) for answer in answers] == ["2", "4", "ValueError(-3)", "8"]


def test_an_error_of_a_batch_is_the_answer_to_its_items_only_and_changes_nothing(store: Store) -> None:
    changed: list[set[str]] = []
    store.on_commit(changed.append)
    answers = asyncio.run(submitted(store, doubling([]), (ONE, 1), (TWO, 2), (ONE, 13)))
    assert [repr(answer) for answer in answers] == [
        "ZeroDivisionError('thirteen')",
        "4",
        "ZeroDivisionError('thirteen')",
    ]
    assert changed[-1] == {"a2"}


def test_different_works_on_one_round_are_different_calls(store: Store) -> None:
    first: Calls = []
    second: Calls = []

    async def scene() -> list[int]:
        with busy(store):
            one = asyncio.create_task(store.write_batched(doubling(first), ONE, 1))
            two = asyncio.create_task(store.write_batched(doubling(second), ONE, 2))
            await asyncio.sleep(0)
        return [await one, await two]

    assert asyncio.run(scene()) == [2, 4]
    assert (first, second) == ([("a", 1, [1])], [("a", 1, [2])])


def test_a_request_that_is_cancelled_while_it_waits_is_left_out(store: Store) -> None:
    calls: Calls = []
    answers = asyncio.run(submitted(store, doubling(calls), (ONE, 1), (ONE, 2), (ONE, 3), cancelled=[1]))
    assert calls == [("a", 1, [1, 3])]
    assert [type(answer) for answer in answers] == [int, asyncio.CancelledError, int]


def test_a_plain_write_in_the_same_commit_is_a_separate_call(store: Store) -> None:
    calls: Calls = []

    async def scene() -> tuple[int, str]:
        with busy(store):
            one = asyncio.create_task(store.write_batched(doubling(calls), ONE, 1))
            plain = asyncio.create_task(store.write_async(lambda tx: "plain"))
            await asyncio.sleep(0)
        return await one, await plain

    assert asyncio.run(scene()) == (2, "plain")
