"""A task as an administrator can read it: clients, rounds and totals."""

from dataclasses import dataclass, field

from qidpfl_shared.core.money import from_micro
from qidpfl_shared.core.privacy.conversion import epsilon_from_rho
from qidpfl_shared.protocol.messages import ClientResult, ClientSummary, RoundResult, TaskView


@dataclass
class TaskRecord:
    """The current state of a task."""

    task: TaskView
    clients: list[ClientSummary] = field(default_factory=list)
    rounds: list[RoundResult] = field(default_factory=list)

    @property
    def selected(self) -> list[ClientSummary]:
        return [client for client in self.clients if client.state == "selected"]

    def spent_rho(self, ordinal: int, *, rounds: int) -> float:
        """The budget that a client has spent on its histogram and its first rounds."""
        client = next(client for client in self.clients if client.ordinal == ordinal)
        mechanism = self.task.spec.privacy.mechanism.build()
        size = client.size or 1
        parts = [part_of(result, ordinal) for result in self.rounds[:rounds]]
        updates = [
            mechanism.proven_rho(rho=part.rho, size=size) for part in parts if part is not None and part.delivered
        ]
        return (client.histogram_rho or 0.0) + sum(updates)

    def epsilon(self, *, rounds: int) -> float:
        """The guarantee for every record after this number of rounds: that of the worst client."""
        worst = max(self.spent_rho(client.ordinal, rounds=rounds) for client in self.clients)
        return epsilon_from_rho(rho=worst, delta=self.task.spec.privacy.delta)

    def earned(self, ordinal: int) -> float:
        parts = (part_of(result, ordinal) for result in self.rounds)
        return from_micro(sum(part.payment_micro for part in parts if part is not None))


def part_of(result: RoundResult, ordinal: int) -> ClientResult | None:
    """The result of one client in a round."""
    return next((part for part in result.clients or () if part.ordinal == ordinal), None)
