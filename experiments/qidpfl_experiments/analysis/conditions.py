"""Conditions: one data set with one partition, and the rows of the tables that belong to it.

Statistics, figures and claims use finished cells only. Cells that did not finish are listed as failures.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..methods import BY_NAME, Kept, Method, Reward, Role
from ..results.tables import CalibrationRow, CellRow, Key, Tables, TuningRow

FINISHED = "finished"
IID = "iid"
# The paper's Non-IID case can be read as `dirichlet` or as `dirichlet-client`.
PAPER_PARTITIONS = frozenset({IID, "dirichlet", "dirichlet-client"})
PAPER_DATASETS = frozenset({"mnist", "cifar10", "emnist"})


@dataclass(frozen=True, kw_only=True, order=True)
class Condition:
    """A data set and a partition on which methods are compared."""

    dataset: str
    partition: str

    @property
    def title(self) -> str:
        """Its name in texts."""
        return f"{self.dataset}, {self.partition}"

    @property
    def is_iid(self) -> bool:
        """Whether all clients have the same label distribution."""
        return self.partition == IID

    @property
    def is_in_paper(self) -> bool:
        """Whether the paper has such an experiment."""
        return self.dataset in PAPER_DATASETS and self.partition in PAPER_PARTITIONS


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A run that failed: the cell of a method, or a run of a sweep. Tuning runs have no seed."""

    dataset: str
    partition: str
    run: str
    seed: int | None
    state: str
    reason: str


def conditions(tables: Tables) -> tuple[Condition, ...]:
    """The conditions of the tables, in their order. IID comes first in each data set."""
    names = (
        *((row.dataset, row.partition) for row in tables.cells),
        *((row.dataset, row.partition) for row in tables.calibration),
    )
    found = [Condition(dataset=dataset, partition=partition) for dataset, partition in dict.fromkeys(names)]
    datasets = list(dict.fromkeys(condition.dataset for condition in found))
    return tuple(sorted(found, key=lambda condition: (datasets.index(condition.dataset), not condition.is_iid)))


def finished(tables: Tables) -> Tables:
    """The tables without the rows of cells that did not finish."""
    ended = {_key(cell) for cell in tables.cells if cell.state == FINISHED}
    return Tables(
        cells=tuple(row for row in tables.cells if _key(row) in ended),
        rounds=tuple(row for row in tables.rounds if _key(row) in ended),
        clients=tuple(row for row in tables.clients if _key(row) in ended),
        mistakes=tuple(row for row in tables.mistakes if _key(row) in ended),
        calibration=tables.calibration,
        fits=tables.fits,
    )


def compared(tables: Tables) -> Tables:
    """The tables without the runs in which a client lies: they are short, and only their utilities matter."""
    return replace(
        tables,
        cells=tuple(row for row in tables.cells if _is_compared(row)),
        rounds=tuple(row for row in tables.rounds if _is_compared(row)),
        clients=tuple(row for row in tables.clients if _is_compared(row)),
        mistakes=tuple(row for row in tables.mistakes if _is_compared(row)),
    )


def _is_compared(row: Key) -> bool:
    return method_named(row.method).role is not Role.INCENTIVE


def failures(tables: Tables) -> tuple[Failure, ...]:
    """The runs that did not finish: cells, then calibration runs, then tuning runs."""
    cells = (
        _failure(cell, run=cell.method, seed=cell.seed, state=cell.state, reason=cell.reason)
        for cell in tables.cells
        if cell.state != FINISHED
    )
    calibration = (
        _failure(row, run=f"calibration, reward {row.reward:g}", seed=row.seed, reason=row.failure)
        for row in tables.calibration
        if row.accuracy is None
    )
    tuning = (
        _failure(row, run=f"tuning, learning rate {row.learning_rate:g}", reason=row.failure)
        for row in tables.tuning
        if row.accuracy is None
    )
    return (*cells, *calibration, *tuning)


def _failure(
    row: CellRow | CalibrationRow | TuningRow, *, run: str, reason: str, seed: int | None = None, state: str = "failed"
) -> Failure:
    return Failure(
        dataset=row.dataset,
        partition=row.partition,
        run=run,
        seed=seed,
        state=state,
        reason=reason or "no reason given",
    )


def for_condition(tables: Tables, condition: Condition) -> Tables:
    """The rows of one condition."""
    return Tables(
        cells=tuple(row for row in tables.cells if _belongs(row, condition)),
        rounds=tuple(row for row in tables.rounds if _belongs(row, condition)),
        clients=tuple(row for row in tables.clients if _belongs(row, condition)),
        mistakes=tuple(row for row in tables.mistakes if _belongs(row, condition)),
        calibration=tuple(row for row in tables.calibration if _matches(row.dataset, row.partition, condition)),
        fits=tuple(row for row in tables.fits if _matches(row.dataset, row.partition, condition)),
    )


def method_named(name: str) -> Method:
    """The method of this name. A name that is not built in belongs to a custom method."""
    custom = Method(
        name=name,
        title=name,
        kept=Kept.CUSTOM,
        reward=Reward.CUSTOM,
        role=Role.CUSTOM,
        about="a custom method",
    )
    return BY_NAME.get(name, custom)


def methods_in(rows: Iterable[Key]) -> tuple[Method, ...]:
    """The methods of these rows: the built-in ones in their order, then the custom ones by name."""
    names = {row.method for row in rows}
    custom = sorted(names - BY_NAME.keys())
    return (*(method for method in BY_NAME.values() if method.name in names), *(method_named(name) for name in custom))


def _key(row: Key) -> tuple[str, str, str, int]:
    return row.dataset, row.partition, row.method, row.seed


def _belongs(row: Key, condition: Condition) -> bool:
    return _matches(row.dataset, row.partition, condition)


def _matches(dataset: str, partition: str, condition: Condition) -> bool:
    return (dataset, partition) == (condition.dataset, condition.partition)
