"""A round with all its rows, as the checks read it."""

from collections.abc import Iterator
from dataclasses import dataclass

from qidpfl_shared.protocol.messages import RoundState

from ..domain import Budget, Client, Payment, Round, RoundInvitation, Task, Update
from ..service.controls import changed_deadlines
from ..store.transaction import Transaction


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """A round with the answers of its clients, and the payments."""

    task: Task
    round_: Round
    clients: dict[str, Client]
    invitations: dict[str, RoundInvitation]
    budgets: dict[str, Budget]
    updates: dict[str, Update]
    payments: dict[str, Payment]
    # (declare_s, deliver_s) that operators have set for rounds of this task, besides those of its spec.
    deadlines: tuple[tuple[float, float], ...] = ()

    @property
    def place(self) -> str:
        return f"task {self.task.name}, round {self.round_.round_number}"

    @property
    def settled(self) -> bool:
        return self.round_.state is RoundState.SETTLED

    @property
    def accepted(self) -> list[str]:
        """Clients whose updates were accepted, in the order of their ordinals."""
        return self.in_order(client_id for client_id, update in self.updates.items() if update.accepted)

    def in_order(self, client_ids: Iterator[str]) -> list[str]:
        return sorted(client_ids, key=lambda client_id: self.clients[client_id].ordinal)


def read_rounds(tx: Transaction, task: Task, rounds: list[Round], clients: dict[str, Client]) -> Iterator[RoundRecord]:
    """The rounds of a task, read one at a time."""
    deadlines = tuple(changed_deadlines(tx, task))
    for round_ in rounds:
        yield RoundRecord(
            task=task,
            round_=round_,
            clients=clients,
            invitations=tx.rounds.invitations(task.task_id, round_.round_number),
            budgets=tx.rounds.budgets(task.task_id, round_.round_number),
            updates=tx.rounds.updates(task.task_id, round_.round_number),
            payments=tx.payments.of_round(task.task_id, round_.round_number),
            deadlines=deadlines,
        )
