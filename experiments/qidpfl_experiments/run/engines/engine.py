"""The port of all engines, and the engine of this machine: one coordinator for all cells."""

from collections.abc import Sequence
from typing import Protocol

from ...results.cells import Cell, CellResult
from ...testbed.services import LocalServices
from ..execute import run_cell

Versions = dict[str, str]


class EngineUnavailable(Exception):
    """An engine cannot be used here: it is not installed, or its cluster does not answer. The message is one line."""


class CellEngine(Protocol):
    """Runs cells. Several threads may call `run` at the same time."""

    def run(self, cell: Cell) -> CellResult:
        """Run a cell to its end. A failure is a failed result."""

    @property
    def stopping(self) -> bool:
        """Whether cells are being stopped before they have ended; what `run` returns is then not a result."""

    def stop(self) -> None:
        """End all cells that are running, as soon as possible."""

    def audit(self) -> str:
        """What the audit of all coordinators has found, in one line."""

    @property
    def versions(self) -> Sequence[Versions]:
        """The versions with which cells were run, where they differ from those of this process."""


class LocalEngine:
    """Runs cells on this machine, on the coordinator of a testbed."""

    versions: Sequence[Versions] = ()

    def __init__(self, testbed: LocalServices) -> None:
        self._testbed = testbed

    def run(self, cell: Cell) -> CellResult:
        return run_cell(cell, self._testbed)

    @property
    def stopping(self) -> bool:
        return self._testbed.stopping

    def stop(self) -> None:
        self._testbed.stop_fleets()

    def audit(self) -> str:
        """Audit the coordinator. Raises `AuditFailed` after a violation."""
        return self._testbed.audit()
