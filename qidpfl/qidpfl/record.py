"""A task as an administrator can read it: clients, rounds and totals."""

import math
from dataclasses import dataclass, field
from itertools import accumulate

from qidpfl_shared.core.money import from_micro
from qidpfl_shared.core.privacy.conversion import epsilon_from_rho
from qidpfl_shared.protocol.messages import ClientResult, ClientSummary, RoundResult, TaskView
from qidpfl_shared.protocol.releases import histogram_release, round_release


@dataclass
class TaskRecord:
    """The current state of a task."""

    task: TaskView
    clients: list[ClientSummary] = field(default_factory=list)
    rounds: list[RoundResult] = field(default_factory=list)

    @property
    def selected(self) -> list[ClientSummary]:
        return [client for client in self.clients if client.state == "selected"]

    def spent_rho(self, ordinal: int) -> list[float]:
        """The proven budget that a client has spent before the first round, and after each round."""
        client = next(client for client in self.clients if client.ordinal == ordinal)
        first = 0.0 if client.label_counts is None else histogram_release(client.histogram_rho).proven_rho
        parts = [part_of(result, ordinal) for result in self.rounds]
        return list(accumulate((self._proven_rho(client, part) for part in parts), initial=first))

    def _proven_rho(self, client: ClientSummary, part: ClientResult | None) -> float:
        if part is None or not part.delivered:
            return 0.0
        privacy, size = self.task.spec.privacy, client.size or 1
        return round_release(privacy=privacy, round_number=1, rho=part.rho, size=size).proven_rho

    def epsilons(self) -> list[float]:
        """The guarantee for every record, that of the worst client, before the first round and after each round."""
        spent = [self.spent_rho(client.ordinal) for client in self.clients]
        worst = [max(column) for column in zip(*spent, strict=True)] or [0.0] * (len(self.rounds) + 1)
        return [self._epsilon(rho) for rho in worst]

    def _epsilon(self, rho: float) -> float:
        return epsilon_from_rho(rho=rho, delta=self.task.spec.privacy.delta) if math.isfinite(rho) else math.inf

    def epsilon(self, *, rounds: int) -> float:
        """The guarantee for every record after this number of rounds: that of the worst client."""
        return self.epsilons()[rounds]

    def earned(self, ordinal: int) -> float:
        parts = (part_of(result, ordinal) for result in self.rounds)
        return from_micro(sum(part.payment_micro for part in parts if part is not None))


def part_of(result: RoundResult, ordinal: int) -> ClientResult | None:
    """The result of one client in a round."""
    return next((part for part in result.clients or () if part.ordinal == ordinal), None)
