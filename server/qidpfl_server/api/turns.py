"""One upload of a client for a round at a time: whoever opens many gets no more than one of them read."""

import asyncio
from collections.abc import AsyncIterator, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio

from qidpfl_shared.protocol.errors import ErrorCode

from ..errors import CoordinatorError

_LONGEST_LINE = 16
# A client that comes again has most likely lost its first connection, which may take minutes to end by itself.
_PATIENCE_S = 1.0


class GivesWay(CoordinatorError):
    """The same client has another upload, or too many of them, under way."""

    code = ErrorCode.TOO_MANY_REQUESTS
    retry_after_s = 1


class Turn:
    """Those who wait for one place, and the scope in which the first of them reads."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.members = 0
        self._reading: anyio.CancelScope | None = None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read a body, until somebody who waits has lost patience."""
        with anyio.CancelScope() as scope:
            self._reading = scope
            try:
                yield
            finally:
                self._reading = None
        if scope.cancelled_caught:
            raise GivesWay("a newer upload of this client has taken its place")

    def give_way(self) -> None:
        """End the reading; what is already being stored is not disturbed."""
        if self._reading is not None:
            self._reading.cancel()


class Turns:
    """The lines in front of all places."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, Turn] = {}

    @asynccontextmanager
    async def turn(self, place: Hashable) -> AsyncIterator[Turn]:
        """Wait for the place; one that is read for long is ended in favour of the newcomer."""
        line = self._lines.setdefault(place, Turn())
        if line.members >= _LONGEST_LINE:
            raise GivesWay("too many uploads of this client at once")
        line.members += 1
        try:
            await _acquire(line)
            try:
                yield line
            finally:
                line.lock.release()
        finally:
            line.members -= 1
            if not line.members:
                del self._lines[place]


async def _acquire(line: Turn) -> None:
    while True:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await line.lock.acquire()
                return
        except TimeoutError:
            line.give_way()
