"""Figures of tasks for the metrics, and what the paper's model says of settled rounds: server cost and regrets."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qidpfl_shared.core.arguments import Numbers
from qidpfl_shared.core.markets.design import MarketKind
from qidpfl_shared.core.money import from_micro
from qidpfl_shared.core.utility import regrets
from qidpfl_shared.protocol.messages import RoundState
from qidpfl_shared.protocol.operators import RoundCost

from ..domain import Client, Round, Task
from ..store.transaction import Transaction
from .lifecycle import get_task
from .rounds.weights import label_costs, label_gaps, noise_of_average, uploads_of, weighted_uploads


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


def round_costs(tx: Transaction, task_id: str, after: int, limit: int) -> list[RoundCost]:
    """Server cost and regret of the settled rounds after a number, at most `limit` of them.

    A settled round is computed once: a reader keeps the result.
    """
    task, kept = get_task(tx, task_id), tx.settled.costs(task_id)
    rounds = [one for one in tx.rounds.between(task_id, after + 1, after + limit) if one.state is RoundState.SETTLED]
    missing = [round_ for round_ in rounds if round_.round_number not in kept]
    if missing:
        kept.update(_computed_costs(tx, task, missing))
    return [kept[round_.round_number] for round_ in rounds]


def _computed_costs(tx: Transaction, task: Task, rounds: Sequence[Round]) -> dict[int, RoundCost]:
    """The costs of rounds that follow each other. A page of a large task has 100,000 bids."""
    clients = tx.clients.of_task(task.task_id)
    place = {client.client_id: index for index, client in enumerate(clients)}
    numbers, ids, rho, accepted = tx.figures.bids(task.task_id, rounds[0].round_number, rounds[-1].round_number)
    bidders, budgets = np.array([place[client_id] for client_id in ids], dtype=np.intp), np.array(rho)
    gaps = label_gaps(task.spec, clients)
    found: dict[int, RoundCost] = {}
    for round_ in rounds:
        part = slice(bisect_left(numbers, round_.round_number), bisect_right(numbers, round_.round_number))
        of_round = [clients[index] for index in bidders[part]]
        is_counted = np.array(accepted[part], dtype=bool)
        counted = [client for client, counts in zip(of_round, is_counted, strict=True) if counts]
        reward = from_micro(round_.reward_micro)
        found[round_.round_number] = RoundCost(
            round_number=round_.round_number,
            cost=task.spec.declared_cost(
                round_number=round_.round_number,
                reward=reward,
                budgets=budgets[part][is_counted],
                sizes=[client.size or 1 for client in counted],
                labels=label_costs(task.spec, counted, gaps),
            ),
            reward_cost=task.spec.cost_model().price(round_.round_number) * reward,
            regret=max(regrets_of(task, round_.reward_micro, of_round, budgets[part]), default=None),
        )
    return found


def round_noise(tx: Transaction, task: Task, round_: Round, clients: Mapping[str, Client]) -> float | None:
    """The noise of the average of a settled round, with the weights really used; None if there is none.

    `clients` are all of the task.
    """
    if round_.state is not RoundState.SETTLED:
        return None
    key = (task.task_id, round_.round_number)
    invitations, budgets, updates = tx.rounds.invitations(*key), tx.rounds.budgets(*key), tx.rounds.updates(*key)
    accepted = [client_id for client_id, update in updates.items() if update.accepted]
    accepted.sort(key=lambda client_id: clients[client_id].ordinal)
    uploads = uploads_of(task.spec, accepted, clients, budgets, invitations, updates)
    parts = weighted_uploads(task.spec, uploads, participants=len(invitations))
    return noise_of_average(task.spec, parts, [upload.size for upload in uploads])


def regrets_of(task: Task, reward_micro: int, bidders: Sequence[Client], bids: Numbers) -> list[float]:
    """What each bidder could have gained by another budget, by the privacy value of its profile.

    Empty in other markets than the contest: there the best answer does not depend on the other budgets.
    """
    if not bidders or task.spec.market is not MarketKind.CONTEST:
        return []
    largest = task.spec.bounds.rho_max
    found: list[float] = regrets(
        reward=from_micro(reward_micro),
        budgets=bids,
        privacy_values=[client.counted_value(task.spec) for client in bidders],
        privacy_weight=task.spec.game.privacy_weight,
        caps=[min(largest, client.rho_limit) for client in bidders],
    ).tolist()
    return found
