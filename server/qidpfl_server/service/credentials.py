"""What the store knows of a token or an enrolment code."""

from dataclasses import dataclass

from ..domain import Client
from ..store.transaction import Transaction


@dataclass(frozen=True)
class Credential:
    """The client of a token, or the task of an enrolment code; an unknown secret has neither."""

    client: Client | None = None
    code_of_task: str | None = None


UNKNOWN = Credential()


def find_credential(tx: Transaction, secret_hash: str) -> Credential:
    """The credential whose secret has this hash.

    Args:
        tx: a transaction that may only read.
        secret_hash: the stored form of a token or an enrolment code.

    Returns:
        `UNKNOWN` if it is neither a valid token nor a code.
    """
    if (client := tx.clients.by_token(secret_hash)) is not None:
        return Credential(client=client)
    task_id = tx.tasks.task_of_code(secret_hash)
    return UNKNOWN if task_id is None else Credential(code_of_task=task_id)
