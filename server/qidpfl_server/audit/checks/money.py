"""Money: each payment follows from the reward, the declared budgets and the accepted updates."""

from qidpfl_shared.core.planning import Standing

from ...domain import BudgetState, Client, EscrowSettlement, RoundSums, Task
from ...service.lifecycle import RESUMABLE
from ...service.rounds.payments import round_payments
from ..records import RoundRecord
from ..report import Report


def audit_money(record: RoundRecord, report: Report) -> None:
    """Payments, escrow and the kept amount add up to the reward, split by the declared budgets."""
    round_, payments = record.round_, record.payments
    if not record.settled:
        unpaid = not payments and round_.kept_micro is None
        report.require(unpaid, f"{record.place}: payments in a round that is {round_.state}")
        return
    paid = sum(payment.amount_micro for payment in payments.values())
    held = sum(payment.escrow_micro for payment in payments.values())
    report.require(
        round_.kept_micro is not None and paid + held + round_.kept_micro == round_.reward_micro,
        f"{record.place}: {paid} paid, {held} in escrow and {round_.kept_micro} kept are not the reward"
        f" {round_.reward_micro}",
    )
    report.require((round_.kept_micro or 0) >= 0, f"{record.place}: more was paid than the reward")
    if round_.sums is not None:
        sums = RoundSums(
            paid_micro=paid,
            escrow_micro=held,
            invited=sum(one.standing is Standing.INVITED for one in record.invitations.values()),
            updates=len(record.updates),
        )
        report.require(round_.sums == sums, f"{record.place}: its sums are {round_.sums}, but its rows give {sums}")
    for client_id in payments:
        earned = _has_earned(record, client_id)
        report.require(earned, f"{record.place}: client {client_id} was paid without having earned it")
    due = round_payments(
        record.task.spec, round_, record.clients, record.invitations, record.budgets, record.accepted
    ).due
    for client_id in sorted(due.keys() | payments.keys()):
        amount, right = payments.get(client_id), due.get(client_id)
        report.require(
            amount == right, f"{record.place}: client {client_id} was paid {amount}, but its share is {right}"
        )


def _has_earned(record: RoundRecord, client_id: str) -> bool:
    """Whether a client was invited, declared a budget, delivered and passed."""
    invitation, budget = record.invitations.get(client_id), record.budgets.get(client_id)
    update = record.updates.get(client_id)
    return (
        invitation is not None
        and invitation.standing is Standing.INVITED
        and budget is not None
        and budget.state is BudgetState.DECLARED
        and update is not None
        and bool(update.accepted)
    )


def audit_escrow(
    task: Task, clients: dict[str, Client], held: dict[str, int], settled: dict[str, EscrowSettlement], report: Report
) -> None:
    """When a task has ended, the whole escrow of each client is released, or forfeited if the client was revoked."""
    place = f"task {task.name}"
    if not task.ended or (task.reason or "").partition(":")[0] in RESUMABLE:
        report.require(not settled, f"{place}: escrow was settled before the end")
        return
    for client_id in sorted(held.keys() | settled.keys()):
        known, amount = settled.get(client_id), held.get(client_id, 0)
        report.require(
            known is not None and known.amount_micro == amount,
            f"{place}: client {client_id} has {amount} in escrow, of which {known and known.amount_micro} was settled",
        )
        if known is not None:
            revoked = clients[client_id].revoked_at is not None
            report.require(
                revoked or not known.forfeited, f"{place}: client {client_id} lost its escrow without a revocation"
            )
