"""What a client of a cell has spent. Under common noise this is what the same run with fresh noise would have spent.

A journal records releases with common noise as unprotected, which they are. An experiment reports what a budget costs,
so it charges each of them at what its mechanism proves with fresh noise.
"""

import math

from qidpfl_client.journal.journal import Entry
from qidpfl_client.journal.ledger import JournalLedger
from qidpfl_shared.core.privacy.conversion import epsilon_from_rho
from qidpfl_shared.protocol.ledger import SpendState
from qidpfl_shared.protocol.releases import HISTOGRAM, histogram_release, round_of, round_release
from qidpfl_shared.protocol.task_spec import TaskSpec

from ..results.cells import Cell


def spent_of(cell: Cell, ledger: JournalLedger, *, spec: TaskSpec, size: int) -> tuple[float | None, float | None]:
    """ρ and ε of all releases of a client; both are None if a release was unprotected."""
    rho = ledger.spent_rho
    if cell.unsafe_seed is not None:
        sent = (entry for entry in ledger.entries if entry.state in (SpendState.SPENT, SpendState.SPENT_UNPAID))
        rho = math.fsum(_with_fresh_noise(entry, spec, size) for entry in sent)
    if not math.isfinite(rho):
        return None, None
    return rho, epsilon_from_rho(rho=rho, delta=ledger.delta)


def _with_fresh_noise(entry: Entry, spec: TaskSpec, size: int) -> float:
    number = round_of(entry.release)
    if number is not None:
        return round_release(privacy=spec.privacy, round_number=number, rho=entry.rho, size=size).proven_rho
    # The budget of an exact histogram is 0: it is unprotected with any noise.
    if entry.release == HISTOGRAM and entry.rho > 0:
        return histogram_release(entry.rho).proven_rho
    return entry.proven_rho
