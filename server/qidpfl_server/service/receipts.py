"""Where the chain of a task records what a message acknowledges. The API then signs the message with this position."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from qidpfl_shared.protocol.evidence import ProfileReceipt, profile_digest
from qidpfl_shared.protocol.messages import BudgetReceipt, Profile, UpdateReceipt
from qidpfl_shared.protocol.signatures import SignedMessage

from ..domain import Client
from ..store.guarded import budget_subject, client_subject, round_subject, update_subject
from ..store.transaction import Transaction

Receipt = TypeVar("Receipt", bound=SignedMessage)
Outcome = TypeVar("Outcome")


def with_budget_positions(tx: Transaction, task_id: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes of a batch; the receipts among them with the positions of their budgets."""

    def subject(receipt: BudgetReceipt) -> str:
        return budget_subject(receipt.round_number, receipt.client_id or "")

    return _with_positions(tx, task_id, outcomes, BudgetReceipt, subject)


def with_update_positions(tx: Transaction, task_id: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes of a batch; the receipts among them with the positions of their updates."""

    def subject(receipt: UpdateReceipt) -> str:
        return update_subject(receipt.round_number, receipt.client_id)

    return _with_positions(tx, task_id, outcomes, UpdateReceipt, subject)


def profile_receipt(tx: Transaction, client: Client, profile: Profile) -> ProfileReceipt:
    """The receipt of a stored profile, the same for every repeat: its position is that of the first entry with it."""
    return ProfileReceipt(
        client_id=client.client_id,
        profile_digest=profile_digest(profile),
        chain=tx.chain.position(client.task_id, client_subject(client.client_id), kind="client.profiled"),
    )


def _with_positions(
    tx: Transaction,
    task_id: str,
    outcomes: Sequence[Outcome],
    kind: type[Receipt],
    subject_of: Callable[[Receipt], str],
) -> list[Outcome]:
    receipts = [outcome for outcome in outcomes if isinstance(outcome, kind)]
    if not receipts:
        return list(outcomes)
    positions = dict(tx.chain.positions(task_id, {subject_of(receipt) for receipt in receipts}))
    # mypy does not know that an outcome of this kind stays one.
    placed: list[Any] = []
    for outcome in outcomes:
        if isinstance(outcome, kind):
            position = positions.get(subject_of(outcome)) or _of_round(tx, task_id, outcome)
            placed.append(outcome.model_copy(update={"chain": position}))
        else:
            placed.append(outcome)
    return placed


def _of_round(tx: Transaction, task_id: str, receipt: SignedMessage) -> object:
    """The position of the whole round: a round that was closed before the chain began has no others."""
    return tx.chain.position(task_id, round_subject(getattr(receipt, "round_number", 0)))
