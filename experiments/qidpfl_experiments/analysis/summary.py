"""The summary of a condition: results, privacy guarantee and time per round of each method, as means over the seeds."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..methods import QI_DPFL, Method
from ..results.equal_terms import epsilon_for_money, money_for_rho
from ..results.tables import CellRow, ClientRow, Guarantee, RoundRow, Tables
from .conditions import methods_in
from .statistics import Estimate, estimate

_WEAKEST_FIRST = (Guarantee.NONE, Guarantee.HEURISTIC, Guarantee.PROVEN)
# The parts of a round. Their sum is its duration.
PARTS: dict[str, Callable[[RoundRow], float]] = {
    "training": lambda row: row.training_s,
    "HTTP, journals and waiting": lambda row: row.http_s,
    "settlement": lambda row: row.settlement_s,
    "evaluation": lambda row: row.evaluation_s,
}


@dataclass(frozen=True, kw_only=True)
class SummaryRow:
    """One method under one condition.

    Accuracies are fractions. ε is that of the worst client; `guarantee` says how strong it is. The last two are the ε
    for the money of QI-DPFL, and the money for its ε, seed by seed.
    """

    method: Method
    seeds: int
    accuracy: Estimate | None
    mean_accuracy: Estimate | None
    reward: Estimate | None
    cost: Estimate | None
    epsilon: Estimate | None
    guarantee: Guarantee
    kept: Estimate | None
    clients: int
    epsilon_at_equal_money: Estimate | None = None
    money_at_equal_epsilon: Estimate | None = None


@dataclass(frozen=True, kw_only=True)
class TimeRow:
    """The mean duration of a round of one method, in seconds, by part."""

    method: Method
    parts: tuple[float, ...]

    @property
    def whole(self) -> float:
        """The sum of the parts."""
        return math.fsum(self.parts)


def summary(tables: Tables) -> tuple[SummaryRow, ...]:
    """The summary of every method, from the finished cells of one condition."""
    return tuple(_summary_of(tables, method) for method in methods_in(tables.cells))


def _summary_of(tables: Tables, method: Method) -> SummaryRow:
    cells = [cell for cell in tables.cells if cell.method == method.name]
    return SummaryRow(
        method=method,
        seeds=len(cells),
        accuracy=estimate(cell.accuracy for cell in cells),
        mean_accuracy=estimate(cell.mean_accuracy for cell in cells),
        reward=estimate(cell.reward for cell in cells),
        cost=estimate(cell.cost for cell in cells),
        epsilon=estimate(cell.epsilon for cell in cells),
        guarantee=guarantee_of(tables, method),
        kept=estimate(float(cell.selected) for cell in cells),
        clients=max(cell.clients for cell in cells),
        epsilon_at_equal_money=estimate(_at_equal_money(tables, cell) for cell in cells),
        money_at_equal_epsilon=estimate(_at_equal_epsilon(tables, cell) for cell in cells),
    )


def _at_equal_money(tables: Tables, cell: CellRow) -> float | None:
    reference = _reference(tables, cell)
    return None if reference is None else epsilon_for_money(cell, _clients(tables, cell), reference.paid)


def _at_equal_epsilon(tables: Tables, cell: CellRow) -> float | None:
    reference = _reference(tables, cell)
    if reference is None or reference.spent_rho is None:
        return None
    return money_for_rho(cell, _clients(tables, cell), reference.spent_rho)


def _reference(tables: Tables, cell: CellRow) -> CellRow | None:
    """QI-DPFL with the same seed."""
    found = (one for one in tables.cells if one.method == QI_DPFL.name and one.seed == cell.seed and one.paid > 0)
    return next(found, None)


def _clients(tables: Tables, cell: CellRow) -> list[ClientRow]:
    return [row for row in tables.clients if row.method == cell.method and row.seed == cell.seed]


def times(tables: Tables) -> tuple[TimeRow, ...]:
    """The time per round of every method, from the rounds of one condition."""
    return tuple(TimeRow(method=method, parts=_parts(tables, method)) for method in methods_in(tables.rounds))


def _parts(tables: Tables, method: Method) -> tuple[float, ...]:
    rows = [row for row in tables.rounds if row.method == method.name]
    return tuple(math.fsum(column(row) for row in rows) / len(rows) for column in PARTS.values())


def guarantee_of(tables: Tables, method: Method) -> Guarantee:
    """The weakest guarantee of the finished cells of a method.

    If one client has an unprotected release, the method has no guarantee, even if other clients released only a noised
    histogram and have a small epsilon.
    """
    ledgers = [row for row in tables.clients if row.method == method.name]
    found = {cell.guarantee or Guarantee.NONE for cell in tables.cells if cell.method == method.name}
    if not found or any(row.epsilon is None for row in ledgers):
        return Guarantee.NONE
    return min(found, key=_WEAKEST_FIRST.index)


def heuristic_methods(tables: Tables) -> tuple[Method, ...]:
    """The methods whose noise is only a heuristic."""
    return methods_in(cell for cell in tables.cells if cell.guarantee is Guarantee.HEURISTIC)
