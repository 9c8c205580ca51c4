"""What happened in a task, as an admin can read it: the clients, the rounds, and what they add up to."""

from dataclasses import dataclass, field

from qidpfl_shared.core.money import from_micro
from qidpfl_shared.core.privacy.conversion import epsilon_from_rho
from qidpfl_shared.protocol.messages import ClientResult, ClientSummary, RoundResult, TaskView


@dataclass
class TaskRecord:
    """A task so far."""

    task: TaskView
    clients: list[ClientSummary] = field(default_factory=list)
    rounds: list[RoundResult] = field(default_factory=list)

    @property
    def selected(self) -> list[ClientSummary]:
        return [client for client in self.clients if client.state == "selected"]

    def spent_rho(self, ordinal: int, *, rounds: int) -> float:
        """What a client has released in its histogram and the first so many rounds."""
        client = next(client for client in self.clients if client.ordinal == ordinal)
        mechanism = self.task.spec.privacy.mechanism.build()
        size = client.size or 1
        parts = [part_of(result, ordinal) for result in self.rounds[:rounds]]
        updates = [
            mechanism.proven_rho(rho=part.rho, size=size) for part in parts if part is not None and part.delivered
        ]
        return (client.histogram_rho or 0.0) + sum(updates)

    def epsilon(self, *, rounds: int) -> float:
        """The guarantee for every record after so many rounds: the worst over the clients."""
        worst = max(self.spent_rho(client.ordinal, rounds=rounds) for client in self.clients)
        return epsilon_from_rho(rho=worst, delta=self.task.spec.privacy.delta)

    def earned(self, ordinal: int) -> float:
        parts = (part_of(result, ordinal) for result in self.rounds)
        return from_micro(sum(part.payment_micro for part in parts if part is not None))


def part_of(result: RoundResult, ordinal: int) -> ClientResult | None:
    """What one client did in a round."""
    return next((part for part in result.clients or () if part.ordinal == ordinal), None)
