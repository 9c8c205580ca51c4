"""A results folder: bound to one setup, with the configuration, the versions, the cells and the tables."""

import json
import os
import platform
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .calibration import Calibration, write_overrides
from .cells import CellFiles, CellResult
from .methods import QI_DPFL
from .plans import Planner
from .settings import Setup
from .tables import CalibrationRow, Tables, TuningRow, read_tables, write_tables

_PACKAGES = ("qidpfl-server", "qidpfl-client", "torch", "torchvision", "numpy", "scipy", "scikit-learn", "fastapi")
CONFIG = "config.json"
# Sweeps are no methods: they have tables of their own.
SWEEPS = ("calibration", "tuning")


class OtherSetup(Exception):
    """The folder holds results of other settings."""


class ResultsFolder:
    """Everything that is kept of the runs of one setup."""

    def __init__(self, path: Path, setup: Setup, *, reproducible: bool) -> None:
        self.path = path
        self.cells = CellFiles(path)
        self._config = path / CONFIG
        # Partitions are added one by one; everything else must stay the same.
        self._setup = setup.model_dump(mode="json", exclude={"partitions"}) | {"reproducible": reproducible}
        self._bind(setup)

    def _bind(self, setup: Setup) -> None:
        if self._config.exists():
            known = read_config(self.path)["setup"]
            different = sorted(name for name in self._setup if known.get(name) != self._setup[name])
            if different:
                raise OtherSetup(f"{self.path} holds results with another {different[0]}; choose another --out")
            return
        config = {"setup": self._setup, "spec": _whole_spec(setup), "versions": versions(), "runs": []}
        self.path.mkdir(parents=True, exist_ok=True)
        self._write_config(config)

    def note_run(self, command: str, *, audit: str, wall_s: float) -> None:
        """Add a run to the configuration: when, by which command, and what the coordinator's audit said."""
        config = read_config(self.path)
        ended = datetime.now(UTC).isoformat(timespec="seconds")
        config["runs"].append({"command": command, "ended": ended, "wall_s": round(wall_s, 1), "audit": audit})
        self._write_config(config)

    def _write_config(self, config: dict[str, Any]) -> None:
        unfinished = self._config.with_suffix(".tmp")
        unfinished.write_text(json.dumps(config, indent=2) + "\n")
        unfinished.replace(self._config)

    def overrides_file(self, partition: str) -> Path:
        """Where the admissible rewards of a partition are, as overrides of a task."""
        return self.path / f"calibrated-{partition}.json"

    def write(self, calibrations: Iterable[Calibration] = (), tuning: Iterable[TuningRow] = ()) -> Tables:
        """Write the tables of all cells in the folder, and a file of overrides per calibration."""
        known = read_tables(self.path)
        fresh = list(calibrations)
        for calibration in fresh:
            if calibration.admissible is not None:
                write_overrides(self.overrides_file(calibration.fit.partition), calibration)
        fits = {fit.partition: fit for fit in known.fits} | {item.fit.partition: item.fit for item in fresh}
        runs = {(run.partition, run.reward): run for run in (*known.calibration, *_runs(fresh))}
        rates = {(row.partition, row.learning_rate): row for row in (*known.tuning, *tuning)}
        tables = replace(
            _compared(self.cells.all()),
            calibration=tuple(runs.values()),
            fits=tuple(fits.values()),
            tuning=tuple(rates.values()),
        )
        write_tables(self.path, tables)
        return tables


def _whole_spec(setup: Setup) -> dict[str, Any]:
    """The task of QI-DPFL, with everything that the preset says: the other cells differ as their methods do."""
    cell = Planner(setup=setup).cell(QI_DPFL, partition=next(iter(setup.partitions)), seed=0, rewards=None, leader=None)
    return cell.spec.model_dump(mode="json")


def read_config(path: Path) -> dict[str, Any]:
    """Setup, versions and runs of a results folder."""
    config: dict[str, Any] = json.loads((path / CONFIG).read_text())
    return config


def _runs(calibrations: Iterable[Calibration]) -> list[CalibrationRow]:
    return [run for calibration in calibrations for run in calibration.runs]


def _compared(results: list[CellResult]) -> Tables:
    """The tables of all cells but those of sweeps."""
    compared = sorted((item for item in results if item.cell.method not in SWEEPS), key=_place)
    return Tables(
        cells=tuple(item.cell for item in compared),
        rounds=tuple(row for item in compared for row in item.rounds),
        clients=tuple(row for item in compared for row in item.clients),
    )


def _place(result: CellResult) -> tuple[str, str, int]:
    return result.cell.partition, result.cell.method, result.cell.seed


def versions() -> dict[str, str]:
    """What the results were made with."""
    packages = {name: version(name) for name in _PACKAGES}
    cores = f"{os.cpu_count()} cores"
    return {"python": platform.python_version(), "platform": platform.platform(), "machine": cores} | packages
