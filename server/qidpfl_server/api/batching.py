"""Calls that wait at the same time are answered by one piece of work: the more of them, the less each costs."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")
Answer = TypeVar("Answer")

_LARGEST_GROUP = 128


class Together(Generic[Key, Item, Answer]):
    """Gathers items by key. `work` gets a group and returns for each item, in order, its answer or its error.

    A group is what has come while the one before it was being worked on, so that nobody waits for company. An error
    that `work` raises is everybody's.
    """

    def __init__(self, work: Callable[[Key, Sequence[Item]], Awaitable[Sequence[Answer | Exception]]]) -> None:
        self._work = work
        self._waiting: dict[Key, list[tuple[Item, asyncio.Future[Answer]]]] = {}
        self._workers: set[asyncio.Task[None]] = set()

    async def ask(self, key: Key, item: Item) -> Answer:
        """The answer to one item, or its error raised."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if key in self._waiting:
            self._waiting[key].append((item, answer))
        else:
            self._waiting[key] = [(item, answer)]
            worker = asyncio.create_task(self._serve(key))
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        return await answer

    async def _serve(self, key: Key) -> None:
        while waiting := self._waiting[key]:
            group, self._waiting[key] = waiting[:_LARGEST_GROUP], waiting[_LARGEST_GROUP:]
            # Whoever has gone away meanwhile no longer wants an answer.
            group = [(item, answer) for item, answer in group if not answer.done()]
            if group:
                await self._answer(key, group)
        del self._waiting[key]

    async def _answer(self, key: Key, group: list[tuple[Item, "asyncio.Future[Answer]"]]) -> None:
        outcomes: Sequence[Answer | Exception]
        try:
            outcomes = await self._work(key, [item for item, _ in group])
        except Exception as error:
            outcomes = [error] * len(group)
        for (_, answer), outcome in zip(group, outcomes, strict=True):
            if answer.done():
                continue
            if isinstance(outcome, Exception):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)
