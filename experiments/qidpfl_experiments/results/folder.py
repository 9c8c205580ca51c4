"""A results folder: it belongs to one setup and holds the configuration, the versions, the cells and the tables."""

import fcntl
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from qidpfl_shared.durable_files import write_durably

from ..methods import SWEEPS
from ..settings import Setup
from .calibration import Calibration, write_overrides
from .cells import CellFiles, CellResult
from .tables import CalibrationRow, DamagedResults, Tables, TuningRow, read_tables, write_tables

_OWN_PACKAGES = ("qidpfl-shared", "qidpfl-server", "qidpfl-client", "qidpfl-experiments")
_PACKAGES = (*_OWN_PACKAGES, "torch", "torchvision", "numpy", "scipy", "scikit-learn", "fastapi", "httpx", "pydantic")
CONFIG = "config.json"
WORK = "work"


class NotOurFolder(Exception):
    """The folder cannot be used: it holds other files or other settings, it is empty, or another run uses it."""


class PastRun(BaseModel):
    """A run that has ended: its command, its end, its duration, and the result of the coordinator's audit."""

    command: str
    ended: str
    wall_s: float
    audit: str


class Config(BaseModel):
    """The configuration of a results folder.

    `specs` has the complete task of QI-DPFL for each partition; the tasks of other methods differ from it only as their
    methods do. `own_rules` has the digests of the custom methods. `versions` gets another entry when later runs use
    other versions.
    """

    model_config = ConfigDict(extra="forbid")

    setup: Setup
    reproducible: bool
    specs: dict[str, dict[str, Any]]
    own_rules: dict[str, str] = {}
    versions: list[dict[str, str]]
    runs: list[PastRun] = []


class ResultsFolder:
    """The stored results of one setup."""

    def __init__(self, path: Path, config: Config) -> None:
        self.path = path
        self.cells = CellFiles(path)
        self.is_new = not (path / CONFIG).exists()
        self._bind(config)

    @property
    def work(self) -> Path:
        """The folder for the state of a running testbed."""
        return self.path / WORK

    def _bind(self, asked: Config) -> None:
        if self.is_new:
            self._write_config(asked)
            return
        known = read_config(self.path)
        _check_same(self.path, known, asked)
        # Damaged files are reported before anything runs.
        if not self.cells.all() and read_tables(self.path).cells:
            raise NotOurFolder(f"{self.path} has tables without the files of their cells; choose another --out")
        for name, digest in asked.own_rules.items():
            if known.own_rules.get(name, digest) != digest:
                # Otherwise seeds that are not run again would show results of the old rules.
                self.cells.forget(name)
        if asked.versions[0] not in known.versions:
            known.versions.append(asked.versions[0])
        known.setup.partitions.update(asked.setup.partitions)
        known.specs.update(asked.specs)
        known.own_rules.update(asked.own_rules)
        self._write_config(known)

    def note_run(self, command: str, *, audit: str, wall_s: float, versions: Sequence[dict[str, str]] = ()) -> None:
        """Add a finished run to the configuration, with the `versions` of other machines that ran cells."""
        config = read_config(self.path)
        config.versions += [one for one in versions if one not in config.versions]
        ended = datetime.now(UTC).isoformat(timespec="seconds")
        config.runs.append(PastRun(command=command, ended=ended, wall_s=round(wall_s, 1), audit=audit))
        self._write_config(config)

    def _write_config(self, config: Config) -> None:
        write_durably(self.path / CONFIG, config.model_dump_json(indent=2) + "\n")

    def undo(self) -> None:
        """Remove a new folder in which nothing was run."""
        if self.is_new:
            shutil.rmtree(self.work, ignore_errors=True)
            (self.path / CONFIG).unlink(missing_ok=True)
            with suppress(OSError):
                self.path.rmdir()

    def overrides_file(self, partition: str) -> Path:
        """The file with the admissible rewards of a partition, as overrides of a task."""
        return self.path / f"calibrated-{partition}.json"

    def write(self, calibrations: Iterable[Calibration] = (), tuning: Iterable[TuningRow] = ()) -> Tables:
        """Write the tables with all cells of the folder and these sweeps, and the overrides of each calibration."""
        known = gathered(self.path)
        fresh = list(calibrations)
        for calibration in fresh:
            if calibration.admissible is not None:
                write_overrides(self.overrides_file(calibration.partition), calibration)
        fits = {fit.partition: fit for fit in known.fits} | {item.partition: item.fit for item in fresh if item.fit}
        runs = {(run.partition, run.reward, run.draw): run for run in (*known.calibration, *_runs(fresh))}
        rates = {(row.method, row.partition, row.learning_rate): row for row in (*known.tuning, *tuning)}
        tables = replace(
            known, calibration=tuple(runs.values()), fits=tuple(fits.values()), tuning=tuple(rates.values())
        )
        write_tables(self.path, tables)
        return tables


@contextmanager
def opened(path: Path, config: Config) -> Iterator[ResultsFolder]:
    """Open the results folder of a setup and lock it. The folder is created if it is missing."""
    if path.exists() and not (path / CONFIG).exists() and any(path.iterdir()):
        raise NotOurFolder(f"{path} is not empty and holds no results; choose another --out")
    path.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotOurFolder(f"another run uses {path}; wait for it, or choose another --out") from None
        yield ResultsFolder(path, config)
    finally:
        os.close(descriptor)


def read_config(path: Path) -> Config:
    """Read the configuration of a results folder."""
    file = path / CONFIG
    try:
        return Config.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise DamagedResults(file, error) from error


def gathered(path: Path) -> Tables:
    """The tables of a folder, built again from its cell files. Without cell files the stored tables are used."""
    tables = read_tables(path)
    cells = CellFiles(path).all()
    return _with_cells(tables, cells) if cells else tables


def _check_same(path: Path, known: Config, asked: Config) -> None:
    """Check that all settings are the same. Only partitions and custom methods can be added later.

    Descriptions (`about`) may change.
    """
    shared = known.setup.partitions.keys() & asked.setup.partitions.keys()
    before, now = (_compared_settings(config, shared) for config in (known, asked))
    name = _first_difference(before, now)
    if name in ("dataset", "scale", "variant", "reproducible"):
        raise NotOurFolder(f"{path} holds results with another --{name}: {before[name]}; choose another --out")
    if name:
        raise NotOurFolder(f"{path} holds results with other settings: {name} differs; choose another --out")


def _compared_settings(config: Config, partitions: Set[str]) -> dict[str, Any]:
    setup = config.setup
    values = setup.model_dump(mode="json", exclude={"about", "partitions", "changes", "choices"})
    compared = {name: setup.partitions[name].model_dump(mode="json", exclude={"about"}) for name in partitions}
    return values | {"partitions": compared, "reproducible": config.reproducible}


def _first_difference(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> str:
    """The dotted name of the first value that differs; empty if none does."""
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
    """The tables with these cells. Cells of sweeps are left out: they have separate tables."""
    compared = sorted((item for item in results if item.cell.method not in SWEEPS), key=_order)
    return replace(
        tables,
        cells=tuple(item.cell for item in compared),
        rounds=tuple(row for item in compared for row in item.rounds),
        clients=tuple(row for item in compared for row in item.clients),
        mistakes=tuple(item.mistakes for item in compared if item.mistakes is not None),
    )


def _order(result: CellResult) -> tuple[str, str, int]:
    return result.cell.partition, result.cell.method, result.cell.seed


def versions() -> dict[str, str]:
    """The versions of everything that results depend on."""
    packages = {name: version(name) for name in _PACKAGES}
    cores = f"{os.cpu_count()} cores"
    commit = _commit()
    about = {"python": platform.python_version(), "platform": platform.platform(), "machine": cores}
    return about | packages | ({"commit": commit} if commit else {})


def _commit() -> str:
    """The commit of the checkout and whether it has local changes; empty without a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
