"""Health checks share their work: its cost does not grow with the number of those who ask."""

import asyncio

import pytest

from qidpfl_server.api.health import SharedAnswer
from qidpfl_server.errors import StoreBusy


class Time:
    """A clock that tests move."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Store:
    """A store that answers when it is told to, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = asyncio.Event()

    async def read(self) -> int:
        self.asked += 1
        await self.may_answer.wait()
        return self.asked


def test_all_that_wait_get_one_answer() -> None:
    """Catches one read of the store for each request: a store that hangs then takes a thread for each of them."""

    async def answers() -> tuple[list[int], int]:
        store = Store()
        shared = SharedAnswer(store.read)
        waiting = [asyncio.create_task(shared.get()) for _ in range(1000)]
        await asyncio.sleep(0)
        store.may_answer.set()
        return await asyncio.gather(*waiting), store.asked

    assert asyncio.run(answers()) == ([1] * 1000, 1)


def test_an_answer_is_used_for_a_short_time_only() -> None:
    async def answers() -> list[int]:
        store, clock = Store(), Time()
        store.may_answer.set()
        shared = SharedAnswer(store.read, clock=clock)
        found = [await shared.get(), await shared.get()]
        clock.now = 0.3
        return [*found, await shared.get()]

    assert asyncio.run(answers()) == [1, 1, 2]


def test_an_answer_is_that_of_the_work_that_was_waited_for() -> None:
    """Catches a caller that looks at the next work, which has no answer yet."""

    async def answer() -> int:
        store = Store()
        shared = SharedAnswer(store.read)
        first = asyncio.create_task(shared.get())
        await asyncio.sleep(0)
        assert shared._running is not None

        def start_the_next(_: object) -> None:
            store.may_answer.clear()
            shared._running = asyncio.create_task(shared._run())

        shared._running.add_done_callback(start_the_next)
        store.may_answer.set()
        found = await first
        shared._running.cancel()
        return found

    assert asyncio.run(answer()) == 1


def test_a_store_that_hangs_is_not_waited_for_and_asked_once() -> None:
    async def asked() -> int:
        store = Store()
        shared = SharedAnswer(store.read, timeout_s=0.01)
        for _ in range(3):
            with pytest.raises(StoreBusy):
                await shared.get()
        store.may_answer.set()
        await shared.get()
        return store.asked

    assert asyncio.run(asked()) == 1


def test_an_error_is_the_answer_of_all() -> None:
    async def fail() -> int:
        raise StoreBusy("locked")

    async def ask() -> None:
        shared = SharedAnswer(fail)
        for _ in range(2):
            with pytest.raises(StoreBusy, match="locked"):
                await shared.get()

    asyncio.run(ask())
