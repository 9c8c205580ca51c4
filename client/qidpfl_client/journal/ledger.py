"""The ledger of a journal: what was released, what that guarantees, what was earned, what is left."""

import json
import math
from dataclasses import dataclass

from qidpfl_shared.core.money import from_micro
from qidpfl_shared.core.privacy.conversion import epsilon_from_rho
from qidpfl_shared.protocol.ledger import SpendState
from qidpfl_shared.protocol.task_spec import TaskSpec

from ..errors import JournalError
from ..owner import in_words
from .journal import Entry, Journal, Membership
from .limits import Limit, finite, or_infinite


@dataclass(frozen=True, kw_only=True)
class JournalLedger:
    """The totals of one journal over all servers and tasks."""

    memberships: tuple[Membership, ...]
    entries: tuple[Entry, ...]
    limits: tuple[Limit, ...]
    spent_rho: float
    reserved_rho: float
    lifetime_rho: float
    remaining_rho: float
    earned_micro: int
    delta: float

    @property
    def epsilon(self) -> float:
        """The epsilon of all releases together, at `delta`."""
        return epsilon_from_rho(rho=self.spent_rho, delta=self.delta)

    @property
    def statement(self) -> str:
        """What all releases together guarantee, as one sentence."""
        if math.isinf(self.spent_rho):
            return "no privacy guarantee: at least one release is unprotected"
        return f"every record: {self.spent_rho:.4g}-zCDP, that is ({self.epsilon:.4g}, {self.delta:g})-DP"


def read_ledger(journal: Journal, *, delta: float | None = None) -> JournalLedger:
    """The ledger of a journal. Without `delta`, that of the latest task is used."""
    memberships, entries, limits = journal.memberships(), journal.entries(), journal.limits.history()
    lifetime = _lifetime(limits, memberships)
    return JournalLedger(
        memberships=tuple(memberships),
        entries=tuple(entries),
        limits=tuple(limits),
        spent_rho=math.fsum(_proven(entries, SpendState.SPENT, SpendState.SPENT_UNPAID)),
        reserved_rho=math.fsum(_proven(entries, SpendState.RESERVED)),
        lifetime_rho=lifetime,
        remaining_rho=journal.account(lifetime_rho=lifetime).remaining_rho,
        earned_micro=sum(entry.payment_micro or 0 for entry in entries),
        delta=_latest_delta(memberships) if delta is None else delta,
    )


def as_json(ledger: JournalLedger) -> str:
    """The ledger as JSON: money in micro-units, null for an unlimited or unguaranteed amount."""
    body = {
        "entries": [
            {
                "task_id": entry.task_id,
                "release": entry.release,
                "mechanism": entry.mechanism,
                "state": entry.state.value,
                "rho": entry.rho,
                "proven_rho": finite(entry.proven_rho),
                "digest": entry.digest,
                "payment_micro": entry.payment_micro,
                "training_s": entry.training_s,
            }
            for entry in ledger.entries
        ],
        "spent_rho": finite(ledger.spent_rho),
        "reserved_rho": finite(ledger.reserved_rho),
        "lifetime_rho": finite(ledger.lifetime_rho),
        "limits": [
            {"recorded_at": limit.recorded_at, "lifetime_rho": finite(limit.lifetime_rho)} for limit in ledger.limits
        ],
        "remaining_rho": finite(ledger.remaining_rho),
        "epsilon": finite(ledger.epsilon),
        "delta": ledger.delta,
        "earned_micro": ledger.earned_micro,
        "statement": ledger.statement,
    }
    return json.dumps(body, indent=2)


def lines(ledger: JournalLedger) -> list[tuple[str, ...]]:
    """The entries as rows of a table: task, release, mechanism, state, declared, proven, paid."""
    return [
        (
            entry.task_id,
            entry.release,
            entry.mechanism,
            entry.state.value,
            f"{entry.rho:.4g}",
            "none" if math.isinf(entry.proven_rho) else f"{entry.proven_rho:.4g}",
            "" if entry.payment_micro is None else f"{from_micro(entry.payment_micro):.6f}",
        )
        for entry in ledger.entries
    ]


def limit_lines(ledger: JournalLedger) -> list[str]:
    """The history of the lifetime limit, one line each, oldest first."""
    return [
        f"{limit.recorded_at}  rho {limit.lifetime_rho:g}, {in_words(limit.lifetime_rho, delta=ledger.delta)}"
        for limit in ledger.limits
    ]


def _proven(entries: list[Entry], *states: SpendState) -> list[float]:
    return [entry.proven_rho for entry in entries if entry.state in states]


def _lifetime(limits: list[Limit], memberships: list[Membership]) -> float:
    """The limit that holds. A journal of an earlier version has only those of its tasks."""
    if limits:
        return limits[-1].lifetime_rho
    return or_infinite(memberships[-1].lifetime_rho) if memberships else math.inf


def _latest_delta(memberships: list[Membership]) -> float:
    if not memberships:
        return 1e-5
    try:
        return TaskSpec.read(memberships[-1].spec).privacy.delta
    except ValueError as error:
        raise JournalError(f"the journal is damaged: the spec of task {memberships[-1].task_id} is invalid") from error
