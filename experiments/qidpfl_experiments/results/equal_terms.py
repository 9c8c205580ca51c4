"""Privacy at equal money and money at equal privacy: what a method would cost on the terms of another one.

In every market the budgets of a round are proportional to its money, as long as no cap binds. A client's histogram does
not depend on money.
"""

from collections.abc import Iterable

from qidpfl_shared.core.privacy.conversion import epsilon_from_rho

from .tables import CellRow, ClientRow, Guarantee


def epsilon_for_money(cell: CellRow, clients: Iterable[ClientRow], money: float) -> float | None:
    """The ε of the worst client if the task paid this much in all; None without a proven guarantee or payments."""
    parts = _parts(cell, clients)
    if not parts:
        return None
    factor = money / cell.paid
    return epsilon_from_rho(rho=max(once + factor * sold for once, sold in parts), delta=cell.delta)


def money_for_rho(cell: CellRow, clients: Iterable[ClientRow], rho: float) -> float | None:
    """What the task would pay in all if its worst client spent this ρ; None if no payment gives that."""
    parts = _parts(cell, clients)
    limits = [(rho - once) / sold for once, sold in parts if sold > 0]
    return cell.paid * min(limits) if limits and min(limits) > 0 else None


def _parts(cell: CellRow, clients: Iterable[ClientRow]) -> list[tuple[float, float]]:
    """What each client has spent once, and what it has sold in the rounds."""
    if cell.guarantee is not Guarantee.PROVEN or cell.paid <= 0:
        return []
    rows = [row for row in clients if row.spent_rho is not None]
    return [(max(0.0, (row.spent_rho or 0.0) - row.updates * row.mean_rho), row.updates * row.mean_rho) for row in rows]
