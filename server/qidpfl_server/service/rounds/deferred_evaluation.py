"""Evaluates the model of a settled round while the clients already play the next one.

A settlement defers the evaluation only if nothing depends on the accuracy before the next round opens. It first makes
sure that the round before has its scores: so at most one model of a task waits, and it is the newest one.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakValueDictionary

from qidpfl_shared.core.reward import RewardPolicy
from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.protocol.wire import decode

from ...clock import Micros
from ...domain import Round, Task
from ...errors import DamagedState
from ...store.store import Store
from ...store.transaction import Transaction
from ..evaluation import Evaluator
from ..scoring import Evaluation
from .settlement_timer import Stopwatch, Timing


@dataclass(frozen=True, kw_only=True)
class _Waiting:
    """A settled round that waits for its evaluation, and the digest of its model."""

    task: Task
    round_: Round
    digest: str


class _Turns:
    """One evaluation of a task at a time in this process: a second caller waits instead of doing the same work."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: WeakValueDictionary[tuple[int, str], _Turn] = WeakValueDictionary()

    def of(self, store: Store, task_id: str) -> "_Turn":
        with self._guard:
            return self._locks.setdefault((id(store), task_id), _Turn())


class _Turn:
    def __init__(self) -> None:
        self.lock = threading.Lock()


_TURNS = _Turns()


def may_be_deferred(spec: TaskSpec) -> bool:
    """Whether nothing depends on the accuracy of a round before the next one opens.

    A target decides whether the task goes on, and the operator's own reward rule sees the accuracies so far.
    """
    return spec.target_accuracy is None and spec.game.policy is not RewardPolicy.OWN


def evaluate_settled(
    store: Store,
    task_id: str,
    evaluator: Evaluator,
    clock_now: Micros,
    *,
    observe: Callable[[Timing], None] | None = None,
) -> bool:
    """Evaluate the model of a settled round that waits for it, and store the scores. Blocks.

    Returns whether this process has stored them. Several processes may compute them; one of them stores them. Raises
    `DamagedState` if the model cannot be read.
    """
    turn = _TURNS.of(store, task_id)
    watch = Stopwatch(clock_now)
    stored = False
    with turn.lock:
        while (waiting := store.read(lambda tx: _read_waiting(tx, task_id))) is not None:
            # Outside the transaction: the bytes may come from a network.
            parameters = decode(store.blobs.get(waiting.digest), dimension=waiting.task.spec.dimension)
            timer = Stopwatch(watch.now())
            with timer.evaluating():
                evaluation = evaluator.evaluate(waiting.task.spec, parameters)
            failpoint("evaluate.computed")
            timing = Timing(settlement_s=None, evaluation_s=timer.timing(evaluated=evaluation is not None).evaluation_s)
            stored = _written(store, waiting.round_, evaluation, timing, timer.now())
            failpoint("evaluate.after_commit")
            if stored and observe is not None:
                observe(timing)
    return stored


def _read_waiting(tx: Transaction, task_id: str) -> _Waiting | None:
    task, rounds = tx.tasks.get(task_id), tx.rounds.awaiting_evaluation(task_id)
    if task is None or not rounds:
        return None
    version = rounds[0].round_number
    model = tx.tasks.model(task_id, version)
    if model is None:
        raise DamagedState(f"model version {version} of task {task_id} is missing from table models")
    return _Waiting(task=task, round_=rounds[0], digest=model.digest)


def _written(store: Store, round_: Round, evaluation: Evaluation | None, timing: Timing, now: Micros) -> bool:
    return store.write(lambda tx: _store_scores(tx, round_, evaluation, timing, now))


def _store_scores(tx: Transaction, round_: Round, evaluation: Evaluation | None, timing: Timing, now: Micros) -> bool:
    """Store the scores; False if another process has stored them, or the task was deleted."""
    # Locked, because the entries of a chain are appended one after the other.
    if tx.tasks.get_for_update(round_.task_id) is None:
        return False
    score = None if evaluation is None else evaluation.reported
    if not tx.rounds.set_scores(
        round_,
        accuracy=None if score is None else score.accuracy,
        loss=None if score is None else score.loss,
        evaluation_s=timing.evaluation_s,
        evaluated_at=now,
    ):
        return False
    detail = "no scores" if score is None else f"accuracy {score.accuracy:.4f}"
    if score is not None and score.loss is not None:
        detail += f", loss {score.loss:.4g}"
    tx.events.add(
        round_.task_id,
        "round.evaluated",
        at=now,
        round_number=round_.round_number,
        detail=detail,
        fields=None if score is None else {"accuracy": score.accuracy, "loss": score.loss},
    )
    tx.touch(round_.task_id)
    failpoint("evaluate.before_commit")
    return True
