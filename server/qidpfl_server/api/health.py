"""What health checks ask, at a cost that does not depend on how many of them there are."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from ..errors import StoreBusy

Answer = TypeVar("Answer")

# How long an answer is good for. A prober asks every few seconds.
_MAX_AGE_S = 0.2
_TIMEOUT_S = 5.0


class SharedAnswer(Generic[Answer]):
    """The answer of `work` for all that ask at the same time, and for those that ask shortly after.

    However many requests wait, `work` runs once. Callers that have waited for five seconds get `StoreBusy`.
    """

    def __init__(
        self,
        work: Callable[[], Awaitable[Answer]],
        *,
        timeout_s: float = _TIMEOUT_S,
        max_age_s: float = _MAX_AGE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._work = work
        self._timeout_s = timeout_s
        self._max_age_s = max_age_s
        self._clock = clock
        self._running: asyncio.Task[Answer] | None = None
        self._ended_at = 0.0

    async def get(self) -> Answer:
        """The answer, or the error that `work` raised."""
        if self._running is None or (self._running.done() and self._clock() - self._ended_at > self._max_age_s):
            self._running = asyncio.create_task(self._run())
            # An error that comes after the last caller has gone is of no interest.
            self._running.add_done_callback(lambda task: task.cancelled() or task.exception())
        # Another caller may start the next one before this caller goes on.
        running = self._running
        done, _ = await asyncio.wait([running], timeout=self._timeout_s)
        if not done:
            raise StoreBusy("the store does not answer")
        return running.result()

    async def _run(self) -> Answer:
        try:
            return await self._work()
        finally:
            self._ended_at = self._clock()
