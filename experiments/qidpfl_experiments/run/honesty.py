"""Clients of a cell that lie about their privacy value, and the utility of every client at its true value."""

import math
import random
from collections.abc import Iterable

from qidpfl_client.fleet.behaviours import Behaviour, assign
from qidpfl_client.owner import draw_privacy_value
from qidpfl_shared.core.money import from_micro
from qidpfl_shared.protocol.messages import ClientResult

from ..results.cells import Cell


def misreports(cell: Cell) -> list[str]:
    """The options of a fleet in which one member lies; none if all are honest."""
    if cell.misreport == 1.0:
        return []
    return ["--misreporters", repr(1 / cell.clients), "--misreport-factor", repr(cell.misreport)]


def factor_of(cell: Cell, ordinal: int) -> float:
    """What a client multiplies its privacy value with. The seed chooses the liar, the same for every factor."""
    return cell.misreport if liar(cell) == ordinal else 1.0


def liar(cell: Cell) -> int:
    """The member that lies if one does."""
    roles = assign(clients=cell.clients, shares={Behaviour.MISREPORTER: 1 / cell.clients}, seed=cell.key.seed)
    return roles.index(Behaviour.MISREPORTER)


def utility(cell: Cell, ordinal: int, parts: Iterable[ClientResult], *, privacy_weight: float) -> float:
    """The payments of a client minus what its delivered budgets cost it at its true privacy value."""
    # As a fleet draws it: from the seed and the place of the member.
    value = draw_privacy_value(cell.privacy_value, random.Random(f"{cell.key.seed}/{ordinal}"))
    sent = [part for part in parts if part.delivered]
    paid = math.fsum(from_micro(part.payment_micro) for part in sent)
    return paid - privacy_weight * value * math.fsum(part.rho for part in sent)
