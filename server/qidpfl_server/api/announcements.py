"""Long polls: every waiter of a task is woken from one cached board, and holds neither thread nor connection."""

import asyncio
from collections.abc import Callable

import anyio.to_thread

from ..store.store import Store
from ..views import Board, board


class _Feed:
    """The board of one task, and the event that its next version will set."""

    def __init__(self) -> None:
        self.board: Board | None = None
        self.changed = asyncio.Event()


class Announcements:
    """The boards of all tasks that somebody asks for, kept fresh by the store's commits and other processes' pulse."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._feeds: dict[str, _Feed] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stale: set[str] = set()
        self._wake = asyncio.Event()
        self._closing = False
        self._pulse = -1
        self._listeners: list[Callable[[set[str]], None]] = []

    def listen(self) -> None:
        """Start to hear of commits; call it on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._store.on_commit(self._from_writer)

    def on_change(self, listener: Callable[[set[str]], None]) -> None:
        """Call `listener` on the event loop with the ids of changed tasks (empty: any of them may have changed)."""
        self._listeners.append(listener)

    @property
    def closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Answer everybody who waits: the coordinator stops."""
        self._closing = True
        self._wake.set()
        for feed in self._feeds.values():
            feed.changed.set()

    async def current(self, task_id: str) -> Board | None:
        """The board of a task, read at the first time."""
        feed = self._feeds.setdefault(task_id, _Feed())
        if feed.board is None:
            await self._refresh(task_id, feed)
            if feed.board is None:
                self._feeds.pop(task_id, None)
        return feed.board

    async def wait(self, task_id: str, timeout_s: float) -> None:
        """Return when the task has changed, the time is over, or the coordinator stops."""
        feed = self._feeds.setdefault(task_id, _Feed())
        if self._closing:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await feed.changed.wait()
        except TimeoutError:
            return

    async def run(self) -> None:
        """Refresh what has changed, here or (seen once a second) in another process."""
        while not self._closing:
            try:
                async with asyncio.timeout(1.0):
                    await self._wake.wait()
            except TimeoutError:
                await self._look_at_pulse()
            self._wake.clear()
            stale, self._stale = self._stale, set()
            for task_id in stale & set(self._feeds):
                await self._refresh(task_id, self._feeds[task_id])
            if stale:
                self._notify(stale)

    async def _look_at_pulse(self) -> None:
        pulse = await anyio.to_thread.run_sync(self._store.read, lambda tx: tx.pulse())
        if self._pulse not in (-1, pulse):
            self._stale |= set(self._feeds)
            self._notify(set())
        self._pulse = pulse

    async def _refresh(self, task_id: str, feed: _Feed) -> None:
        feed.board = await anyio.to_thread.run_sync(self._store.read, lambda tx: board(tx, task_id))
        feed.changed.set()
        feed.changed = asyncio.Event()

    def _notify(self, task_ids: set[str]) -> None:
        for listener in self._listeners:
            listener(task_ids)

    def _from_writer(self, touched: set[str]) -> None:
        if touched and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._mark, touched)

    def _mark(self, touched: set[str]) -> None:
        self._stale |= touched
        self._wake.set()
