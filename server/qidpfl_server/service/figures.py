"""The figures of tasks for the metrics: state, rounds, money, accuracy and sold budget."""

from dataclasses import dataclass

from qidpfl_shared.protocol.messages import RoundState

from ..domain import Task
from ..store.transaction import Transaction


@dataclass(frozen=True, kw_only=True)
class TaskFigures:
    """The figures of one task for the metrics."""

    task: Task
    round_number: int
    closed_round: int
    clients: dict[str, int]
    reward_micro: int
    paid_micro: int
    kept_micro: int
    accuracy: float | None
    spent_rho: float


def task_figures(tx: Transaction, limit: int, known: dict[str, TaskFigures]) -> list[TaskFigures]:
    """The figures of the newest tasks. `known` has earlier figures: sums over closed rounds are only extended."""
    return [_figures(tx, task, known.get(task.task_id)) for task in tx.tasks.all()[-limit:]]


def _figures(tx: Transaction, task: Task, known: TaskFigures | None) -> TaskFigures:
    latest = tx.rounds.latest(task.task_id)
    # All rounds before the latest are settled. A void one may open again, and is not counted yet.
    closed = 0 if latest is None else latest.round_number - (latest.state is not RoundState.SETTLED)
    before = 0 if known is None else known.closed_round
    # With the last one that is known: it may have been evaluated since.
    recent = tx.rounds.between(task.task_id, max(1, before), closed)
    rounds = [round_ for round_ in recent if round_.round_number > before]
    accuracies = [round_.accuracy for round_ in recent if round_.accuracy is not None]
    return TaskFigures(
        task=task,
        round_number=0 if latest is None else latest.round_number,
        closed_round=closed,
        clients=tx.figures.clients_by_state(task.task_id),
        reward_micro=0 if latest is None else latest.reward_micro,
        paid_micro=(0 if known is None else known.paid_micro)
        + sum(tx.payments.totals_micro(task.task_id, after_round=before).values()),
        kept_micro=(0 if known is None else known.kept_micro) + sum(round_.kept_micro or 0 for round_ in rounds),
        accuracy=accuracies[-1] if accuracies else None if known is None else known.accuracy,
        spent_rho=(0.0 if known is None else known.spent_rho)
        + tx.figures.spent_rho(task.task_id, after_round=before, up_to_round=closed),
    )
