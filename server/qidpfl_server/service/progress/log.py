"""The log lines of a task's progress, with its name: closed rounds, doubtful noise, and the end with its results."""

import structlog

from qidpfl_shared.core.money import MICRO
from qidpfl_shared.core.noise_audit import NoiseVerdict
from qidpfl_shared.protocol.messages import RoundState

from ...domain import Round, Task
from ...store.transaction import Transaction
from ..rounds.settled_event import verdict_counts
from .results import task_results

_log = structlog.get_logger()
_DOUBTFUL = (NoiseVerdict.TOO_LITTLE_NOISE, NoiseVerdict.TOO_MUCH_NOISE)


def log_closed_round(tx: Transaction, task: Task, number: int, attempt: int) -> None:
    """Log how a round has ended. After the last one also log the end of the task."""
    closed = tx.rounds.get(task.task_id, number)
    who = {"task": task.task_id, "name": task.name}
    if closed is None or closed.state is not RoundState.SETTLED:
        _log.info("round_closed", **who, round_number=number, attempt=attempt, outcome=RoundState.VOID.value)
    else:
        _log_settled(tx, task, closed, attempt)
    now = tx.tasks.get(task.task_id)
    if now is not None and now.ended:
        results = task_results(tx, now)
        _log.info(
            "task_ended",
            **who,
            state=now.state.value,
            reason=now.reason,
            accuracy=_rounded(results.accuracy),
            paid=results.paid_micro / MICRO,
            epsilon=_rounded(results.epsilon),
            verdicts=results.verdicts,
        )


def _log_settled(tx: Transaction, task: Task, round_: Round, attempt: int) -> None:
    who = {"task": task.task_id, "name": task.name, "round_number": round_.round_number}
    updates = tx.rounds.updates(task.task_id, round_.round_number)
    paid = sum(payment.amount_micro for payment in tx.payments.of_round(task.task_id, round_.round_number).values())
    _log.info(
        "round_closed",
        **who,
        attempt=attempt,
        outcome=RoundState.SETTLED.value,
        accuracy=_rounded(round_.accuracy),
        paid=paid / MICRO,
        updates=len(updates),
        verdicts=verdict_counts(update.verdict for update in updates.values()),
    )
    for client_id, update in updates.items():
        if update.verdict in _DOUBTFUL:
            client = tx.clients.get(client_id)
            ordinal = None if client is None else client.ordinal
            _log.warning("wrong_noise", **who, client_id=client_id, ordinal=ordinal, verdict=update.verdict.value)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
