"""Progress of a run: one line per finished cell, and on a terminal a bar with the remaining time."""

import threading
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..results.cells import Cell, CellResult, failure_of


class RunProgress:
    """Counts finished cells. It is thread-safe."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._phase = self._bar.add_task("starting", total=None)
        self._done, self._total = 0, 0
        self._lock = threading.Lock()

    def __enter__(self) -> "RunProgress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, line: str) -> None:
        """Print one line."""
        self._bar.console.print(line, markup=False)

    def begin(self, phase: str, cells: int) -> None:
        """Begin a phase with this number of cells."""
        with self._lock:
            self._done, self._total = 0, cells
            self._bar.reset(self._phase, description=phase, total=cells)

    def ended(self, cell: Cell, result: CellResult, *, started: float | None) -> None:
        """Report a finished cell. `started` is None if the cell was not run."""
        with self._lock:
            self._done += 1
            self._bar.advance(self._phase)
            position = f"[{self._done:>{len(str(self._total))}}/{self._total}]"
        took = "not run" if started is None else f"{time.monotonic() - started:.0f} s"
        self.say(f"{position} {cell.name}: {_outcome(result)} ({took})")


def _outcome(result: CellResult) -> str:
    row = result.cell
    if not result.finished:
        return f"FAILED: {failure_of(result)}"
    accuracy = "unevaluated" if row.accuracy is None else f"accuracy {row.accuracy:.4f}"
    reward = f", reward {row.reward:.1f}" if row.reward else ""
    return f"{accuracy}, {row.selected} of {row.clients} clients{reward}"
