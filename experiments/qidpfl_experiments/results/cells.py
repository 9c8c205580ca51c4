"""Cells: one task each. The settings of a cell, its result, and the file that stores the result.

The file of a finished cell is written atomically: after an interruption it is complete or missing.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from qidpfl_shared.durable_files import write_durably
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.task_spec import TaskSpec

from .tables import CellRow, ClientRow, DamagedResults, Key, MistakesRow, RoundRow


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A task to run.

    `variation` distinguishes the runs of a sweep, which are not part of the comparison. `rules_digest` is the digest of
    a custom method's file: after a change of the file it is another cell.
    """

    key: Key
    scale: str
    preset: str
    overrides: Mapping[str, Any]
    clients: int
    privacy_value: str
    unsafe_seed: int | None = None
    # With a seed, the noise depends on both: other draws are repeats with other noise.
    draw: int = 0
    # One client multiplies its privacy value by this factor.
    misreport: float = 1.0
    variation: str = ""
    rules_digest: str = ""

    @property
    def name(self) -> str:
        """The name of its file and of its task, unique in a results folder."""
        parts = (self.key.dataset, self.key.partition, self.key.method, self.variation, f"seed-{self.key.seed}")
        return ".".join(part for part in parts if part)

    @property
    def spec(self) -> TaskSpec:
        """The specification of its task."""
        return preset(self.preset, self.overrides)

    @property
    def fingerprint(self) -> str:
        """A digest of all settings: cells with other settings have another one."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """The result of a cell: the rows for the tables."""

    fingerprint: str
    cell: CellRow
    rounds: tuple[RoundRow, ...] = ()
    clients: tuple[ClientRow, ...] = ()
    mistakes: MistakesRow | None = None

    @property
    def finished(self) -> bool:
        return self.cell.state == "finished"


def failure_of(result: CellResult) -> str:
    """The reason why there is no accuracy, in one line; empty if there is one."""
    if not result.finished:
        return result.cell.reason or result.cell.state
    return "not evaluated" if result.cell.accuracy is None else ""


_RESULTS = TypeAdapter(CellResult)


def write_result(path: Path, result: CellResult) -> None:
    """Write the file of a result durably."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, json.dumps(asdict(result), indent=1))


class CellFiles:
    """The cell results of a results folder, one file per cell."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "cells"

    def read(self, cell: Cell) -> CellResult | None:
        """The stored result of a cell; None if there is none, or if it failed or has other settings."""
        path = self._path(cell)
        if not path.exists():
            return None
        result = _read(path)
        return result if result.finished and result.fingerprint == cell.fingerprint else None

    def all(self) -> list[CellResult]:
        """All stored results, failures included."""
        return [_read(path) for path in sorted(self._folder.glob("*.json"))]

    def forget(self, method: str) -> None:
        """Remove all results of a method."""
        for path in self._folder.glob("*.json"):
            if _read(path).cell.method == method:
                path.unlink()

    def write(self, cell: Cell, result: CellResult) -> None:
        """Store a result durably."""
        write_result(self._path(cell), result)

    def _path(self, cell: Cell) -> Path:
        return self._folder / f"{cell.name}.json"


def _read(path: Path) -> CellResult:
    try:
        return _RESULTS.validate_json(path.read_bytes())
    except ValidationError as error:
        raise DamagedResults(path, error, remedy="remove it and run the same command again") from error
