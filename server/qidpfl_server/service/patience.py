"""When a step of a task fails: what may pass is tried for ever, what nobody foresaw a few times; then the task ends."""

from qidpfl_shared.protocol.messages import RoundState, TaskState

from ..clock import Micros
from ..domain import EndReason
from ..errors import StorageFull, StoreBusy
from ..store.transaction import Transaction
from .lifecycle import end_task, get_task_for_update

# Round and attempt that a task is in; (0, 0) before the first one.
Step = tuple[int, int]

_TRIES = 6
_FIRST_PAUSE_S = 1.0


def is_transient(error: Exception) -> bool:
    """Whether an error is the machine's and not the task's: a store that is away, a disk that is full or unreadable."""
    return isinstance(error, (StoreBusy, StorageFull, OSError, MemoryError))


class RetryPolicy:
    """Counts how often the current step of each task has failed for a reason that nobody foresaw."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[Step, int]] = {}

    def pause_after(self, task_id: str, step: Step) -> float | None:
        """Count one more failure: the seconds until the next try, doubled every time, or None after the last one."""
        known, count = self._failures.get(task_id, (step, 0))
        count = count + 1 if known == step else 1
        self._failures[task_id] = (step, count)
        return None if count >= _TRIES else _FIRST_PAUSE_S * 2 ** (count - 1)


def current_step(tx: Transaction, task_id: str) -> Step:
    """Where a task stands."""
    round_ = tx.rounds.latest(task_id)
    return (0, 0) if round_ is None else (round_.round_number, round_.attempt)


def fail_task(tx: Transaction, task_id: str, step: Step, error: Exception, now: Micros) -> bool:
    """Fail a task that cannot get on; its open round is void. False if somebody else got it on after all.

    Clients read the reason, so that it holds no more than the kind of error; the rest is in the log.
    """
    task = get_task_for_update(tx, task_id)
    if task.ended or current_step(tx, task_id) != step:
        return False
    round_ = tx.rounds.latest(task_id)
    if round_ is not None and round_.state is RoundState.OPEN:
        tx.rounds.void(round_)
    place = "the selection" if round_ is None else f"round {round_.round_number}"
    detail = f"{place} failed {_TRIES} times with {type(error).__name__}"
    end_task(tx, task, TaskState.FAILED, EndReason.STEP_FAILED, now, detail)
    return True
