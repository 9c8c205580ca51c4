"""`Run`: what a task has done so far, as DataFrames and as a chart."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from qidpfl_client.api import AdminApi
from qidpfl_shared.core.money import from_micro
from qidpfl_shared.protocol.messages import ClientSummary, RoundResult, TaskView
from qidpfl_shared.protocol.operators import AccountSummary

from .chart import Chart, draw
from .frames import Library, TableRow, frame
from .record import TaskRecord

RunTable = Literal["rounds", "clients", "budgets"]
_COLUMNS: dict[RunTable, tuple[str, ...]] = {
    "rounds": (
        *("round_number", "reward", "paid", "kept", "total", "declared_total", "updates"),
        *("accuracy", "loss", "epsilon", "seconds"),
    ),
    "clients": (
        *("ordinal", "state", "size", "privacy_value", "label_distance", "releases", "spent_rho", "epsilon"),
        *("guarantee", "earned", "escrow", "utility"),
    ),
    "budgets": ("round_number", "ordinal", "standing", "rho", "declined", "delivered", "accepted", "paid", "escrow"),
}


class Run:
    """A task as its coordinator shows it: settled rounds, clients with their accounts, and what each one sold.

    `rounds`, `clients` and `budgets` are DataFrames: of pandas, or of polars where pandas is not installed. Money is in
    units. An epsilon of None means that something was released without protection.
    """

    def __init__(self, record: TaskRecord, accounts: Sequence[AccountSummary]) -> None:
        self.record = record
        self._accounts = {account.ordinal: account for account in accounts}

    @classmethod
    def read(cls, api: AdminApi, task_id: str) -> "Run":
        """Read the present state of a task."""
        record = TaskRecord(api.task(task_id), api.clients(task_id), api.rounds(task_id))
        return cls(record, api.accounts(task_id))

    @property
    def task(self) -> TaskView:
        """The task with its spec, state and reason."""
        return self.record.task

    @property
    def rounds(self) -> Any:
        """One row per settled round: reward, payments, budgets, accuracy, loss and epsilon so far."""
        return self.table("rounds")

    @property
    def clients(self) -> Any:
        """One row per client: profile, verdict of the selection, spent budget, epsilon and earnings."""
        return self.table("clients")

    @property
    def budgets(self) -> Any:
        """One row per client and round: the budget that it sold, and its payment."""
        return self.table("budgets")

    def table(self, name: RunTable, library: Library | None = None) -> Any:
        """A table as a DataFrame of pandas or polars."""
        return frame(_COLUMNS[name], self.rows(name), library)

    def rows(self, name: RunTable) -> list[TableRow]:
        """A table as rows; needs neither pandas nor polars."""
        if name == "clients":
            return [_client_row(client, self._accounts[client.ordinal]) for client in self.record.clients]
        if name == "budgets":
            return [row for result in self.record.rounds for row in _budget_rows(result)]
        epsilons = self.record.epsilons()[1:]
        return [_round_row(result, epsilon) for result, epsilon in zip(self.record.rounds, epsilons, strict=True)]

    @property
    def accuracy(self) -> float | None:
        """The accuracy of the newest model on held-out records; None if it was not evaluated."""
        return self.record.rounds[-1].accuracy if self.record.rounds else None

    @property
    def epsilon(self) -> float | None:
        """The guarantee for every record: that of the client that has spent most; None without a guarantee."""
        return _finite(self.record.epsilons()[-1])

    @property
    def paid(self) -> float:
        """All payments together, in units."""
        return from_micro(sum(result.paid_micro for result in self.record.rounds))

    def plot(self, path: Path | str | None = None) -> Chart:
        """Selection, money, budgets and accuracy in one figure of matplotlib; saved to a file if `path` is given."""
        chart = draw(self.record)
        if path is not None:
            chart.save(path)
        return chart

    def __repr__(self) -> str:
        reason = f" ({self.task.reason})" if self.task.reason else ""
        accuracy = "not evaluated" if self.accuracy is None else f"{self.accuracy:.3f}"
        epsilon = "none" if self.epsilon is None else f"{self.epsilon:.2f}"
        return (
            f"Run {self.task.name}: {self.task.state}{reason}, {len(self.record.rounds)} rounds,"
            f" accuracy {accuracy}, paid {self.paid:.2f}, epsilon {epsilon}"
        )


def _round_row(result: RoundResult, epsilon: float) -> TableRow:
    timing = result.timing
    over = timing is not None and timing.settled_at is not None
    return {
        "round_number": result.round_number,
        "reward": from_micro(result.reward_micro),
        "paid": from_micro(result.paid_micro),
        "kept": from_micro(result.kept_micro),
        "total": result.total,
        "declared_total": result.declared_total,
        "updates": result.updates,
        "accuracy": result.accuracy,
        "loss": result.loss,
        "epsilon": _finite(epsilon),
        "seconds": (timing.settled_at - timing.opened_at).total_seconds() if over else None,  # type: ignore[union-attr, operator]
    }


def _client_row(client: ClientSummary, account: AccountSummary) -> TableRow:
    return {
        "ordinal": client.ordinal,
        "state": str(client.state),
        "size": client.size,
        "privacy_value": client.privacy_value,
        "label_distance": client.label_distance,
        "releases": account.releases,
        "spent_rho": account.spent_rho,
        "epsilon": account.epsilon,
        "guarantee": account.guarantee,
        "earned": from_micro(account.earned_micro),
        "escrow": from_micro(account.escrow_micro),
        "utility": account.utility,
    }


def _budget_rows(result: RoundResult) -> list[TableRow]:
    return [
        {
            "round_number": result.round_number,
            "ordinal": part.ordinal,
            "standing": str(part.standing),
            "rho": part.rho,
            "declined": part.declined,
            "delivered": part.delivered,
            "accepted": part.accepted,
            "paid": from_micro(part.payment_micro),
            "escrow": from_micro(part.escrow_micro or 0),
        }
        for part in result.clients or ()
    ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
