"""Shows how far a task is: one line in a notebook, a bar on a terminal, nothing in a pipe."""

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from qidpfl_client.api import AdminApi
from qidpfl_shared.core.money import from_micro
from qidpfl_shared.protocol.messages import TaskState, TaskView

_POLL_S = 0.3


class TaskProgress:
    """Asks for the state of a task, at most a few times a second, and shows it."""

    def __init__(self, api: AdminApi, task_id: str, *, shown: bool) -> None:
        self._api = api
        self._task_id = task_id
        self._display = _display() if shown else None
        self._next_look = 0.0
        self._seen_rounds = 0
        self._accuracy: float | None = None

    def __enter__(self) -> "TaskProgress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._display is not None:
            self._display.close()

    def look(self) -> None:
        """Show the present state, if the last look was not just now."""
        if self._display is None or time.monotonic() < self._next_look:
            return
        self.show(self._api.task(self._task_id))
        self._next_look = time.monotonic() + _POLL_S

    def show(self, task: TaskView) -> None:
        """Show this state."""
        if self._display is None:
            return
        if task.settled_rounds > self._seen_rounds:
            self._seen_rounds = task.settled_rounds
            self._accuracy = self._api.round(self._task_id, task.settled_rounds).accuracy
        self._display.show(self._line(task), task.settled_rounds, task.horizon)

    def _line(self, task: TaskView) -> str:
        if task.state is TaskState.ENROLLING:
            return f"{task.name}: {task.clients} of {task.spec.rounds.expected_clients or '?'} clients have enrolled"
        accuracy = "" if self._accuracy is None else f", accuracy {self._accuracy:.3f}"
        done = f"{task.state}" if task.state.ended else "rounds"
        return f"{task.name}: {done}{accuracy}, paid {from_micro(task.paid_micro):.2f}"


class _NotebookLine:
    """A line under the cell that is replaced by the next one. It needs no widgets."""

    def __init__(self) -> None:
        from IPython import display

        shown: Any = display.display
        self._handle = shown({"text/plain": "starting"}, raw=True, display_id=True)
        self._shown = ""

    def show(self, line: str, done: int, total: int) -> None:
        text = f"{line} ({done}/{total} rounds)"
        if text != self._shown:
            self._shown = text
            self._handle.update({"text/plain": text}, raw=True)

    def close(self) -> None:
        """The last line stays."""


class _TerminalBar:
    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._bar.add_task("starting", total=None)
        self._bar.start()

    def show(self, line: str, done: int, total: int) -> None:
        self._bar.update(self._task, description=line, completed=done, total=total)

    def close(self) -> None:
        self._bar.stop()


def _display() -> _NotebookLine | _TerminalBar | None:
    if _in_notebook():
        return _NotebookLine()
    console = Console(stderr=True, highlight=False)
    return _TerminalBar(console) if console.is_terminal else None


def _in_notebook() -> bool:
    """Whether this code runs in the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")
