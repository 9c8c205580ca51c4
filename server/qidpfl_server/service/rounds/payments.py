"""What a settled round pays, what it holds back, and what becomes of the escrow when a task ends."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction

from qidpfl_shared.core.planning import Standing
from qidpfl_shared.protocol.task_spec import TaskSpec

from ...clock import Micros
from ...domain import Budget, Client, EscrowSettlement, Payment, Round, RoundInvitation, RoundSums
from ...store.transaction import Transaction


@dataclass(frozen=True, kw_only=True)
class RoundPayments:
    """The payment of each client that earned one, and what the server keeps. Together they are the reward."""

    due: dict[str, Payment]
    kept_micro: int


def round_payments(
    task_spec: TaskSpec,
    round_: Round,
    clients: Mapping[str, Client],
    invitations: Mapping[str, RoundInvitation],
    budgets: Mapping[str, Budget],
    accepted: Collection[str],
) -> RoundPayments:
    """Pay by the rules of the task's market those whose updates were accepted."""
    declared = sorted(
        (known for known, budget in budgets.items() if budget.rho > 0), key=lambda known: clients[known].ordinal
    )
    counted = set(accepted)
    split = task_spec.design.split(
        reward_micro=round_.reward_micro,
        total=round_.total,
        declared=[budgets[known].rho for known in declared],
        planned=[invitations[known].expected_rho for known in declared],
        delivered=[known in counted for known in declared],
    )
    held_back = Fraction(0.0 if task_spec.defence is None else task_spec.defence.escrow)
    due = {
        known: _payment(amount, held_back)
        for known, amount in zip(declared, split.payments, strict=True)
        if known in counted
    }
    return RoundPayments(due=due, kept_micro=split.kept)


def sums_of(payments: RoundPayments, invitations: Mapping[str, RoundInvitation], updates: Collection[str]) -> RoundSums:
    """The sums of a settled round, which are stored with it. `updates` are the clients that delivered one."""
    return RoundSums(
        paid_micro=sum(payment.amount_micro for payment in payments.due.values()),
        escrow_micro=sum(payment.escrow_micro for payment in payments.due.values()),
        invited=sum(invitation.standing is Standing.INVITED for invitation in invitations.values()),
        updates=len(updates),
    )


def _payment(amount_micro: int, held_back: Fraction) -> Payment:
    escrow = math.floor(amount_micro * held_back)
    return Payment(amount_micro=amount_micro - escrow, escrow_micro=escrow)


def escrow_settlements(held: Mapping[str, int], clients: Mapping[str, Client]) -> list[EscrowSettlement]:
    """What becomes of the escrow at the end of a task: a client gets it, unless the operator has revoked the client."""
    return [
        EscrowSettlement(client_id=client_id, amount_micro=amount, forfeited=clients[client_id].revoked_at is not None)
        for client_id, amount in sorted(held.items())
    ]


def settle_escrow(tx: Transaction, task_id: str, now: Micros) -> None:
    """Release or forfeit the escrow of a task that ends."""
    held = tx.payments.escrow(task_id)
    if not held:
        return
    settled = escrow_settlements(held, tx.clients.some(held))
    tx.payments.settle_escrow(task_id, settled, now)
    released = sum(settlement.amount_micro for settlement in settled if not settlement.forfeited)
    forfeited = sum(held.values()) - released
    detail = f"{released} micro released, {forfeited} forfeited"
    tx.events.add(task_id, "escrow.settled", at=now, detail=detail)
