"""The event of a settled round: one line for people, and the same values for programs."""

from collections import Counter
from collections.abc import Iterable

from qidpfl_shared.core.noise_audit import NoiseVerdict
from qidpfl_shared.protocol.fields import FieldValue

from ...clock import Micros
from ...domain import Round
from ...store.transaction import Transaction
from ..scoring import Evaluation
from .payments import RoundPayments


def verdict_counts(verdicts: Iterable[NoiseVerdict | None]) -> dict[str, int]:
    """How many updates have each verdict of the noise audit. Updates that were not audited have none."""
    return dict(Counter(verdict.value for verdict in verdicts if verdict is not None))


def add_settled_event(
    tx: Transaction,
    round_: Round,
    *,
    accepted: int,
    verdicts: Iterable[NoiseVerdict | None],
    payments: RoundPayments,
    evaluation: Evaluation | None,
    at: Micros,
) -> None:
    """Record that a round was settled, with its money, accuracy and verdicts."""
    paid = sum(payment.amount_micro for payment in payments.due.values())
    held = sum(payment.escrow_micro for payment in payments.due.values())
    detail = f"{accepted} updates, {paid} micro paid, {payments.kept_micro} kept"
    if held:
        detail += f", {held} in escrow"
    fields: dict[str, FieldValue] = {
        "updates": accepted,
        "reward_micro": round_.reward_micro,
        "paid_micro": paid,
        "kept_micro": payments.kept_micro,
        "escrow_micro": held,
        "accuracy": evaluation.reported.accuracy if evaluation else None,
        "loss": evaluation.reported.loss if evaluation else None,
        "verdicts": verdict_counts(verdicts),
    }
    tx.events.add(
        round_.task_id, "round.settled", at=at, round_number=round_.round_number, detail=detail, fields=fields
    )
