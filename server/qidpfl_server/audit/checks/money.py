"""Money: each payment follows from the reward, the declared budgets and the accepted updates."""

from qidpfl_shared.core.money import split_reward
from qidpfl_shared.core.planning import Standing

from ...domain import BudgetState
from ..records import RoundRecord
from ..report import Report


def audit_money(record: RoundRecord, report: Report) -> None:
    """Payments and the kept amount add up to the reward, split by the declared budgets."""
    round_, payments = record.round_, record.payments
    if not record.settled:
        unpaid = not payments and round_.kept_micro is None
        report.require(unpaid, f"{record.place}: payments in a round that is {round_.state}")
        return
    paid = sum(payments.values())
    report.require(
        round_.kept_micro is not None and paid + round_.kept_micro == round_.reward_micro,
        f"{record.place}: {paid} paid and {round_.kept_micro} kept are not the reward {round_.reward_micro}",
    )
    for client_id in payments:
        earned = _has_earned(record, client_id)
        report.require(earned, f"{record.place}: client {client_id} was paid without having earned it")
    due = _due(record)
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


def _due(record: RoundRecord) -> dict[str, int]:
    """The amount that each client must be paid. The share of a withdrawn budget is kept."""
    declared = record.in_order(client_id for client_id, budget in record.budgets.items() if budget.rho > 0)
    arrived = [client_id in record.updates and bool(record.updates[client_id].accepted) for client_id in declared]
    split = split_reward(
        reward_micro=record.round_.reward_micro,
        declared=[record.budgets[client_id].rho for client_id in declared],
        delivered=arrived,
    )
    parts = zip(declared, split.payments, arrived, strict=True)
    return {client_id: amount for client_id, amount, there in parts if there}
