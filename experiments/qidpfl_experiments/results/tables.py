"""The results as tidy tables: one row per cell, round, client and calibration run; one CSV file each.

A cell is one task: a method on one partition of a data set with one seed. Money is in units, not micro-units.
"""

import csv
import os
import types
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import ValidationError

from qidpfl_shared.command_line import first_fault
from qidpfl_shared.plugin_loader import described


class DamagedResults(Exception):
    """A file of a results folder cannot be read. The message is one line: the file, the reason and what to do."""

    def __init__(self, path: Path, error: Exception, *, remedy: str = "") -> None:
        reason = first_fault(error) if isinstance(error, ValidationError) else described(error)
        super().__init__("; ".join(filter(None, (f"{path} is damaged: {reason}", remedy))))


@dataclass(frozen=True, kw_only=True, order=True)
class Key:
    """Which cell a row belongs to."""

    dataset: str
    partition: str
    method: str
    seed: int


class Guarantee(StrEnum):
    """What the epsilons of a cell are worth."""

    PROVEN = "proven"
    HEURISTIC = "heuristic"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class CellRow(Key):
    """What came of one task.

    Accuracy is that of the last round on the half of the test records by which nothing is decided; `mean_accuracy` is
    its mean over the rounds, a measure of how fast the model learns. `cost` is the paper's server cost (a model cost,
    not a loss that was measured); nothing of it is known where there is no noise. `spent_rho` and `epsilon` are those
    of the worst client; without noise there is no guarantee, and they are empty. `guarantee` says what they are worth:
    nothing is known of a cell that failed.
    """

    scale: str
    state: str
    reason: str
    clients: int
    selected: int
    rounds: int
    accuracy: float | None
    mean_accuracy: float | None
    loss: float | None
    reward: float
    paid: float
    cost: float | None
    spent_rho: float | None
    epsilon: float | None
    guarantee: Guarantee | None
    model_digest: str
    wall_s: float


@dataclass(frozen=True, kw_only=True)
class RoundRow(Key):
    """One settled round. `total` is the sum of the budgets at the equilibrium, `declared_total` what was declared.

    The seconds from one round to the next are `wall_s`; of these the fleet trained for `training_s`, the coordinator
    settled for `settlement_s` and evaluated for `evaluation_s`; requests, journals and waiting took the rest, `http_s`.
    """

    round_number: int
    accuracy: float | None
    loss: float | None
    reward: float
    paid: float
    cost: float | None
    total: float
    declared_total: float
    updates: int
    wall_s: float
    training_s: float
    http_s: float
    settlement_s: float
    evaluation_s: float


@dataclass(frozen=True, kw_only=True)
class ClientRow(Key):
    """One client of a task: what it is, whether it was kept, what it spent by its own ledger, and what it earned.

    `spent_rho` is everything it released, its label histogram included; empty: a release was unprotected.
    """

    ordinal: int
    size: int
    privacy_value: float
    label_distance: float
    selected: bool
    updates: int
    mean_rho: float
    spent_rho: float | None
    epsilon: float | None
    earned: float


@dataclass(frozen=True, kw_only=True)
class CalibrationRow:
    """One run of a calibration: the total budget that a reward buys in every round, and the validation accuracy.

    `failure` says why there is neither; empty: there are.
    """

    dataset: str
    partition: str
    seed: int
    reward: float
    selected: int
    total: float | None
    accuracy: float | None
    failure: str = ""


@dataclass(frozen=True, kw_only=True)
class FitRow:
    """The accuracy curve of a calibration with its range of validity, and the rewards it admits.

    The constants are empty where the runs determine no curve, the rewards where no reward is admissible.
    """

    dataset: str
    partition: str
    status: str
    ceiling: float | None
    drop: float | None
    rate: float | None
    total_min: float
    total_max: float
    rmse: float
    target: float | None
    target_max: float | None
    range_status: str
    reward_min: float | None
    reward_max: float | None


@dataclass(frozen=True, kw_only=True)
class TuningRow:
    """One run of a search for the learning rate: the validation accuracy of QI-DPFL, or why there is none."""

    dataset: str
    partition: str
    learning_rate: float
    accuracy: float | None
    failure: str = ""


Row = TypeVar("Row", CellRow, RoundRow, ClientRow, CalibrationRow, FitRow, TuningRow)

FILES: dict[type, str] = {
    CellRow: "cells.csv",
    RoundRow: "rounds.csv",
    ClientRow: "clients.csv",
    CalibrationRow: "calibration.csv",
    FitRow: "fits.csv",
    TuningRow: "tuning.csv",
}


@dataclass(frozen=True, kw_only=True)
class Tables:
    """All tables of one results folder."""

    cells: tuple[CellRow, ...] = ()
    rounds: tuple[RoundRow, ...] = ()
    clients: tuple[ClientRow, ...] = ()
    calibration: tuple[CalibrationRow, ...] = ()
    fits: tuple[FitRow, ...] = ()
    tuning: tuple[TuningRow, ...] = ()


def write_tables(folder: Path, tables: Tables) -> None:
    """Write one CSV file per table."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder, CellRow, tables.cells)
    _write(folder, RoundRow, tables.rounds)
    _write(folder, ClientRow, tables.clients)
    _write(folder, CalibrationRow, tables.calibration)
    _write(folder, FitRow, tables.fits)
    _write(folder, TuningRow, tables.tuning)


def read_tables(folder: Path) -> Tables:
    """Read them back; a missing file is an empty table."""
    return Tables(
        cells=_read(folder, CellRow),
        rounds=_read(folder, RoundRow),
        clients=_read(folder, ClientRow),
        calibration=_read(folder, CalibrationRow),
        fits=_read(folder, FitRow),
        tuning=_read(folder, TuningRow),
    )


def _write(folder: Path, kind: type[Row], rows: Iterable[Row]) -> None:
    with (folder / FILES[kind]).open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(kind)], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({name: "" if value is None else value for name, value in asdict(row).items()})


def _read(folder: Path, kind: type[Row]) -> tuple[Row, ...]:
    path = folder / FILES[kind]
    if not path.exists():
        return ()
    readers = {name: _reader(hint) for name, hint in get_type_hints(kind).items()}
    try:
        with path.open(newline="") as file:
            return tuple(
                kind(**{name: readers[name](text) for name, text in line.items()}) for line in csv.DictReader(file)
            )
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedResults(path, error) from error


def _reader(hint: Any) -> Any:
    """How a value of this type is read from a CSV cell."""
    if isinstance(hint, types.UnionType):
        (kind,) = (part for part in get_args(hint) if part is not types.NoneType)
        return lambda text: None if text == "" else _reader(kind)(text)
    return {bool: lambda text: text == "True"}.get(hint, hint)


def write_durably(path: Path, text: str) -> None:
    """Replace a file. After a crash it holds either the old text or the new one, never a part."""
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
