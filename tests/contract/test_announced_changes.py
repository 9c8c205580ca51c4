"""What another server on the same store learns of a commit, and how soon: with LISTEN of PostgreSQL, or by looking."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, NullPool, create_engine, make_url, text

from qidpfl_server.service import notifications
from qidpfl_server.service.notifications import ChangeNotifier
from qidpfl_server.store.blobs import FolderBlobs
from qidpfl_server.store.changes import feed
from qidpfl_server.store.database import migrate, open_engine, separate_connection
from qidpfl_server.store.store import Store
from support.fakes import FakeClock
from support.use_cases import UseCases

TIMEOUT_S = 30
# A look at the counter takes a second on average half of it; an announcement takes milliseconds.
AT_ONCE_S = 0.4


@contextmanager
def servers_on(url: str, folder: Path) -> Iterator[tuple[UseCases, Store]]:
    """A server that plays, and the store of another one that only listens."""
    stores = []
    for _ in range(2):
        engine = open_engine(url)
        migrate(engine)
        stores.append(Store(engine, FolderBlobs(folder / "blobs")))
    try:
        yield UseCases(stores[0], FakeClock()), stores[1]
    finally:
        for store in stores:
            store.close()


def listening(store: Store, work: Callable[[ChangeNotifier], Awaitable[None]]) -> None:
    async def listen() -> None:
        notifier = ChangeNotifier(store)
        notifier.listen()
        running = asyncio.create_task(notifier.run())
        try:
            await asyncio.wait_for(work(notifier), TIMEOUT_S)
        finally:
            notifier.close()
            await running

    asyncio.run(listen())


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def connected(notifier: ChangeNotifier) -> None:
    """Wait until announcements arrive and the changes before them are known."""
    await until(lambda: notifier._feed is not None and notifier._feed.connected)
    await asyncio.sleep(0.3)


async def seconds_until_woken(notifier: ChangeNotifier, task_id: str, change: Callable[[], object]) -> float:
    waiting = asyncio.create_task(notifier.wait(task_id, TIMEOUT_S))
    await asyncio.sleep(0.05)
    await asyncio.to_thread(change)
    start = time.monotonic()
    await waiting
    return time.monotonic() - start


def test_a_commit_on_postgresql_wakes_the_requests_on_the_other_server_at_once(
    postgres_url: str, tmp_path: Path
) -> None:
    with servers_on(postgres_url, tmp_path) as (one, other):
        task, clients = one.training(3)

        async def work(notifier: ChangeNotifier) -> None:
            await connected(notifier)
            await notifier.current(task.task_id)
            took = [
                await seconds_until_woken(notifier, task.task_id, partial(task.play, clients, number))
                for number in (1, 2, 3)
            ]
            print("woken after", *(f"{1000 * seconds:.1f} ms" for seconds in took))
            assert max(took) < AT_ONCE_S
            state = await notifier.current(task.task_id)
            assert state is not None and state.round_ is not None and state.round_.round_number == 4

        listening(other, work)


def test_a_commit_of_a_program_that_announces_nothing_is_found_by_a_look(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an earlier release commits on PostgreSQL, and a command on SQLite."""
    monkeypatch.setattr(notifications, "_ANNOUNCED_LOOK_EVERY_S", 1.0)
    with servers_on(store_url, tmp_path) as (one, other):
        task, _ = one.training(3)

        def change_silently() -> None:
            with one.store.engine.begin() as connection:
                connection.execute(text("UPDATE tasks SET paused_at = 1"))
                connection.execute(text("UPDATE pulse SET changes = changes + 1"))

        async def work(notifier: ChangeNotifier) -> None:
            await notifier.current(task.task_id)
            await asyncio.sleep(1.2)
            assert await seconds_until_woken(notifier, task.task_id, change_silently) < 3.0
            state = await notifier.current(task.task_id)
            assert state is not None and state.task.paused

        listening(other, work)


def test_announcements_come_again_after_the_connection_was_cut(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "_RECONNECT_AFTER_S", 0.1)
    may_connect, connect = threading.Event(), separate_connection
    may_connect.set()

    def held_up(engine: Engine) -> AbstractContextManager[Any]:
        assert may_connect.wait(TIMEOUT_S)
        return connect(engine)

    monkeypatch.setattr(feed, "separate_connection", held_up)
    # No look but the one after the connection comes back.
    for name in ("_LOOK_EVERY_S", "_ANNOUNCED_LOOK_EVERY_S"):
        monkeypatch.setattr(notifications, name, 600.0)
    admin = create_engine(
        make_url(postgres_url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT", poolclass=NullPool
    )
    cut = text(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE datname = current_database() AND query LIKE 'LISTEN%'"
    )
    with servers_on(postgres_url, tmp_path) as (one, other), admin.connect() as connection:
        task, clients = one.training(3)

        async def work(notifier: ChangeNotifier) -> None:
            await connected(notifier)
            await notifier.current(task.task_id)
            may_connect.clear()
            assert connection.execute(cut).scalar_one() == 1
            waiting = asyncio.create_task(notifier.wait(task.task_id, TIMEOUT_S))
            await asyncio.to_thread(task.play, clients, 1)
            assert not waiting.done()
            # A commit of the time without a connection is found when there is one again.
            may_connect.set()
            await asyncio.wait_for(waiting, 5.0)
            await connected(notifier)
            assert await seconds_until_woken(notifier, task.task_id, partial(task.play, clients, 2)) < AT_ONCE_S

        listening(other, work)


def test_a_round_that_is_ready_tells_the_other_server_to_stand_by(postgres_url: str, tmp_path: Path) -> None:
    """And it wakes no client there: nothing has changed for them."""
    with servers_on(postgres_url, tmp_path) as (one, other):
        _, clients = one.training(3)

        async def work(notifier: ChangeNotifier) -> None:
            told: list[bool] = []
            changed: list[set[str]] = []
            await connected(notifier)
            notifier.on_foreign_due(lambda: told.append(True))
            notifier.on_change(changed.append)
            for client in clients:
                await asyncio.to_thread(client.declare)
                await asyncio.to_thread(client.upload)
            await until(lambda: told)
            assert changed == []

        listening(other, work)


def test_a_listening_server_reads_the_counter_rarely(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "_LOOK_OFTEN_FOR_S", 0.0)
    with servers_on(postgres_url, tmp_path) as (one, other):
        one.training(3)
        looks: list[float] = []
        misses = other.changes.misses

        def counted(counter: int) -> bool:
            looks.append(time.monotonic())
            return misses(counter)

        monkeypatch.setattr(other.changes, "misses", counted)

        async def work(notifier: ChangeNotifier) -> None:
            await connected(notifier)
            looks.clear()
            await asyncio.sleep(2.5)
            assert len(looks) <= 1

        listening(other, work)
