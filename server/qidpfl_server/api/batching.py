"""Batches of requests: requests that wait at the same time are answered by one piece of work."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")
Answer = TypeVar("Answer")

_MAX_BATCH = 128


class RequestBatcher(Generic[Key, Item, Answer]):
    """Collects items by key. `work` gets a batch and returns, in order, the answer or the error of each item.

    A batch is what arrived while the previous one was in progress: a request never waits for a batch to fill. An
    error that `work` raises is the answer to each item of the batch.
    """

    def __init__(self, work: Callable[[Key, Sequence[Item]], Awaitable[Sequence[Answer | Exception]]]) -> None:
        self._work = work
        self._waiting: dict[Key, list[tuple[Item, asyncio.Future[Answer]]]] = {}
        self._workers: set[asyncio.Task[None]] = set()

    async def submit(self, key: Key, item: Item) -> Answer:
        """The answer to one item. Raises its error."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if key in self._waiting:
            self._waiting[key].append((item, answer))
        else:
            self._waiting[key] = [(item, answer)]
            worker = asyncio.create_task(self._run(key))
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        return await answer

    async def _run(self, key: Key) -> None:
        while waiting := self._waiting[key]:
            batch, self._waiting[key] = waiting[:_MAX_BATCH], waiting[_MAX_BATCH:]
            # A request that was cancelled while it waited needs no answer.
            batch = [(item, answer) for item, answer in batch if not answer.done()]
            if batch:
                _resolve(batch, await self._outcomes(key, [item for item, _ in batch]))
        del self._waiting[key]

    async def _outcomes(self, key: Key, items: list[Item]) -> Sequence[Answer | Exception]:
        try:
            return await self._work(key, items)
        except Exception as error:
            return [error] * len(items)


def _resolve(batch: Sequence[tuple[Item, "asyncio.Future[Answer]"]], outcomes: Sequence[Answer | Exception]) -> None:
    for (_, answer), outcome in zip(batch, outcomes, strict=True):
        if answer.done():
            continue
        if isinstance(outcome, Exception):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)
