"""In a pipe: log lines that say whom a task waits for, and for how long."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from ...clock import SystemClock
from ...domain import Task
from ...errors import CoordinatorError
from ...service.progress.waiting import AwaitedClients, Waiting, waiting_for
from ...store.store import Store
from ...store.transaction import Transaction

_log = structlog.get_logger()
_EVERY_S = 2.0
# A round that waits is reported after this time, and then again each time that it has passed.
_PATIENCE_S = 30.0


@dataclass
class WaitingLog:
    """Remembers what was logged, so that a line is new: more clients, or a round that still waits."""

    _clients: dict[str, tuple[int, int]] = field(default_factory=dict)
    _rounds: dict[str, tuple[tuple[int, int], float]] = field(default_factory=dict)

    def note(self, task: Task, waiting: Waiting, now_s: float) -> None:
        """Log what a task waits for if it is news."""
        who = {"task": task.task_id, "name": task.name}
        if isinstance(waiting, AwaitedClients):
            if self._clients.get(task.task_id) != (waiting.ready, waiting.enrolled):
                self._clients[task.task_id] = waiting.ready, waiting.enrolled
                left = None if waiting.left_s is None else round(waiting.left_s)
                counts = {"ready": waiting.ready, "needed": waiting.needed, "expected": waiting.expected}
                _log.info("waits_for_clients", **who, **counts, left_s=left)
            return
        step = waiting.round_number, waiting.attempt
        known, since = self._rounds.get(task.task_id, (None, now_s))
        if known != step:
            self._rounds[task.task_id] = step, now_s
        elif now_s - since >= _PATIENCE_S:
            self._rounds[task.task_id] = step, now_s
            awaited = list(waiting.awaited)
            _log.info("waits_for_answers", **who, round_number=step[0], awaited=awaited, left_s=round(waiting.left_s))


async def log_waiting(store: Store) -> None:
    """Log whom tasks wait for, until cancelled."""
    log, loop = WaitingLog(), asyncio.get_running_loop()
    while True:
        # The scheduler reports a store that cannot be reached.
        with suppress(CoordinatorError):
            for task, waiting in await asyncio.to_thread(store.read, _waiting):
                log.note(task, waiting, loop.time())
        await asyncio.sleep(_EVERY_S)


def _waiting(tx: Transaction) -> list[tuple[Task, Waiting]]:
    now = SystemClock().now()
    found = [(task, waiting_for(tx, task, now)) for task in tx.tasks.live()]
    return [(task, waiting) for task, waiting in found if waiting is not None]
