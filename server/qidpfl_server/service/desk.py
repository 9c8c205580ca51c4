"""Where clients come with their answers and updates: what is known of all who come together, read once."""

from collections.abc import Collection
from functools import cached_property

from qidpfl_shared.core.planning import Standing
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import RoundState

from ..clock import Micros
from ..domain import Round, RoundInvitation, Task
from ..errors import RequestRefused
from ..store.transaction import Transaction
from .planning import round_is_complete


class Desk:
    """A round as it stands for some clients; whoever serves them one after the other keeps it up to date."""

    def __init__(self, tx: Transaction, task: Task, round_number: int, client_ids: Collection[str]) -> None:
        self.task = task
        self.round_number = round_number
        self.round_ = tx.rounds.get(task.task_id, round_number)
        self.budgets = tx.rounds.budgets(task.task_id, round_number, client_ids)
        self.updates = tx.rounds.updates(task.task_id, round_number, client_ids)
        self._tx = tx
        self._client_ids = client_ids

    def open_round(self) -> Round:
        """The round, which must be open."""
        if self.round_ is None:
            raise RequestRefused(ErrorCode.NOT_FOUND, f"round {self.round_number} has not been announced")
        if self.round_.state is not RoundState.OPEN or self.task.ended:
            raise RequestRefused(ErrorCode.ROUND_CLOSED, f"round {self.round_number} is {self.round_.state}")
        return self.round_

    def require_invitation(self, client_id: str) -> None:
        invitation = self._invitations.get(client_id)
        # A late joiner is not in the plan of a round that was open before it came.
        standing = Standing.SET_ASIDE if invitation is None else invitation.standing
        if standing is not Standing.INVITED:
            raise RequestRefused(ErrorCode.NOT_INVITED, f"standing in this round: {standing}")

    @cached_property
    def _invitations(self) -> dict[str, RoundInvitation]:
        """Read only when asked for: whoever has declared a budget was invited."""
        return self._tx.rounds.invitations(self.task.task_id, self.round_number, self._client_ids)


def wake_when_complete(tx: Transaction, round_: Round, now: Micros) -> None:
    """Announce a change only when it makes the round ready to settle: nobody waits for less."""
    if round_is_complete(tx, round_, now):
        tx.touch(round_.task_id)
