"""Tokens of operators, and what clients have beside their tokens: the next token and the certificate."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BindParameter, Connection, Row, bindparam, insert, or_, select, text, update

from ...clock import Micros
from ...domain import OperatorToken
from ..schema import client_credentials, operator_tokens
from ..validation import rows_of
from .chain import ChainRows

# Built once: building a statement costs several times as much as running it.
_HASH: BindParameter[str] = bindparam("token_hash")
_OPERATOR = select(operator_tokens).where(
    or_(operator_tokens.c.token_hash == _HASH, operator_tokens.c.previous_hash == _HASH)
)
_OF_CLIENT = select(client_credentials).where(client_credentials.c.client_id == bindparam("client_id"))
_BY_PENDING = select(client_credentials).where(client_credentials.c.pending_hash == _HASH)
_ADD_CLIENT = text(
    "INSERT INTO client_credentials (client_id, task_id) VALUES (:client_id, :task_id)"
    " ON CONFLICT (client_id) DO NOTHING"
)


@dataclass(frozen=True)
class ClientCredentials:
    """The next token of a client (its hash), and the fingerprint of the certificate that its tokens are bound to."""

    client_id: str
    task_id: str
    pending_hash: str | None
    certificate: str | None


class OperatorTokenRows:
    def __init__(self, connection: Connection, chain: ChainRows) -> None:
        self._connection = connection
        self._chain = chain

    def insert(self, token: OperatorToken) -> None:
        self._connection.execute(insert(operator_tokens).values(vars(token)))
        self._chain.mark("operator", token.token_id)

    def get_for_update(self, token_id: str) -> OperatorToken | None:
        """The token, locked until the end of the transaction."""
        query = select(operator_tokens).where(operator_tokens.c.token_id == token_id).with_for_update()
        row = self._connection.execute(query).one_or_none()
        return None if row is None else _operator_token(row)

    def by_hash(self, token_hash: str) -> OperatorToken | None:
        """The token of which this is the current or the previous hash."""
        row = self._connection.execute(_OPERATOR, {"token_hash": token_hash}).one_or_none()
        return None if row is None else _operator_token(row)

    def all(self) -> list[OperatorToken]:
        query = select(operator_tokens).order_by(operator_tokens.c.created_at, operator_tokens.c.token_id)
        return [_operator_token(row) for row in self._connection.execute(query)]

    def mark_used(self, token_id: str, token_hash: str) -> None:
        """Note that the current token has been used; without effect if another one has replaced it."""
        self._change(token_id, {"token_used": True}, operator_tokens.c.token_hash == token_hash)

    def revoke(self, token_id: str, at: Micros) -> None:
        self._change(token_id, {"revoked_at": at}, operator_tokens.c.revoked_at.is_(None))

    def replace(self, token_id: str, values: Mapping[str, object]) -> None:
        self._change(token_id, values)

    def _change(self, token_id: str, values: Mapping[str, object], *where: Any) -> None:
        query = update(operator_tokens).where(operator_tokens.c.token_id == token_id, *where).values(values)
        if self._connection.execute(query).rowcount and set(values) != {"token_used"}:
            self._chain.mark("operator", token_id)


class ClientCredentialRows:
    def __init__(self, connection: Connection, chain: ChainRows) -> None:
        self._connection = connection
        self._chain = chain

    def get(self, client_id: str) -> ClientCredentials | None:
        return self._one(_OF_CLIENT, {"client_id": client_id})

    def by_pending(self, token_hash: str) -> ClientCredentials | None:
        """The client of which this is the next token."""
        return self._one(_BY_PENDING, {"token_hash": token_hash})

    def set_pending(self, client_id: str, task_id: str, token_hash: str) -> None:
        """Replace the next token of a client."""
        self._set(client_id, task_id, {"pending_hash": token_hash})

    def set_certificate(self, client_id: str, task_id: str, certificate: str) -> None:
        """Bind the tokens of a client to a certificate."""
        self._set(client_id, task_id, {"certificate": certificate})

    def take_pending(self, client_id: str, token_hash: str) -> bool:
        """Remove the next token of a client; False if it is not this one any more."""
        where = (client_credentials.c.client_id == client_id, client_credentials.c.pending_hash == token_hash)
        query = update(client_credentials).where(*where).values(pending_hash=None)
        self._chain.mark("client", client_id)
        return self._connection.execute(query).rowcount == 1

    def drop_pending(self, client_id: str) -> None:
        """Remove the next token of a client, if there is one."""
        where = client_credentials.c.client_id == client_id
        self._connection.execute(update(client_credentials).where(where).values(pending_hash=None))
        self._chain.mark("client", client_id)

    def _set(self, client_id: str, task_id: str, values: Mapping[str, object]) -> None:
        self._connection.execute(_ADD_CLIENT, {"client_id": client_id, "task_id": task_id})
        where = client_credentials.c.client_id == client_id
        self._connection.execute(update(client_credentials).where(where).values(values))
        self._chain.mark("client", client_id)

    def _one(self, query: Any, parameters: Mapping[str, str]) -> ClientCredentials | None:
        row = self._connection.execute(query, parameters).one_or_none()
        return None if row is None else _credentials(row)


@rows_of(operator_tokens)
def _operator_token(row: Row[Any]) -> OperatorToken:
    return OperatorToken(**row._mapping)


@rows_of(client_credentials)
def _credentials(row: Row[Any]) -> ClientCredentials:
    return ClientCredentials(**row._mapping)
