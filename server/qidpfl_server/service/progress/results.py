"""The results of a task in a few numbers: accuracy, money, epsilon, and what the noise audit says."""

from dataclasses import asdict, dataclass
from typing import Any

from qidpfl_shared.core.money import MICRO
from qidpfl_shared.protocol.messages import RoundState

from ...domain import Task
from ...store.transaction import Transaction
from ..rounds.settled_event import verdict_counts
from .accounts import account_page

_ALL = 10**9


@dataclass(frozen=True, kw_only=True)
class TaskResults:
    """The results of a task so far. `epsilon` is that of the client that has released most."""

    accuracy: float | None
    best_accuracy: float | None
    paid_micro: int
    kept_micro: int
    epsilon: float | None
    guarantee: str | None
    verdicts: dict[str, int]

    def in_words(self) -> str:
        """One line for a terminal or a log."""
        accuracy = "not evaluated" if self.accuracy is None else f"accuracy {self.accuracy:.1%}"
        epsilon = "" if self.epsilon is None else f", epsilon {self.epsilon:.3g} of the client that gave most"
        doubtful = sum(count for verdict, count in self.verdicts.items() if verdict.startswith("too_"))
        noise = f", {doubtful} updates with wrong noise" if doubtful else ""
        return f"{accuracy}, paid {self.paid_micro / MICRO:.2f}{epsilon}{noise}"

    def fields(self) -> dict[str, Any]:
        """The values as JSON."""
        return asdict(self)


def task_results(tx: Transaction, task: Task) -> TaskResults:
    """Read the results of a task, without its open round."""
    rounds = [round_ for round_ in tx.rounds.of_task(task.task_id) if round_.state is RoundState.SETTLED]
    accuracies = [round_.accuracy for round_ in rounds if round_.accuracy is not None]
    page = account_page(tx, task.task_id, -1, _ALL)
    spent = [account.epsilon for account in page.accounts if account.epsilon is not None]
    return TaskResults(
        accuracy=accuracies[-1] if accuracies else None,
        best_accuracy=max(accuracies, default=None),
        paid_micro=tx.payments.total_micro(task.task_id),
        kept_micro=sum(round_.kept_micro or 0 for round_ in rounds),
        # An account without epsilon has an unprotected release: then there is no epsilon for all.
        epsilon=max(spent) if spent and len(spent) == len(page.accounts) else None,
        guarantee=page.statement,
        verdicts=verdict_counts(
            update.verdict
            for round_ in rounds
            for update in tx.rounds.updates(task.task_id, round_.round_number).values()
        ),
    )
