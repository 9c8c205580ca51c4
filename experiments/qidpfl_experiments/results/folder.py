"""A results folder: bound to one setup, with the configuration, the versions, the cells and the tables."""

import fcntl
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ..methods import SWEEPS
from ..settings import Setup
from .calibration import Calibration, write_overrides
from .cells import CellFiles, CellResult
from .tables import CalibrationRow, DamagedResults, Tables, TuningRow, read_tables, write_durably, write_tables

_OWN_PACKAGES = ("qidpfl-shared", "qidpfl-server", "qidpfl-client", "qidpfl-experiments")
_PACKAGES = (*_OWN_PACKAGES, "torch", "torchvision", "numpy", "scipy", "scikit-learn", "fastapi", "httpx", "pydantic")
CONFIG = "config.json"
WORK = "work"


class NotOurFolder(Exception):
    """The folder cannot be used: it holds something else, results of other settings, or nothing; or is in use."""


class PastRun(BaseModel):
    """A run that has ended: when, by which command, and what the coordinator's audit said."""

    command: str
    ended: str
    wall_s: float
    audit: str


class Config(BaseModel):
    """What the results of a folder were made from, and with what.

    `specs` has the whole task of QI-DPFL for each partition, with everything that the preset says: the other cells
    differ as their methods do. `own_rules` are the digests of the user's own methods. Another entry of `versions` says
    that later runs were made with another one of them.
    """

    model_config = ConfigDict(extra="forbid")

    setup: Setup
    reproducible: bool
    specs: dict[str, dict[str, Any]]
    own_rules: dict[str, str] = {}
    versions: list[dict[str, str]]
    runs: list[PastRun] = []


class ResultsFolder:
    """Everything that is kept of the runs of one setup."""

    def __init__(self, path: Path, config: Config) -> None:
        self.path = path
        self.cells = CellFiles(path)
        self.is_new = not (path / CONFIG).exists()
        self._bind(config)

    @property
    def work(self) -> Path:
        """Where a testbed keeps its state while it runs."""
        return self.path / WORK

    def _bind(self, asked: Config) -> None:
        if self.is_new:
            self._write_config(asked)
            return
        known = read_config(self.path)
        _check_same(self.path, known, asked)
        # What cannot be read is said before anything is run.
        if not self.cells.all() and read_tables(self.path).cells:
            raise NotOurFolder(f"{self.path} has tables without the cells they were made from; choose another --out")
        for name, digest in asked.own_rules.items():
            if known.own_rules.get(name, digest) != digest:
                # Seeds that are not run again would still show what the rules were before.
                self.cells.forget(name)
        if asked.versions[0] != known.versions[-1]:
            known.versions.append(asked.versions[0])
        known.setup.partitions.update(asked.setup.partitions)
        known.specs.update(asked.specs)
        known.own_rules.update(asked.own_rules)
        self._write_config(known)

    def note_run(self, command: str, *, audit: str, wall_s: float) -> None:
        """Add a run that has ended to the configuration."""
        config = read_config(self.path)
        ended = datetime.now(UTC).isoformat(timespec="seconds")
        config.runs.append(PastRun(command=command, ended=ended, wall_s=round(wall_s, 1), audit=audit))
        self._write_config(config)

    def _write_config(self, config: Config) -> None:
        write_durably(self.path / CONFIG, config.model_dump_json(indent=2) + "\n")

    def undo(self) -> None:
        """Leave nothing behind of a folder in which nothing was run."""
        if self.is_new:
            shutil.rmtree(self.work, ignore_errors=True)
            (self.path / CONFIG).unlink(missing_ok=True)
            with suppress(OSError):
                self.path.rmdir()

    def overrides_file(self, partition: str) -> Path:
        """Where the admissible rewards of a partition are, as overrides of a task."""
        return self.path / f"calibrated-{partition}.json"

    def write(self, calibrations: Iterable[Calibration] = (), tuning: Iterable[TuningRow] = ()) -> Tables:
        """Write the tables of all cells in the folder, and a file of overrides per calibration."""
        known = gathered(self.path)
        fresh = list(calibrations)
        for calibration in fresh:
            if calibration.admissible is not None:
                write_overrides(self.overrides_file(calibration.partition), calibration)
        fits = {fit.partition: fit for fit in known.fits} | {item.partition: item.fit for item in fresh if item.fit}
        runs = {(run.partition, run.reward): run for run in (*known.calibration, *_runs(fresh))}
        rates = {(row.partition, row.learning_rate): row for row in (*known.tuning, *tuning)}
        tables = replace(
            known, calibration=tuple(runs.values()), fits=tuple(fits.values()), tuning=tuple(rates.values())
        )
        write_tables(self.path, tables)
        return tables


@contextmanager
def opened(path: Path, config: Config) -> Iterator[ResultsFolder]:
    """The results folder of a setup, made where it is missing, and held against other runs."""
    if path.exists() and not (path / CONFIG).exists() and any(path.iterdir()):
        raise NotOurFolder(f"{path} is not empty, and what it holds are no results; choose another --out")
    path.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotOurFolder(f"another run is using {path}") from None
        yield ResultsFolder(path, config)
    finally:
        os.close(descriptor)


def read_config(path: Path) -> Config:
    """Setup, versions and runs of a results folder."""
    file = path / CONFIG
    try:
        return Config.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise DamagedResults(file, error) from error


def gathered(path: Path) -> Tables:
    """The tables of a folder, made anew from the files of its cells: only copies of results are without them."""
    tables = read_tables(path)
    cells = CellFiles(path).all()
    return _with_cells(tables, cells) if cells else tables


def _check_same(path: Path, known: Config, asked: Config) -> None:
    """Partitions and own methods are added one by one; everything else must stay the same."""
    shared = known.setup.partitions.keys() & asked.setup.partitions.keys()
    before, now = (
        config.setup.model_dump(mode="json", exclude={"partitions": config.setup.partitions.keys() - shared})
        | {"reproducible": config.reproducible}
        for config in (known, asked)
    )
    name = _first_difference(before, now)
    if name in ("dataset", "scale", "variant", "reproducible"):
        raise NotOurFolder(f"{path} holds results with another --{name}: {before[name]}; choose another --out")
    if name:
        raise NotOurFolder(f"{path} holds results of other settings: {name} was another; choose another --out")


def _first_difference(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> str:
    """The dotted name of the first value that is not the same; empty if all are."""
    for name in dict.fromkeys((*before, *now)):
        one, other = before.get(name), now.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            found = _first_difference(one, other, f"{prefix}{name}.")
            if found:
                return found
        elif one != other:
            return f"{prefix}{name}"
    return ""


def _runs(calibrations: Iterable[Calibration]) -> list[CalibrationRow]:
    return [run for calibration in calibrations for run in calibration.runs]


def _with_cells(tables: Tables, results: list[CellResult]) -> Tables:
    """The tables with all these cells but those of sweeps, which have tables of their own."""
    compared = sorted((item for item in results if item.cell.method not in SWEEPS), key=_order)
    return replace(
        tables,
        cells=tuple(item.cell for item in compared),
        rounds=tuple(row for item in compared for row in item.rounds),
        clients=tuple(row for item in compared for row in item.clients),
    )


def _order(result: CellResult) -> tuple[str, str, int]:
    return result.cell.partition, result.cell.method, result.cell.seed


def versions() -> dict[str, str]:
    """What results are made with."""
    packages = {name: version(name) for name in _PACKAGES}
    cores = f"{os.cpu_count()} cores"
    commit = _commit()
    about = {"python": platform.python_version(), "platform": platform.platform(), "machine": cores}
    return about | packages | ({"commit": commit} if commit else {})


def _commit() -> str:
    """The commit of the checkout that this is run from, and whether it was changed; empty where there is none."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
