"""The clients of a task as admin and viewer see them, and how an admin puts one out."""

from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import ClientSummary

from ..clock import Micros
from ..domain import Client
from ..errors import RequestRefused
from ..identifiers import hash_secret, new_secret
from ..store.transaction import Transaction
from .enrolment import leave
from .lifecycle import get_task, get_task_for_update


def roster(tx: Transaction, task_id: str) -> list[ClientSummary]:
    """All clients, in the order of their ordinals."""
    get_task(tx, task_id)
    return [_summary(client) for client in tx.clients.of_task(task_id)]


def revoke_client(tx: Transaction, task_id: str, client_id: str, now: Micros) -> None:
    """Revoke a client's token; it is out from the next round on, and its ledgers stay."""
    get_task_for_update(tx, task_id)
    client = tx.clients.get(client_id)
    if client is None or client.task_id != task_id:
        raise RequestRefused(ErrorCode.NOT_FOUND, "there is no such client in this task")
    leave(tx, client_id, now)
    # Nobody knows this secret: no token opens this account again.
    tx.clients.set_token(client_id, hash_secret(new_secret()))
    tx.touch(task_id)


def _summary(client: Client) -> ClientSummary:
    return ClientSummary(
        client_id=client.client_id,
        ordinal=client.ordinal,
        state=client.state.value,
        size=client.size,
        privacy_value=client.privacy_value,
        label_counts=client.label_counts,
        histogram_rho=client.histogram_rho,
        rho_cap=client.rho_cap,
        lifetime_rho=client.lifetime_rho,
        label_distance=client.label_distance,
        filled_up=client.filled_up,
        set_aside=client.set_aside,
    )
