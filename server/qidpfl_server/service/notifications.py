"""Long polls: one cached state per task serves all waiting requests, which hold no thread and no connection."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import anyio.to_thread
import structlog

from ..errors import DamagedState, is_transient
from ..store.changes.feed import ChangeFeed
from ..store.changes.known import Change, News
from ..store.store import Store
from ..store.transaction import Transaction
from .views import AnnouncementState, announcement_state

_log = structlog.get_logger()
# How often the change counter is read: rarely if commits are announced, as PostgreSQL does. Between programs that do
# not announce theirs (of an earlier release, or behind a proxy that lets no announcement pass) it is read often.
_LOOK_EVERY_S = 1.0
_ANNOUNCED_LOOK_EVERY_S = 5.0
_LOOK_OFTEN_FOR_S = 30.0
# Callers are forgotten at most this often, except for changes of tokens, which forget them at once.
_FORGET_EVERY_S = 1.0


class TaskChannel:
    """The cached state of one task, and the requests that wait for a later one."""

    def __init__(self) -> None:
        self.state: AnnouncementState | None = None
        self.reading = asyncio.Lock()
        # How many states the writer has published.
        self.published = 0
        # What each waiting request knows: round and attempt; None if it waits for any change.
        self._waiting: dict[asyncio.Future[None], tuple[int, int] | None] = {}

    async def wait(self, timeout_s: float, known: tuple[int, int] | None) -> None:
        """Return when there is something later than `known`, after the timeout, or when all are woken."""
        loop = asyncio.get_running_loop()
        woken = loop.create_future()
        self._waiting[woken] = known
        timer = loop.call_later(timeout_s, _wake, woken)
        try:
            await woken
        finally:
            timer.cancel()
            del self._waiting[woken]

    def replace_state(self, state: AnnouncementState | None) -> None:
        """Replace the state and wake the requests to which it says something new."""
        self.state = state
        for woken, known in self._waiting.items():
            if known is None or state is None or state.task.ended or state.is_newer_than(known):
                _wake(woken)

    def wake_all(self) -> None:
        """Wake all waiting requests."""
        for woken in self._waiting:
            _wake(woken)


def _wake(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)


@dataclass(frozen=True)
class _Commit:
    """What a commit of this process changes: the tasks, those that are due, and the new states of requested tasks."""

    touched: frozenset[str] = frozenset()
    due: frozenset[str] = frozenset()
    states: Mapping[str, AnnouncementState | None] = field(default_factory=dict)


class ChangeNotifier:
    """Keeps the state of each requested task fresh: from the commits of this process, and of others on its store.

    Other processes announce their commits if the database can, and a look at the change counter finds the rest. The
    writer of the store reads the state inside the transaction that changes it, so that no reader has to.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._channels: dict[str, TaskChannel] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stale: set[str] = set()
        self._wake = asyncio.Event()
        self._closing = False
        self.ended = False
        # Announces the commits of other processes; None with SQLite.
        self._feed: ChangeFeed | None = None
        self._next_look_s = 0.0
        # Until when it is read often, because a commit was not announced.
        self._look_often_until_s = 0.0
        # Another process has changed tasks; the listeners to such changes are called when this time has come.
        self._foreign_change = False
        self._next_forget_s = 0.0
        # Of the transaction that is being committed. Used by the writer thread only.
        self._noted = _Commit()
        self._listeners: list[Callable[[set[str]], None]] = []
        self._due_listeners: list[Callable[[set[str]], None]] = []
        self._foreign_listeners: list[Callable[[], None]] = []
        self._foreign_due_listeners: list[Callable[[], None]] = []

    def listen(self) -> None:
        """Subscribe to the commits of the store. Call it on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._store.before_commit(self._note)
        self._store.on_commit(self._from_writer)

    def on_change(self, listener: Callable[[set[str]], None]) -> None:
        """Call `listener` on the event loop with the ids of changed tasks (empty: any task may have changed)."""
        self._listeners.append(listener)

    def on_due(self, listener: Callable[[set[str]], None]) -> None:
        """Call `listener` on the event loop with the ids of tasks that a commit of this process has made due."""
        self._due_listeners.append(listener)

    def on_foreign_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` on the event loop when another process has changed the store."""
        self._foreign_listeners.append(listener)

    def on_foreign_due(self, listener: Callable[[], None]) -> None:
        """Call `listener` on the event loop when another process has a step to run, which it may die with."""
        self._foreign_due_listeners.append(listener)

    @property
    def closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Answer all waiting requests, because the server stops."""
        self._closing = True
        self._wake.set()
        for channel in self._channels.values():
            channel.wake_all()

    async def current(self, task_id: str) -> AnnouncementState | None:
        """The state of a task, read from the store at the first request. None if there is no such task."""
        channel = self._channels.setdefault(task_id, TaskChannel())
        if channel.state is None:
            await self._refresh(task_id, channel, first=True)
            if channel.state is None:
                self._channels.pop(task_id, None)
        return channel.state

    async def wait(self, task_id: str, timeout_s: float, known: tuple[int, int] | None = None) -> None:
        """Return when the task has changed, after the timeout, or when the server stops.

        A caller that knows an announcement, by its round and attempt, is not woken by changes that announce nothing.
        """
        if not self._closing:
            await self._channels.setdefault(task_id, TaskChannel()).wait(timeout_s, known)

    async def run(self) -> None:
        """Refresh changed tasks until closed; look for changes that nothing announces. Sets `ended`."""
        self._feed = self._store.follow(self._from_feed, self._from_new_feed)
        try:
            while not self._closing:
                try:
                    async with asyncio.timeout(1.0):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                self._wake.clear()
                try:
                    await self._look_and_refresh()
                except Exception as error:
                    _log.warning("store_unavailable", reason=str(error))
        finally:
            if self._feed is not None:
                await anyio.to_thread.run_sync(self._feed.stop)
            self.ended = True

    async def _look_and_refresh(self) -> None:
        now = time.monotonic()
        if now >= self._next_look_s:
            self._next_look_s = now + _LOOK_EVERY_S
            await self._check_change_counter()
            if self._feed is not None and self._feed.connected and now >= self._look_often_until_s:
                self._next_look_s = now + _ANNOUNCED_LOOK_EVERY_S
        if self._foreign_change and now >= self._next_forget_s:
            self._tell_foreign_change()
        await self._refresh_stale()

    async def _refresh_stale(self) -> None:
        stale, self._stale = self._stale, set()
        for task_id in stale & set(self._channels):
            channel = self._channels.setdefault(task_id, TaskChannel())
            try:
                await self._refresh(task_id, channel)
            except Exception as error:
                if is_transient(error):
                    self._stale |= stale
                    raise
                # The requests that wait for it repeat their read and get the error. Other tasks go on.
                _log.error("task_unreadable", task=task_id, reason=str(error))
                channel.replace_state(None)
        if stale:
            self._notify(stale)

    async def _check_change_counter(self) -> None:
        """Refresh everything if there were commits that this process has not heard of."""
        counter = await anyio.to_thread.run_sync(self._store.read, lambda tx: tx.change_counter())
        if self._store.changes.misses(counter):
            self._refresh_all()

    def _refresh_all(self) -> None:
        """Treat all tasks as changed, because a commit was not announced."""
        self._look_often_until_s = time.monotonic() + _LOOK_OFTEN_FOR_S
        self._stale |= set(self._channels)
        self._tell_foreign_change()
        self._notify(set())
        self._wake.set()

    def _tell_foreign_change(self) -> None:
        self._foreign_change = False
        self._next_forget_s = time.monotonic() + _FORGET_EVERY_S
        for listener in self._foreign_listeners:
            listener()

    def _from_feed(self, change: Change) -> None:
        """Take an announcement in the thread of the feed. Most are those of this process itself."""
        if (news := self._store.changes.hear_of(change.number)) is not News.NONE:
            self._on_loop(lambda: self._refresh_changed(change, news))

    def _from_new_feed(self) -> None:
        """Look at the counter now: commits of the time without a feed were not announced."""
        self._on_loop(self._look_now)

    def _on_loop(self, work: Callable[[], None]) -> None:
        # The loop may end at any moment, and its end needs no announcements.
        with suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(work)

    def _look_now(self) -> None:
        self._next_look_s = 0.0
        self._wake.set()

    def _refresh_changed(self, change: Change, news: News) -> None:
        """Refresh what a commit of another process has changed."""
        if news is News.MISSED or change.everything:
            self._refresh_all()
            return
        if change.due:
            for listener in self._foreign_due_listeners:
                listener()
        if change.tokens:
            self._tell_foreign_change()
        if change.task_ids:
            self._foreign_change = True
            self._stale |= change.task_ids
            self._wake.set()

    async def _refresh(self, task_id: str, channel: TaskChannel, *, first: bool = False) -> None:
        # One read at a time, so that an older state never replaces a newer one.
        async with channel.reading:
            if first and channel.state is not None:
                return
            while True:
                published = channel.published
                state = await anyio.to_thread.run_sync(self._store.read, lambda tx: announcement_state(tx, task_id))
                if published == channel.published:
                    break
            channel.replace_state(state)

    def _notify(self, task_ids: set[str]) -> None:
        for listener in self._listeners:
            listener(task_ids)

    def _note(self, tx: Transaction) -> None:
        """Note what a transaction changes. The last part of it, in the writer thread."""
        states: dict[str, AnnouncementState | None] = {}
        for task_id in tx.touched:
            if task_id in self._channels:
                # A row that cannot be read must not roll the transaction back. The refresh finds and logs it.
                with suppress(DamagedState):
                    states[task_id] = announcement_state(tx, task_id)
        self._noted = _Commit(frozenset(tx.touched), frozenset(tx.due), states)

    def _from_writer(self, changed: set[str]) -> None:
        if changed and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._publish, self._noted)

    def _publish(self, commit: _Commit) -> None:
        for task_id, state in commit.states.items():
            if (channel := self._channels.get(task_id)) is not None:
                channel.published += 1
                channel.replace_state(state)
        if commit.due:
            for listener in self._due_listeners:
                listener(set(commit.due))
        if unread := commit.touched - commit.states.keys():
            self._stale |= unread
            self._wake.set()
        if read := commit.touched & commit.states.keys():
            self._notify(set(read))
