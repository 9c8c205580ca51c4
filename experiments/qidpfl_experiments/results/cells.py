"""Cells: one task each. What is to be run, what came of it, and the file that keeps it.

The file of a finished cell is written at once and whole: whatever interrupts a run, a cell is there or it is not.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.task_spec import TaskSpec

from .tables import CellRow, ClientRow, DamagedResults, Key, RoundRow, write_durably


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A task to run. `variation` tells apart the runs of a sweep, which are no cells of the comparison.

    `rules_digest` is that of the user's own rules, so that other rules of the same name are another cell.
    """

    key: Key
    scale: str
    preset: str
    overrides: Mapping[str, Any]
    clients: int
    privacy_value: str
    unsafe_seed: int | None = None
    variation: str = ""
    rules_digest: str = ""

    @property
    def name(self) -> str:
        """A name that no other cell of a results folder has, and that files and tasks can bear."""
        parts = (self.key.dataset, self.key.partition, self.key.method, self.variation, f"seed-{self.key.seed}")
        return ".".join(part for part in parts if part)

    @property
    def spec(self) -> TaskSpec:
        """The spec of its task."""
        return preset(self.preset, self.overrides)

    @property
    def fingerprint(self) -> str:
        """What tells this cell from one with other settings."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """What came of a cell."""

    fingerprint: str
    cell: CellRow
    rounds: tuple[RoundRow, ...] = ()
    clients: tuple[ClientRow, ...] = ()

    @property
    def finished(self) -> bool:
        return self.cell.state == "finished"


def failure_of(result: CellResult) -> str:
    """Why there is no accuracy, in one line; empty: there is one."""
    if not result.finished:
        return result.cell.reason or result.cell.state
    return "it was not evaluated" if result.cell.accuracy is None else ""


_RESULTS = TypeAdapter(CellResult)


class CellFiles:
    """The results of a folder, one file per cell."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "cells"

    def read(self, cell: Cell) -> CellResult | None:
        """What is there of a cell. The result of other settings, or of a failure, counts for nothing."""
        path = self._path(cell)
        if not path.exists():
            return None
        result = _read(path)
        return result if result.finished and result.fingerprint == cell.fingerprint else None

    def all(self) -> list[CellResult]:
        """Everything that is there, failures included."""
        return [_read(path) for path in sorted(self._folder.glob("*.json"))]

    def forget(self, method: str) -> None:
        """Remove everything of a method."""
        for path in self._folder.glob("*.json"):
            if _read(path).cell.method == method:
                path.unlink()

    def write(self, cell: Cell, result: CellResult) -> None:
        """Keep a result, durably."""
        path = self._path(cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, json.dumps(asdict(result), indent=1))

    def _path(self, cell: Cell) -> Path:
        return self._folder / f"{cell.name}.json"


def _read(path: Path) -> CellResult:
    try:
        return _RESULTS.validate_json(path.read_bytes())
    except ValidationError as error:
        raise DamagedResults(path, error, remedy="remove it, and the cell is run again") from error
