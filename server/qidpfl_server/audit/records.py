"""One round with all that belongs to it, as the checks read it."""

from collections.abc import Iterator
from dataclasses import dataclass

from qidpfl_shared.protocol.messages import RoundState

from ..domain import Budget, Client, Round, RoundInvitation, Task, Update
from ..store.transaction import Transaction


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """A round, everybody's answers, and what followed from them."""

    task: Task
    held: Round
    clients: dict[str, Client]
    invitations: dict[str, RoundInvitation]
    budgets: dict[str, Budget]
    updates: dict[str, Update]
    payments: dict[str, int]

    @property
    def place(self) -> str:
        return f"task {self.task.name}, round {self.held.round_number}"

    @property
    def settled(self) -> bool:
        return self.held.state is RoundState.SETTLED

    @property
    def accepted(self) -> list[str]:
        """Whose updates count, in the order of ordinals."""
        return self.in_order(client_id for client_id, update in self.updates.items() if update.accepted)

    def in_order(self, client_ids: Iterator[str]) -> list[str]:
        return sorted(client_ids, key=lambda client_id: self.clients[client_id].ordinal)


def read_rounds(tx: Transaction, task: Task, rounds: list[Round], clients: dict[str, Client]) -> Iterator[RoundRecord]:
    """The rounds of a task, one at a time."""
    for held in rounds:
        yield RoundRecord(
            task=task,
            held=held,
            clients=clients,
            invitations=tx.rounds.invitations(task.task_id, held.round_number),
            budgets=tx.rounds.budgets(task.task_id, held.round_number),
            updates=tx.rounds.updates(task.task_id, held.round_number),
            payments=tx.rounds.payments(task.task_id, held.round_number),
        )
