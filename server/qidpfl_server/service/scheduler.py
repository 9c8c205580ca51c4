"""Runs selection and settlement when they are due: at a deadline, or after a change in the store.

Each step checks in the store whether it is still due, and does nothing if another process was faster. So several
servers may run the scheduler on one store.
"""

import asyncio
import math
import time
from collections.abc import Callable

import anyio
import anyio.to_thread
import structlog
from anyio.abc import TaskGroup

from qidpfl_shared.protocol.messages import RoundState, TaskState

from ..clock import SECOND, Clock, Micros
from ..domain import EndReason, Task
from ..errors import SuspectedDamage, UnreadableBlob, UnreliableBlob, is_transient
from ..logs import LogThrottle
from ..plugins.rules import NO_RULES, RuleRegistry
from ..store.store import Store
from ..store.transaction import Transaction
from .evaluation import Evaluator
from .lifecycle import end_task, get_task, get_task_for_update
from .progress.log import log_closed_round
from .retention import sweep, sweep_at_start
from .rounds.evaluation_worker import EvaluationWorker
from .rounds.planning import round_is_complete
from .rounds.settlement import settle_if_due
from .rounds.settlement_timer import Timing
from .selection import select_clients, selection_is_due, selection_time

# Round and attempt that a task is in; (0, 0) before the first one.
Step = tuple[int, int]

_log = structlog.get_logger()
_LONGEST_SLEEP_S = 5.0
# How long another process has for a step that it can run, before this one looks whether it was run.
_TAKE_OVER_AFTER_S = 2.0
_TRANSIENT_PAUSE_S = 0.5
_SWEEP_EVERY_S = 600.0
_TRIES = 6
# About ten minutes: an object store that loses or changes bytes may be repaired meanwhile.
_UNRELIABLE_TRIES = 40
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 16.0


class RetryPolicy:
    """Counts unexpected errors per step of a task, and says when to try again. Transient errors do not count."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[Step, int]] = {}

    def pause_after(self, task_id: str, step: Step, tries: int = _TRIES) -> float | None:
        """Count one more failure. The seconds until the next try, doubled up to 16, or None after the last one."""
        known, count = self._failures.get(task_id, (step, 0))
        count = count + 1 if known == step else 1
        self._failures[task_id] = (step, count)
        return None if count >= tries else min(_FIRST_PAUSE_S * 2 ** (count - 1), _LONGEST_PAUSE_S)


class Scheduler:
    """Runs due steps in threads, one step per task at a time."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        evaluator_for: Callable[[Task], Evaluator | None],
        rules: RuleRegistry = NO_RULES,
        *,
        defer_from_s: float = math.inf,
    ) -> None:
        self._store = store
        self._clock = clock
        self._evaluator_for = evaluator_for
        self._rules = rules
        self._evaluators: dict[str, Evaluator | None] = {}
        self._wake = asyncio.Event()
        # Whether the store must be asked what is due. The next such look, and the tasks that the last one has read.
        self._must_look = True
        self._next_look_s = 0.0
        self._known: dict[str, Task] = {}
        # Tasks that the writer says are due; and tasks with a step in progress, with whether another one is due.
        self._due_now: set[str] = set()
        self._busy: dict[str, bool] = {}
        self._retries = RetryPolicy()
        self._throttle = LogThrottle()
        self._threads = anyio.CapacityLimiter(2)
        # The last logged error of each task that cannot be read, so that it is logged once.
        self._unreadable: dict[str, str] = {}
        self._without_rules: set[str] = set()
        self._observe: Callable[[Timing], None] | None = None
        self._defer_from_s = defer_from_s
        self._evaluations = EvaluationWorker(store, clock, self.evaluator, self._observed)
        self.ended = False

    def on_settlement(self, observe: Callable[[Timing], None]) -> None:
        """Call `observe` with the duration of each settlement, in the thread that ran it."""
        self._observe = observe

    def _observed(self, timing: Timing) -> None:
        if self._observe is not None:
            self._observe(timing)

    def wake(self, task_ids: set[str]) -> None:
        """Look for due tasks now, because a task has changed."""
        self._must_look = True
        self._wake.set()

    def advance(self, task_ids: set[str]) -> None:
        """Run the next step of these tasks now, without a look at the others."""
        self._due_now |= task_ids
        self._wake.set()

    def stand_by(self) -> None:
        """Look for due tasks in a moment, because another process has a step to run. It may die, or lack rules."""
        self._next_look_s = min(self._next_look_s, time.monotonic() + _TAKE_OVER_AFTER_S)
        self._wake.set()

    def evaluator(self, task: Task) -> Evaluator | None:
        """The evaluator of a task, created at the first call."""
        if task.task_id not in self._evaluators:
            self._evaluators[task.task_id] = self._evaluator_for(task)
        return self._evaluators[task.task_id]

    async def run(self) -> None:
        """Run until cancelled. Sets `ended` at the end."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._evaluations.run)
                while True:
                    self._wake.clear()
                    self._start_due_now(group)
                    if self._must_look or time.monotonic() >= self._next_look_s:
                        self._must_look = False
                        pause = self._start_due_tasks(group, await anyio.to_thread.run_sync(self._due_tasks))
                        self._next_look_s = time.monotonic() + pause
                    with anyio.move_on_after(max(0.0, self._next_look_s - time.monotonic())):
                        await self._wake.wait()
        finally:
            self.ended = True

    def _start_due_now(self, group: TaskGroup) -> None:
        """Start the tasks that the writer says are due. A task that is not known yet needs a look."""
        due, self._due_now = self._due_now, set()
        for task_id in due:
            if (task := self._known.get(task_id)) is None:
                self._must_look = True
            else:
                self._start(group, task)

    def _start_due_tasks(self, group: TaskGroup, tasks: list[tuple[Task, Micros]]) -> float:
        """Start the due tasks. Returns the seconds until the next one is due."""
        now = self._clock.now()
        self._known = {task.task_id: task for task, _ in tasks}
        for task, due in tasks:
            if due <= now:
                self._start(group, task)
        waiting = [(due - now) / SECOND for _, due in tasks if due > now]
        return max(0.01, min([*waiting, _LONGEST_SLEEP_S]))

    def _start(self, group: TaskGroup, task: Task) -> None:
        """Start the next step of a task, or note that it is due after the step in progress."""
        if task.task_id in self._busy:
            self._busy[task.task_id] = True
        elif self._has_rules(task):
            self._busy[task.task_id] = False
            group.start_soon(self._advance, task)

    def _has_rules(self, task: Task) -> bool:
        """Whether this process has the custom rules of a task. If not, logs it once: another server may have them."""
        missing = self._rules.missing(task.spec)
        if missing and task.task_id not in self._without_rules:
            self._without_rules.add(task.task_id)
            _log.error("rules_not_loaded", task=task.task_id, reason="; ".join(missing.values()))
        return not missing

    def _due_tasks(self) -> list[tuple[Task, Micros]]:
        """Each task that has not ended, and when it is due next. Skips unreadable tasks. Raises nothing."""
        now = self._clock.now()
        try:
            try:
                return self._store.read(lambda tx: [due for task in tx.tasks.live() for due in _due(tx, task, now)])
            except Exception as error:
                if is_transient(error):
                    raise
            ids = self._store.read(lambda tx: tx.tasks.live_ids())
            return [due for task_id in ids for due in self._due_times_of(task_id, now)]
        except Exception as error:
            _log.warning("store_unavailable", reason=str(error))
            return []

    def _due_times_of(self, task_id: str, now: Micros) -> list[tuple[Task, Micros]]:
        """The same for one task; empty if it cannot be read."""
        try:
            return self._store.read(lambda tx: _due(tx, get_task(tx, task_id), now))
        except Exception as error:
            if self._unreadable.get(task_id) != str(error):
                self._unreadable[task_id] = str(error)
                _log.error("task_unreadable", task=task_id, reason=str(error))
            return []

    async def keep_clean(self) -> None:
        """Sweep unused blobs at the start, and every ten minutes until cancelled."""
        at_start: Callable[[Store], int] | None = sweep_at_start
        while True:
            try:
                removed = 0
                if at_start is not None:
                    removed = await anyio.to_thread.run_sync(at_start, self._store, limiter=self._threads)
                    at_start = None
                removed += await anyio.to_thread.run_sync(sweep, self._store, limiter=self._threads)
                if removed:
                    _log.info("blobs_swept", removed=removed)
            except Exception as error:
                _log.warning("sweep_failed", reason=str(error))
            await anyio.sleep(_SWEEP_EVERY_S)

    async def _advance(self, task: Task) -> None:
        advanced = False
        try:
            advanced = await anyio.to_thread.run_sync(self._advance_blocking, task, limiter=self._threads)
        except Exception as error:
            # An error in one task must not stop the others.
            await anyio.sleep(await anyio.to_thread.run_sync(self._after_failure, task.task_id, error))
        finally:
            due_again = self._busy.pop(task.task_id)
            self._evaluations.wake()
            # The commit of a step that has advanced the task has caused a look already.
            if due_again or not advanced:
                self.wake({task.task_id})

    def _after_failure(self, task_id: str, error: Exception) -> float:
        """Log a failed step, and fail the task after the last try. Returns the seconds until the next try."""
        if self._may_pass(error):
            if (dropped := self._throttle.dropped(task_id)) is not None:
                _log.warning("step_failed", task=task_id, reason=str(error), dropped=dropped)
            return _TRANSIENT_PAUSE_S
        if isinstance(error, (UnreadableBlob, SuspectedDamage)):
            _log.error("step_failed", task=task_id, reason=str(error))
        else:
            _log.error("step_failed", task=task_id, exc_info=error)
        try:
            step = self._store.read(lambda tx: _current_step(tx, task_id))
            tries = _UNRELIABLE_TRIES if isinstance(error, UnreliableBlob) else _TRIES
            pause = self._retries.pause_after(task_id, step, tries)
            now = self._clock.now()
            if pause is None and self._store.write(lambda tx: fail_task(tx, task_id, step, error, now)):
                _log.error("task_failed", task=task_id, reason=_end_reason(error).value)
        except Exception as another:
            # The step is tried again, and its next failure comes here again.
            _log.warning("store_unavailable", reason=str(another))
            return _TRANSIENT_PAUSE_S
        return pause or 0.0

    def _may_pass(self, error: Exception) -> bool:
        """Whether an error is transient. Only a check of the whole file tells damage from a disk that misread once."""
        return is_transient(error) and not (isinstance(error, SuspectedDamage) and self._store.is_damaged())

    def _advance_blocking(self, task: Task) -> bool:
        """Run the next step of a task if it is due; whether this process has run it."""
        now = self._clock.now()
        if task.state is TaskState.ENROLLING:
            self._store.write(lambda tx: _select_if_due(tx, task.task_id, now, self._rules))
            return False
        closed = settle_if_due(
            self._store,
            task.task_id,
            self.evaluator(task),
            now,
            rules=self._rules,
            observe=self._observe,
            defer_from_s=self._defer_from_s,
        )
        if closed is None:
            return False

        def report(tx: Transaction) -> bool:
            log_closed_round(tx, task, closed.round_number, closed.attempt)
            return bool(tx.rounds.awaiting_evaluation(task.task_id))

        if self._store.read(report):
            self._evaluations.add(task.task_id)
        return True


def _select_if_due(tx: Transaction, task_id: str, now: Micros, rules: RuleRegistry) -> None:
    task = get_task_for_update(tx, task_id)
    if task.state is TaskState.ENROLLING and selection_is_due(tx, task, now):
        select_clients(tx, task, now, rules)


def _due(tx: Transaction, task: Task, now: Micros) -> list[tuple[Task, Micros]]:
    """The task and when it is due next; empty if it waits for nothing."""
    if task.state is TaskState.ENROLLING:
        if task.paused:
            return []
        return [(task, now if selection_is_due(tx, task, now) else max(selection_time(tx, task), now + SECOND))]
    round_ = tx.rounds.latest(task.task_id)
    if round_ is None or round_.state is not RoundState.OPEN:
        return []
    if round_is_complete(tx.rounds, round_, now):
        return [(task, now)]
    return [(task, round_.declare_by + 1 if now <= round_.declare_by else round_.deliver_by + 1)]


def _current_step(tx: Transaction, task_id: str) -> Step:
    round_ = tx.rounds.latest(task_id)
    return (0, 0) if round_ is None else (round_.round_number, round_.attempt)


def fail_task(tx: Transaction, task_id: str, step: Step, error: Exception, now: Micros) -> bool:
    """Fail a task that cannot advance and void its open round. False if another process has advanced it meanwhile.

    Clients read the reason, so it names only the kind of the error; the log has the rest.
    """
    task = get_task_for_update(tx, task_id)
    if task.ended or _current_step(tx, task_id) != step:
        return False
    round_ = tx.rounds.latest(task_id)
    if round_ is not None and round_.state is RoundState.OPEN:
        tx.rounds.void(round_)
    place = "the selection" if round_ is None else f"round {round_.round_number}"
    damaged = _end_reason(error) is EndReason.STATE_DAMAGED
    detail = str(error) if damaged else f"{place} failed {_TRIES} times with {type(error).__name__}"
    end_task(tx, task, TaskState.FAILED, _end_reason(error), now, detail)
    return True


def _end_reason(error: Exception) -> EndReason:
    damaged = isinstance(error, (UnreadableBlob, SuspectedDamage))
    return EndReason.STATE_DAMAGED if damaged else EndReason.STEP_FAILED
