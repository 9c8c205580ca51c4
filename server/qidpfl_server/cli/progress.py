"""Live progress on a terminal: a table of tasks below the log, updated once a second."""

import asyncio
import sys
from contextlib import suppress
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from qidpfl_shared.core.money import MICRO
from qidpfl_shared.core.planning import Standing
from qidpfl_shared.protocol.messages import RoundState

from ..clock import SystemClock
from ..domain import Round, Task
from ..errors import CoordinatorError
from ..service.progress.waiting import Waiting, waiting_for
from ..store.store import Store
from ..store.transaction import Transaction

_EVERY_S = 1.0
# The table must fit on a screen, so it shows only the last of the tasks that have ended.
_MOST_ENDED = 5
_LEAST_NAME = 4
_NUMBERS = ("round", "reward", "updates", "accuracy", "paid", "clients")
_COLUMNS = ("task", "state", *_NUMBERS)


@dataclass(frozen=True, kw_only=True)
class TaskProgress:
    """The newest round of a task, and the accuracy of its newest evaluated model."""

    task: Task
    round_: Round | None
    invited: int
    delivered: int
    accuracy: float | None
    paid_micro: int
    clients: int
    waiting: Waiting | None = None

    def cells(self) -> tuple[str, ...]:
        """One text for each column."""
        state = self.task.reason.partition(":")[0] if self.task.reason else self.task.state.value
        return (
            self.task.name,
            state if state == self.task.state.value else f"{self.task.state.value}: {state}",
            *self._round_cells(),
            "–" if self.accuracy is None else f"{self.accuracy:.1%}",
            f"{self.paid_micro / MICRO:.2f}",
            str(self.clients),
        )

    def _round_cells(self) -> tuple[str, str, str]:
        if self.round_ is None:
            return "–", "–", "–"
        attempt = f", attempt {self.round_.attempt}" if self.round_.attempt > 1 else ""
        return (
            f"{self.round_.round_number}/{self.task.spec.game.horizon}{attempt}",
            f"{self.round_.reward_micro / MICRO:.2f}",
            f"{self.delivered}/{self.invited}",
        )


def is_shown(log_format: str) -> bool:
    """Whether to show the table: standard error is a terminal and the log format is not JSON."""
    return sys.stderr.isatty() and log_format in ("auto", "pretty")


async def show_progress(store: Store) -> None:
    """Update the table until cancelled. The log continues above it."""
    with Live(console=Console(stderr=True), refresh_per_second=2) as live:
        while True:
            # The log already reports a store that cannot be reached; the last table stays.
            with suppress(CoordinatorError):
                read = await asyncio.to_thread(store.read, progress)
                live.update(table(read, width=live.console.width))
            await asyncio.sleep(_EVERY_S)


def table(tasks: list[TaskProgress], *, width: int = 80) -> Group:
    """The tasks as a table for a terminal of 80 columns, and below it one line for what each task waits for."""
    rows = [task.cells() for task in tasks]
    widths = [max(map(len, cells)) for cells in zip(_COLUMNS, *rows, strict=True)]
    drawn = Table(
        # Only the name may be cut: digits and headers stay whole.
        Column("task", no_wrap=True, overflow="ellipsis", max_width=max(_LEAST_NAME, width - sum(widths[1:]) - 8)),
        Column("state", no_wrap=True, min_width=widths[1]),
        *(
            Column(name, justify="right", no_wrap=True, min_width=size)
            for name, size in zip(_NUMBERS, widths[2:], strict=True)
        ),
        box=None,
        padding=(0, 1, 0, 0),
    )
    for row in rows:
        drawn.add_row(*row)
    waiting = [f"{task.task.name}: {task.waiting.in_words()}" for task in tasks if task.waiting is not None]
    return Group(drawn, *map(Text, waiting))


def progress(tx: Transaction) -> list[TaskProgress]:
    """All running tasks and the last ones that have ended, oldest first."""
    tasks = tx.tasks.all()
    ended = [task for task in tasks if task.ended]
    hidden = {task.task_id for task in ended[:-_MOST_ENDED]}
    return [_progress(tx, task) for task in tasks if task.task_id not in hidden]


def _progress(tx: Transaction, task: Task) -> TaskProgress:
    rounds = tx.rounds.of_task(task.task_id)
    round_ = rounds[-1] if rounds else None
    settled = [known for known in rounds if known.state is RoundState.SETTLED]
    number = 0 if round_ is None else round_.round_number
    invitations = tx.rounds.invitations(task.task_id, number).values()
    return TaskProgress(
        task=task,
        round_=round_,
        invited=sum(invitation.standing is Standing.INVITED for invitation in invitations),
        delivered=tx.rounds.update_count(task.task_id, number),
        accuracy=next((known.accuracy for known in reversed(settled) if not known.awaits_evaluation), None),
        paid_micro=tx.payments.total_micro(task.task_id),
        clients=tx.clients.count(task.task_id),
        waiting=waiting_for(tx, task, SystemClock().now()),
    )
