"""Updates whose bodies were read although the round had closed meanwhile.

Usually the server answers 410 before it reads a body. If the round closes while a body arrives, the server has seen the
update and stores nothing of it. The budget of the client is spent all the same, so an event records it, and the ledger
of the client shows it as `spent_unpaid`. Plans do not use it: the client counts it in its own journal.
"""

from ...clock import Micros
from ...store.transaction import Transaction

LATE_UPDATE = "update.late"


def note_late_update(tx: Transaction, task_id: str, round_number: int, client_id: str, digest: str, at: Micros) -> None:
    """Record that the update of a client was read too late. A repeat of the same bytes records nothing."""
    if client_id not in tx.rounds.budgets(task_id, round_number, {client_id}):
        return
    if late_digests(tx, task_id, client_id).get(round_number) != digest:
        tx.events.add(task_id, "update.late", at=at, round_number=round_number, detail=_start(client_id) + digest)


def late_digests(tx: Transaction, task_id: str, client_id: str) -> dict[int, str]:
    """The digests of the updates of a client that were read too late, by round."""
    start = _start(client_id)
    return {
        event.round_number: event.detail.removeprefix(start)
        for event in tx.events.of_kind(task_id, LATE_UPDATE)
        if event.round_number is not None and event.detail is not None and event.detail.startswith(start)
    }


def _start(client_id: str) -> str:
    return f"client {client_id} digest "
