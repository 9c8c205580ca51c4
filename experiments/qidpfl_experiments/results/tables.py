"""The results as tables: one row per cell, round, client and calibration run; one CSV file per table.

A cell is one task: a method on one partition of a data set with one seed. Money is in units, not micro-units.
"""

import csv
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
    """The cell that a row belongs to."""

    dataset: str
    partition: str
    method: str
    seed: int


class Guarantee(StrEnum):
    """How strong the epsilons of a cell are."""

    PROVEN = "proven"
    HEURISTIC = "heuristic"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class CellRow(Key):
    """The result of one task.

    `accuracy` is measured after the last round, on the half of the test records that decides nothing. `mean_accuracy`
    is its mean over the rounds and shows how fast the model learns. `cost` is the paper's server cost, which is
    computed from its model and not measured; without noise it is empty. `spent_rho` and `epsilon` are those of the
    worst client; without noise there is no guarantee and they are empty. `guarantee` is empty if the cell failed.
    `client_regret`, `server_regret` and `distance` check Theorems 1 to 3 in percent; only the contest has them.
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
    delta: float = 1e-5
    client_regret: float | None = None
    server_regret: float | None = None
    distance: float | None = None


@dataclass(frozen=True, kw_only=True)
class RoundRow(Key):
    """One settled round. `total` is the sum of the budgets at the equilibrium, `declared_total` of the declared ones.

    `wall_s` is the duration of the round. It consists of `training_s` in the fleet, `settlement_s` and `evaluation_s`
    in the coordinator, and the rest, `http_s`, for requests, journals and waiting.
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
    """One client of a task: its profile, whether it was selected, what its ledger says it spent, and its earnings.

    `spent_rho` covers all releases, including the label histogram. It is empty if a release was unprotected. `utility`
    is its payments minus what its budgets cost at its true privacy value; `misreport` is its factor on that value.
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
    utility: float | None = None
    misreport: float = 1.0


@dataclass(frozen=True, kw_only=True)
class MistakesRow(Key):
    """Which test records the last model of a task gets wrong.

    `tested` is the number of records on which its accuracy is reported, `examined` how many of them `wrong` covers.
    """

    tested: int
    examined: int
    wrong: str


@dataclass(frozen=True, kw_only=True)
class CalibrationRow:
    """One run of a calibration: the total budget of a round at this reward, and the validation accuracy.

    The runs with one reward differ in their `draw` of the noise. If the run failed, both are empty and `failure` is the
    reason.
    """

    dataset: str
    partition: str
    seed: int
    reward: float
    selected: int
    total: float | None
    accuracy: float | None
    failure: str = ""
    draw: int = 0


@dataclass(frozen=True, kw_only=True)
class FitRow:
    """The accuracy curve of a calibration with its range of validity, and the admissible rewards.

    The constants are empty if the runs determine no curve, the rewards if no reward is admissible. `target_gap` and
    `target_max_gap` say how far below the ceiling the targets lie; tables of earlier versions do not have them.
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
    target_gap: float | None = None
    target_max_gap: float | None = None


@dataclass(frozen=True, kw_only=True)
class TuningRow:
    """One run of a learning-rate search: the validation accuracy of a method, or the reason why there is none."""

    dataset: str
    partition: str
    learning_rate: float
    accuracy: float | None
    failure: str = ""
    method: str = "qi-dpfl"


Row = TypeVar("Row", CellRow, RoundRow, ClientRow, MistakesRow, CalibrationRow, FitRow, TuningRow)

FILES: dict[type, str] = {
    CellRow: "cells.csv",
    RoundRow: "rounds.csv",
    ClientRow: "clients.csv",
    MistakesRow: "mistakes.csv",
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
    mistakes: tuple[MistakesRow, ...] = ()
    calibration: tuple[CalibrationRow, ...] = ()
    fits: tuple[FitRow, ...] = ()
    tuning: tuple[TuningRow, ...] = ()


def write_tables(folder: Path, tables: Tables) -> None:
    """Write one CSV file per table."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder, CellRow, tables.cells)
    _write(folder, RoundRow, tables.rounds)
    _write(folder, ClientRow, tables.clients)
    _write(folder, MistakesRow, tables.mistakes)
    _write(folder, CalibrationRow, tables.calibration)
    _write(folder, FitRow, tables.fits)
    _write(folder, TuningRow, tables.tuning)


def read_tables(folder: Path) -> Tables:
    """Read all tables. A missing file is an empty table."""
    return Tables(
        cells=_read(folder, CellRow),
        rounds=_read(folder, RoundRow),
        clients=_read(folder, ClientRow),
        mistakes=_read(folder, MistakesRow),
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
    """The function that reads a value of this type from a CSV field."""
    if isinstance(hint, types.UnionType):
        (kind,) = (part for part in get_args(hint) if part is not types.NoneType)
        return lambda text: None if text == "" else _reader(kind)(text)
    return {bool: lambda text: text == "True"}.get(hint, hint)
