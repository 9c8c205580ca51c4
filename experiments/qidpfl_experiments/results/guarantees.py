"""What the epsilons of a method are worth: a proof, a heuristic, or nothing."""

from ..methods import Method
from .tables import Guarantee, Tables

_WEAKEST_FIRST = (Guarantee.NONE, Guarantee.HEURISTIC, Guarantee.PROVEN)


def guarantee_of(tables: Tables, method: Method) -> Guarantee:
    """The weakest guarantee of the method's finished cells.

    One client with an unprotected release leaves none, though others may have released nothing but a noised histogram:
    their small epsilons are no guarantee of the method.
    """
    ledgers = [row for row in tables.clients if row.method == method.name]
    found = {cell.guarantee or Guarantee.NONE for cell in tables.cells if cell.method == method.name}
    if not found or any(row.epsilon is None for row in ledgers):
        return Guarantee.NONE
    return min(found, key=_WEAKEST_FIRST.index)


def is_heuristic(tables: Tables) -> bool:
    """Whether the noise of any cell is only a heuristic."""
    return any(cell.guarantee is Guarantee.HEURISTIC for cell in tables.cells)
