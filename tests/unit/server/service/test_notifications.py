"""What a commit tells: the new state to waiting clients, and the due task to the scheduler, without a further read."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import text

from qidpfl_server.service import notifications
from qidpfl_server.service.notifications import ChangeNotifier
from qidpfl_server.service.views import announcement_state
from qidpfl_server.store.store import Store
from support.use_cases import UseCases

pytestmark = pytest.mark.slow
TIMEOUT_S = 30


class Listening:
    """A notifier on its event loop, and what it was told."""

    def __init__(self, store: Store) -> None:
        self.notifier = ChangeNotifier(store)
        self.changed: list[set[str]] = []
        self.due: list[set[str]] = []
        self.notifier.on_change(self.changed.append)
        self.notifier.on_due(self.due.append)

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        async def listen() -> None:
            self.notifier.listen()
            running = asyncio.create_task(self.notifier.run())
            try:
                await asyncio.wait_for(work(), TIMEOUT_S)
            finally:
                self.notifier.close()
                await running

        asyncio.run(listen())


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def test_a_settlement_publishes_the_next_announcement_itself(cases: UseCases, monkeypatch: pytest.MonkeyPatch) -> None:
    task, clients = cases.training()
    listening, reads = Listening(cases.store), []
    read = announcement_state

    def counted(tx: Any, task_id: str) -> Any:
        reads.append(tx.is_only_writer)
        return read(tx, task_id)

    monkeypatch.setattr(notifications, "announcement_state", counted)

    async def work() -> None:
        first = await listening.notifier.current(task.task_id)
        assert first is not None and first.round_ is not None and first.round_.round_number == 1
        waiting = asyncio.create_task(listening.notifier.wait(task.task_id, TIMEOUT_S, (1, 1)))
        await asyncio.to_thread(task.play, clients)
        await waiting
        state = await listening.notifier.current(task.task_id)
        assert state is not None and state.round_ is not None and state.round_.round_number == 2

    listening.run(work)
    # The writer reads once for the settlement, and not for each upload. Readers answer the first request and the first
    # look at the change counter.
    assert reads.count(True) == 1
    assert reads.count(False) <= 2


def test_the_last_upload_makes_the_task_due_and_wakes_no_client(cases: UseCases) -> None:
    task, clients = cases.training()
    listening = Listening(cases.store)

    async def work() -> None:
        await listening.notifier.current(task.task_id)
        listening.changed.clear()
        for client in clients:
            await asyncio.to_thread(client.declare)
            await asyncio.to_thread(client.upload)
        await until(lambda: listening.due)
        assert listening.due == [{task.task_id}]
        assert {task.task_id} not in listening.changed

    listening.run(work)


def test_a_read_that_a_commit_has_overtaken_is_repeated(cases: UseCases, monkeypatch: pytest.MonkeyPatch) -> None:
    task, clients = cases.training()
    listening = Listening(cases.store)
    read = announcement_state
    overtaken: list[bool] = []

    def slow(tx: Any, task_id: str) -> Any:
        state = read(tx, task_id)
        if not tx.is_only_writer and not overtaken:
            overtaken.append(True)
            task.play(clients)
        return state

    monkeypatch.setattr(notifications, "announcement_state", slow)

    async def work() -> None:
        state = await listening.notifier.current(task.task_id)
        await until(lambda: listening.changed)
        assert overtaken
        state = await listening.notifier.current(task.task_id)
        assert state is not None and state.round_ is not None and state.round_.round_number == 2

    listening.run(work)


def test_a_row_that_cannot_be_read_does_not_roll_a_transaction_back(cases: UseCases) -> None:
    task, clients = cases.training()
    listening = Listening(cases.store)

    async def work() -> None:
        await listening.notifier.current(task.task_id)
        with cases.store.engine.begin() as connection:
            connection.execute(text("UPDATE models SET digest = 'damaged' WHERE version = 0"))
        await asyncio.to_thread(clients[0].leave)
        await until(lambda: task.now and clients[0].now.state == "left")

    listening.run(work)
