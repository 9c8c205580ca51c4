"""Tokens of operators and of clients: create, rotate, revoke and find them; enrolment with a certificate."""

from dataclasses import dataclass

from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol.credentials import (
    CreatedOperatorToken,
    CreateOperatorToken,
    NewClientToken,
    OperatorRole,
    OperatorTokenInfo,
)
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import EnrolAnswer

from ..clock import Micros, as_datetime, seconds
from ..domain import Client, OperatorToken
from ..errors import RequestRefused
from ..identifiers import hash_secret, new_id, new_secret
from ..store.transaction import Transaction
from .enrolment import admit, use_token
from .lifecycle import get_task, get_task_for_update, known_client


@dataclass(frozen=True)
class ClientToken:
    """A client and one of its tokens. `is_next` is true for a rotated token that was never used."""

    client: Client
    token_hash: str
    certificate: str | None
    is_next: bool


@dataclass(frozen=True)
class CodeHolder:
    """A holder of an enrolment code of a task."""

    task_id: str


Credential = ClientToken | OperatorToken | CodeHolder


def find_credential(tx: Transaction, token_hash: str, now: Micros) -> Credential | None:
    """What a token or an enrolment code stands for; None if it is unknown, revoked or expired."""
    client = tx.clients.by_token(token_hash)
    if client is not None:
        extra = tx.credentials.get(client.client_id)
        return ClientToken(client, token_hash, None if extra is None else extra.certificate, is_next=False)
    pending = tx.credentials.by_pending(token_hash)
    if pending is not None:
        return ClientToken(known_client(tx, pending.client_id), token_hash, pending.certificate, is_next=True)
    operator = tx.operator_tokens.by_hash(token_hash)
    if operator is not None:
        until = operator.valid_until(token_hash)
        return operator if operator.is_valid(now) and (until is None or now < until) else None
    task_id = tx.tasks.task_of_code(token_hash)
    return None if task_id is None else CodeHolder(task_id)


# --- clients ---------------------------------------------------------------------------------------------------------


def rotate_client_token(tx: Transaction, client_id: str, token_hash: str) -> NewClientToken:
    """Give a client its next token, in place of an earlier one that it has not used.

    The current token stays valid until the next one is used. So a lost answer locks no client out.
    """
    client = known_client(tx, client_id)
    get_task_for_update(tx, client.task_id)
    # The token may have been revoked since the request was let in.
    if tx.clients.by_token(token_hash) is None:
        raise RequestRefused(ErrorCode.UNAUTHENTICATED)
    token = new_secret()
    tx.credentials.set_pending(client_id, client.task_id, hash_secret(token))
    failpoint("rotate.before_commit")
    return NewClientToken(token=token)


def use_client_token(tx: Transaction, found: ClientToken) -> bool:
    """Note the first use of a token, which revokes the one before it; False if another one has replaced it."""
    client = found.client
    if not found.is_next:
        return use_token(tx, client, found.token_hash)
    if not tx.credentials.take_pending(client.client_id, found.token_hash):
        # Another request may just have done the same.
        known = tx.clients.by_token(found.token_hash)
        return known is not None and known.client_id == client.client_id
    tx.clients.set_token(client.client_id, found.token_hash)
    tx.clients.mark_token_used(client.client_id, found.token_hash)
    # Other coordinators must drop the old token from their caches.
    tx.touch(client.task_id)
    failpoint("rotate.before_use")
    return True


def enrol_with_certificate(
    tx: Transaction, task_id: str, certificate: str, ordinal: int | None, now: Micros
) -> EnrolAnswer:
    """Enrol the holder of a certificate, which has one place in the task. Its tokens are bound to the certificate."""
    # No enrolment key of a client has a colon.
    answer = admit(tx, task_id, key_hash=hash_secret(f"certificate:{certificate}"), ordinal=ordinal, now=now)
    tx.credentials.set_certificate(answer.client_id, task_id, certificate)
    return answer


# --- operators -------------------------------------------------------------------------------------------------------


def create_operator_token(tx: Transaction, request: CreateOperatorToken, now: Micros) -> CreatedOperatorToken:
    """Make a token for an operator of one task or of all tasks."""
    if request.task_id is not None:
        get_task(tx, request.task_id)
    secret = new_secret()
    token = OperatorToken(
        token_id=new_id(),
        name=request.name,
        role=request.role.value,
        task_id=request.task_id,
        token_hash=hash_secret(secret),
        token_used=False,
        created_at=now,
        expires_at=None if request.valid_s is None else now + seconds(request.valid_s),
    )
    tx.operator_tokens.insert(token)
    return CreatedOperatorToken(token=secret, info=_info(token, now))


def operator_tokens(tx: Transaction, now: Micros) -> list[OperatorTokenInfo]:
    """All tokens of operators, oldest first, also revoked ones."""
    return [_info(token, now) for token in tx.operator_tokens.all()]


def revoke_operator_token(tx: Transaction, token_id: str, now: Micros) -> None:
    """Revoke a token and the one before it. Idempotent."""
    _operator_token(tx, token_id)
    tx.operator_tokens.revoke(token_id, now)
    tx.touch_tokens()


def rotate_operator_token(
    tx: Transaction, token_id: str, *, overlap_s: float, valid_s: float | None, now: Micros
) -> CreatedOperatorToken:
    """Replace a token. The old one stays valid for the overlap.

    If the current token is the result of a rotation and was never used, its answer may have been lost: the token before
    it stays the old one, so that the programs that use it are not locked out.
    """
    token = _operator_token(tx, token_id)
    if not token.is_valid(now):
        raise RequestRefused(ErrorCode.TOKEN_REVOKED)
    overlaps = token.previous_hash is not None and token.previous_until is not None and now < token.previous_until
    old_hash = token.previous_hash if overlaps and not token.token_used else token.token_hash
    secret = new_secret()
    tx.operator_tokens.replace(
        token_id,
        {
            "token_hash": hash_secret(secret),
            "token_used": False,
            "previous_hash": old_hash,
            "previous_until": now + seconds(overlap_s),
            "rotated_at": now,
            "expires_at": token.expires_at if valid_s is None else now + seconds(valid_s),
        },
    )
    tx.touch_tokens()
    return CreatedOperatorToken(token=secret, info=_info(_operator_token(tx, token_id), now))


def _operator_token(tx: Transaction, token_id: str) -> OperatorToken:
    token = tx.operator_tokens.get_for_update(token_id)
    if token is None:
        raise RequestRefused(ErrorCode.NOT_FOUND, "there is no such token")
    return token


def _info(token: OperatorToken, now: Micros) -> OperatorTokenInfo:
    old_until = token.previous_until if token.is_valid(now) and now < (token.previous_until or 0) else None
    times = (token.expires_at, token.revoked_at, token.rotated_at, old_until)
    expires_at, revoked_at, rotated_at, old_valid_until = (None if at is None else as_datetime(at) for at in times)
    return OperatorTokenInfo(
        token_id=token.token_id,
        name=token.name,
        role=OperatorRole(token.role),
        task_id=token.task_id,
        created_at=as_datetime(token.created_at),
        expires_at=expires_at,
        revoked_at=revoked_at,
        rotated_at=rotated_at,
        old_valid_until=old_valid_until,
    )
