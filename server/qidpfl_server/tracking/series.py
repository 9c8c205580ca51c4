"""The series of a task: rewards, payments, budgets, epsilon, accuracy and loss, as points to plot over its rounds."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from qidpfl_shared.core.money import from_micro
from qidpfl_shared.core.privacy.conversion import epsilon_from_rho
from qidpfl_shared.protocol.messages import RoundState
from qidpfl_shared.protocol.releases import histogram_release, round_release

from ..clock import SECOND, Micros
from ..domain import Client, Round, Task
from ..store.transaction import Transaction

# A task with more clients has no series per client: a thousand curves cannot be read, and each costs time to write.
MAX_CLIENT_SERIES = 100
# So many rounds are read in one transaction, which must be short.
_ROUNDS_AT_ONCE = 50


@dataclass(frozen=True, kw_only=True)
class Point:
    """One value of a series. `step` is the number of the round."""

    series: str
    step: int
    value: float
    at: Micros

    @property
    def key(self) -> tuple[str, int]:
        """A series has one value per step."""
        return self.series, self.step

    @property
    def at_s(self) -> float:
        """The moment in seconds since 1970."""
        return self.at / SECOND


class TaskSeries:
    """Reads the points of one task, round after round. The sums over rounds stay in memory."""

    def __init__(self, task_id: str) -> None:
        self._task_id = task_id
        self._rounds = 0
        self._spent: dict[int, float] = {}
        self._known: dict[tuple[float, int], float] = {}
        self._paid_micro = 0

    def read(self, tx: Transaction) -> tuple[Task | None, list[Point]]:
        """The task, and the points of its next settled rounds; none if all were read, no task if it was deleted."""
        task = tx.tasks.get(self._task_id)
        if task is None:
            return None, []
        first, last = self._rounds + 1, self._rounds + _ROUNDS_AT_ONCE
        rounds = [one for one in tx.rounds.between(self._task_id, first, last) if one.state is RoundState.SETTLED]
        if not rounds:
            return task, []
        answers = tx.figures.answers(self._task_id, first, rounds[-1].round_number)
        by_round = {number: list(rows) for number, rows in groupby(answers, key=lambda row: int(row.round_number))}
        clients = {client.ordinal: client for client in tx.clients.of_task(self._task_id)}
        points = [
            point
            for round_ in rounds
            for point in self._points(task, round_, by_round.get(round_.round_number, []), clients)
        ]
        self._rounds = rounds[-1].round_number
        return task, points

    def _points(self, task: Task, round_: Round, answers: Sequence[Any], clients: dict[int, Client]) -> Iterator[Point]:
        step, at = round_.round_number, round_.settled_at or round_.deliver_by
        for series, value in self._values(task, round_, answers, clients).items():
            # An unprotected release has no epsilon: the series then has a gap.
            if value is not None and math.isfinite(value):
                yield Point(series=series, step=step, value=value, at=at)

    def _values(
        self, task: Task, round_: Round, answers: Sequence[Any], clients: dict[int, Client]
    ) -> dict[str, float | None]:
        self._spend(task, answers, clients)
        paid, escrow = (sum(getattr(row, name) or 0 for row in answers) for name in ("amount_micro", "escrow_micro"))
        self._paid_micro += paid
        delta = task.spec.privacy.delta
        worst = max(self._spent.values(), default=0.0)
        values: dict[str, float | None] = {
            "round/accuracy": round_.accuracy,
            "round/loss": round_.loss,
            "round/reward": from_micro(round_.reward_micro),
            "round/paid": from_micro(paid),
            "round/escrow": from_micro(escrow) if escrow else None,
            "round/kept": from_micro(round_.kept_micro or 0),
            "round/total": round_.total,
            "round/declared_total": round_.declared_total,
            "round/updates": float(sum(row.received_at is not None for row in answers)),
            "task/paid": from_micro(self._paid_micro),
            "task/spent_rho": worst,
            "task/epsilon": _epsilon(worst, delta),
        }
        if len(clients) > MAX_CLIENT_SERIES:
            return values
        for row in answers:
            name = f"client-{row.ordinal:03d}"
            values[f"budget/{name}"] = row.rho if row.received_at is not None else 0.0
            values[f"payment/{name}"] = from_micro(row.amount_micro or 0)
            values[f"epsilon/{name}"] = _epsilon(self._spent.get(row.ordinal, 0.0), delta)
        return values

    def _spend(self, task: Task, answers: Sequence[Any], clients: dict[int, Client]) -> None:
        """Add what the clients have released: their histograms once, and the updates of this round."""
        for ordinal, client in clients.items():
            if ordinal not in self._spent and client.has_profile:
                first = histogram_release(client.histogram_rho).proven_rho if client.has_histogram else 0.0
                self._spent[ordinal] = first
        for row in answers:
            if row.received_at is not None:
                size = clients[row.ordinal].size or 1
                self._spent[row.ordinal] = self._spent.get(row.ordinal, 0.0) + self._proven(task, row.rho or 0.0, size)

    def _proven(self, task: Task, rho: float, size: int) -> float:
        if (rho, size) not in self._known:
            release = round_release(privacy=task.spec.privacy, round_number=1, rho=rho, size=size)
            self._known[rho, size] = release.proven_rho
        return self._known[rho, size]


def _epsilon(rho: float, delta: float) -> float:
    return epsilon_from_rho(rho=rho, delta=delta) if math.isfinite(rho) else math.inf
