"""Two servers of one PostgreSQL store write to the same tasks in opposite orders."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from qidpfl_server.store.store import Store
from qidpfl_server.store.transaction import Transaction
from support.store_rows import NOW, Open, new_task


def add_events(tx: Transaction, task_id: str, _: int, items: Sequence[str]) -> list[None]:
    """Lock a task as every use case does, then write to it."""
    tx.tasks.get_for_update(task_id)
    for kind in items:
        tx.events.add(task_id, kind, at=NOW)
    tx.connection.execute(text("SELECT pg_sleep(0.05)"))
    return [None] * len(items)


def write_together(store: Store, task_ids: Sequence[str], both_wait: threading.Barrier) -> None:
    """Let writes to these tasks wait at the same time, in this order, so that the writer takes them as one batch."""

    def hold(_: Transaction) -> None:
        both_wait.wait(20)

    async def submit() -> None:
        held = asyncio.ensure_future(store.write_async(hold))
        await asyncio.sleep(0.1)
        writes = [store.write_batched(add_events, (task_id, 1), "test") for task_id in task_ids]
        waiting = asyncio.gather(*writes)
        await asyncio.sleep(0.1)
        threading.Thread(target=both_wait.wait, args=(20,)).start()
        await held
        await waiting

    asyncio.run(submit())


def test_two_servers_that_write_to_two_tasks_in_opposite_orders_never_deadlock(opened: Open) -> None:
    first, second = opened(), opened()
    if first.has_one_server:
        pytest.skip("a server locks a SQLite file for itself")
    tasks = [new_task(first, name).task_id for name in ("one", "other")]
    # Two writers that hold their batch, and two threads that let them go.
    both_wait = threading.Barrier(4)
    with ThreadPoolExecutor(2) as threads:
        runs = [
            threads.submit(write_together, store, order, both_wait)
            for store, order in ((first, tasks), (second, tasks[::-1]))
        ]
    for run in runs:
        # The database ends one of two transactions that wait for each other, and its writes fail.
        run.result()
    for task_id in tasks:
        assert written(first, task_id) == 2


def written(store: Store, task_id: str) -> int:
    return len(store.read(lambda tx: tx.events.of_kind(task_id, "test")))
