"""What readers keep in memory of settled rounds. They never change, so a page that asks again reads only later rows.

Only transactions that read share it: what they see is committed. The writer has `Transaction.derived`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from ..domain import RoundSums

# Sums of more tasks than this are not kept at the same time.
_MAX_TASKS = 64
NO_SUMS = RoundSums()


@dataclass
class _TaskSums:
    rounds: dict[int, RoundSums] = field(default_factory=dict)
    # What the rounds up to this one have cost.
    paid: tuple[int, int] = (0, 0)
    costs: dict[int, Any] = field(default_factory=dict)
    accounts: dict[str, Any] = field(default_factory=dict)


class SettledSums:
    """The sums of settled rounds by task, and what they have cost together. Threads may share it."""

    def __init__(self) -> None:
        self._tasks: dict[str, _TaskSums] = {}
        self._lock = Lock()

    def rounds(self, task_id: str) -> Mapping[int, RoundSums]:
        """The known sums of a task, by round."""
        return self._of(task_id).rounds

    def keep(self, task_id: str, sums: Mapping[int, RoundSums]) -> None:
        """Keep the sums of rounds that are settled."""
        self._of(task_id).rounds.update(sums)

    def paid(self, task_id: str) -> tuple[int, int]:
        """(round, micro-units): what the rounds of a task up to this one have cost; (0, 0) if it is not known."""
        return self._of(task_id).paid

    def keep_paid(self, task_id: str, round_number: int, micro: int) -> None:
        """Keep what the settled rounds up to this one have cost."""
        of_task = self._of(task_id)
        of_task.paid = max(of_task.paid, (round_number, micro))

    def costs(self, task_id: str) -> dict[int, Any]:
        """What a use case has computed of settled rounds, by round. It adds to it."""
        return self._of(task_id).costs

    def accounts(self, task_id: str) -> dict[str, Any]:
        """What a use case has computed of settled rounds, by client. It replaces the values, and changes none."""
        return self._of(task_id).accounts

    def _of(self, task_id: str) -> _TaskSums:
        with self._lock:
            if task_id not in self._tasks and len(self._tasks) >= _MAX_TASKS:
                self._tasks.clear()
            return self._tasks.setdefault(task_id, _TaskSums())
