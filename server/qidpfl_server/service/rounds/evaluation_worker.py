"""Runs deferred evaluations in threads: at once those of this process, later those that another process has left."""

import asyncio
import time
from collections.abc import Callable

import anyio
import anyio.to_thread
import structlog

from ...clock import Clock, seconds
from ...domain import Task
from ...logs import LogThrottle
from ...store.store import Store
from ...store.transaction import Transaction
from ..evaluation import Evaluator
from .deferred_evaluation import evaluate_settled
from .settlement_timer import Timing

_log = structlog.get_logger()
_LOOK_EVERY_S = 5.0
# So long the process that has settled a round has time to evaluate it, if several share the store.
_HEAD_START_S = 60.0


class EvaluationWorker:
    """Evaluates the models that settlements have left for later, of each task one at a time."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        evaluator_of: Callable[[Task], Evaluator | None],
        observe: Callable[[Timing], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._evaluator_of = evaluator_of
        self._observe = observe
        self._wake = asyncio.Event()
        self._added: set[str] = set()
        self._busy: set[str] = set()
        self._throttle = LogThrottle()
        self._threads = anyio.CapacityLimiter(2)

    def add(self, task_id: str) -> None:
        """Note that this process has settled a round that waits for its evaluation. Any thread may call it."""
        self._added.add(task_id)

    def wake(self) -> None:
        """Start what was added. Call it on the event loop."""
        if self._added:
            self._wake.set()

    async def run(self) -> None:
        """Run until cancelled. A new process looks at once for evaluations that were left by a crash."""
        next_look = time.monotonic()
        async with anyio.create_task_group() as group:
            while True:
                self._wake.clear()
                due = {self._added.pop() for _ in range(len(self._added))}
                if time.monotonic() >= next_look:
                    due |= await anyio.to_thread.run_sync(self._left_over, limiter=self._threads)
                    next_look = time.monotonic() + _LOOK_EVERY_S
                for task_id in due - self._busy:
                    self._busy.add(task_id)
                    group.start_soon(self._evaluate, task_id)
                with anyio.move_on_after(max(0.0, next_look - time.monotonic())):
                    await self._wake.wait()

    def _left_over(self) -> set[str]:
        """The tasks with an evaluation that no process may be working on. Raises nothing."""
        alone, latest = self._store.has_one_server, self._clock.now() - seconds(_HEAD_START_S)

        def read(tx: Transaction) -> set[str]:
            waiting = tx.rounds.awaiting_evaluation()
            return {round_.task_id for round_ in waiting if alone or (round_.settled_at or 0) <= latest}

        try:
            return self._store.read(read)
        except Exception as error:
            _log.warning("store_unavailable", reason=str(error))
            return set()

    async def _evaluate(self, task_id: str) -> None:
        try:
            await anyio.to_thread.run_sync(self._evaluate_blocking, task_id, limiter=self._threads)
        except Exception as error:
            # It still waits: the next look, or the next settlement of the task, tries again.
            if (dropped := self._throttle.dropped(task_id)) is not None:
                _log.warning("evaluation_failed", task=task_id, reason=str(error), dropped=dropped)
        finally:
            self._busy.discard(task_id)

    def _evaluate_blocking(self, task_id: str) -> None:
        task = self._store.read(lambda tx: tx.tasks.get(task_id))
        evaluator = None if task is None else self._evaluator_of(task)
        if evaluator is not None:
            evaluate_settled(self._store, task_id, evaluator, self._clock.now(), observe=self._observe)
