"""Authentication: the role behind the token or enrolment code of a request, and which role may do what.

The server gives unknown, wrong and revoked credentials the same 401, so that an answer tells nothing about tokens. A
caller that is known but may not do something gets 403.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import structlog
from fastapi import Depends, Path, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from qidpfl_shared.protocol.errors import ErrorCode

from ..clock import Micros
from ..domain import OperatorToken
from ..errors import RequestRefused
from ..identifiers import hash_secret, same_secret
from ..logs import LimitedLog
from ..service.credentials import ClientToken, Credential, use_client_token
from .context import Context, Ctx

_log = LimitedLog()
_MAX_CACHED_CALLERS = 100_000
# The key of a scope under which the HTTP protocol puts the fingerprint of the client's certificate.
CERTIFICATE = "qidpfl.certificate"

_BEARER = """A token, or an enrolment code where an operation says so.

- **admin**: all operations of operators; with a token for one task, those of this task only
- **viewer**: the operations that only read; with a token for one task, those of this task only
- **client**: the operations of one client in one task. If the client has enrolled with a certificate, its token is
  valid only on connections with this certificate
- **enrolment code**: read the task and enrol"""
bearer = HTTPBearer(auto_error=False, description=_BEARER)
Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(bearer)]
RoundNumber = Annotated[int, Path(ge=1, le=1_000_000, description="the number of a round, from 1")]
TaskId = Annotated[str, Path(max_length=64, pattern=r"^[0-9a-f]{1,64}$", description="the id of a task")]


class CallerRole(StrEnum):
    """The roles; each has its own credentials."""

    ADMIN = "admin"
    VIEWER = "viewer"
    CLIENT = "client"
    CODE = "code"


_OPERATORS = (CallerRole.ADMIN, CallerRole.VIEWER)


@dataclass(frozen=True)
class Caller:
    """A caller with valid credentials. `task_id` is the only task that they are for; None: all tasks.

    `certificate` is the fingerprint of the certificate that the connection must have. `operator` is the id of the
    token of an operator; the two static tokens have none.
    """

    role: CallerRole
    client_id: str | None = None
    task_id: str | None = None
    certificate: str | None = None
    expires_at: Micros | None = None
    operator: str | None = None

    @property
    def is_global_operator(self) -> bool:
        return self.role in _OPERATORS and self.task_id is None

    def may_reach(self, task_id: str) -> bool:
        return self.task_id is None or self.task_id == task_id

    def is_valid(self, certificate: str | None, now: Micros) -> bool:
        """Whether the credentials are valid now, on a connection with this certificate."""
        expired = self.expires_at is not None and now >= self.expires_at
        return not expired and self.certificate in (None, certificate)


class CallerCache:
    """Callers by the hash of their token, so that most requests do not read the store.

    The cache is cleared when a token may have been revoked: at once by this process, within a second by another one.
    """

    def __init__(self) -> None:
        self._by_hash: dict[str, Caller] = {}
        self.generation = 0
        # Hashes of tokens with which operators of all tasks were last known. They decide the lane of a request only,
        # so they stay when the cache is cleared.
        self._operators: set[str] = set()

    def was_operator(self, token: str) -> bool:
        """Whether this was the token of an operator of all tasks when it was last looked up."""
        return bool(self._operators) and hash_secret(token) in self._operators

    def get(self, token_hash: str) -> Caller | None:
        return self._by_hash.get(token_hash)

    def add(self, token_hash: str, caller: Caller, *, generation: int) -> None:
        """Cache a caller that was read in this generation; an older one may have been revoked since."""
        if caller.is_global_operator:
            self._operators.add(token_hash)
        if generation != self.generation:
            return
        if len(self._by_hash) >= _MAX_CACHED_CALLERS:
            self.clear()
        self._by_hash[token_hash] = caller

    def forget_operator(self, token_hash: str) -> None:
        """Note that this is not the token of an operator any more."""
        self._operators.discard(token_hash)

    def clear(self) -> None:
        self._by_hash.clear()
        self.generation += 1


async def get_caller_cache(request: Request) -> CallerCache:
    """A coroutine, so that FastAPI does not use a thread for it."""
    callers: CallerCache = request.app.state.callers
    return callers


Callers = Annotated[CallerCache, Depends(get_caller_cache)]


def certificate_of(request: Request) -> str | None:
    """The fingerprint of the certificate that the client's connection has shown; None without one."""
    fingerprint: str | None = request.scope.get(CERTIFICATE)
    return fingerprint


async def identify(request: Request, context: Ctx, callers: Callers, credentials: Bearer) -> Caller:
    """The caller of a request, or 401."""
    if credentials is None:
        raise RequestRefused(ErrorCode.UNAUTHENTICATED)
    return await identify_token(context, callers, credentials.credentials, certificate_of(request))


async def identify_token(context: Context, callers: CallerCache, token: str, certificate: str | None) -> Caller:
    """The caller with a token, on a connection with this certificate, or 401."""
    if same_secret(token, context.secrets.admin):
        return Caller(CallerRole.ADMIN)
    if same_secret(token, context.secrets.viewer):
        return Caller(CallerRole.VIEWER)
    token_hash = hash_secret(token)
    caller = callers.get(token_hash)
    if caller is None or not caller.is_valid(certificate, context.now()):
        generation = callers.generation
        caller = await _look_up(context, callers, token_hash, certificate)
        if caller is None:
            callers.forget_operator(token_hash)
            _log.warning("login_failed")
            raise RequestRefused(ErrorCode.UNAUTHENTICATED)
        callers.add(token_hash, caller, generation=generation)
    if caller.role is not CallerRole.CODE:
        # A proven token has its own rate of requests. Clients may share a code, so it has the rate of the address.
        context.rates.know(token_hash)
    if caller.operator is not None:
        # The log says which operator did what.
        structlog.contextvars.bind_contextvars(operator=caller.operator)
    return caller


async def _look_up(context: Context, callers: CallerCache, token_hash: str, certificate: str | None) -> Caller | None:
    now = context.now()
    found = await context.look_up_credential(token_hash)
    caller = _caller(found, token_hash)
    # Checked before the token counts as used: a stolen token without its certificate changes nothing.
    if caller is None or not caller.is_valid(certificate, now):
        return None
    if isinstance(found, ClientToken) and (found.is_next or not found.client.token_used):
        # The token may have been replaced since it was read: the transaction that keeps it decides.
        token = found
        if not await context.write(lambda tx: use_client_token(tx, token), task_id=token.client.task_id):
            return None
        if found.is_next:
            # The old token is revoked by now.
            callers.clear()
    if isinstance(found, OperatorToken) and not found.token_used and found.token_hash == token_hash:
        token_id = found.token_id
        await context.write(lambda tx: tx.operator_tokens.mark_used(token_id, token_hash))
    return caller


def _caller(found: Credential | None, token_hash: str) -> Caller | None:
    match found:
        case None:
            return None
        case ClientToken(client=client, certificate=certificate):
            return Caller(CallerRole.CLIENT, client.client_id, client.task_id, certificate)
        case OperatorToken():
            return Caller(
                CallerRole(found.role),
                task_id=found.task_id,
                expires_at=found.valid_until(token_hash),
                operator=found.token_id,
            )
        case _:
            return Caller(CallerRole.CODE, task_id=found.task_id)


Identified = Annotated[Caller, Depends(identify)]


async def global_admin(caller: Identified) -> Caller:
    """Admin of all tasks."""
    if caller.role is not CallerRole.ADMIN or caller.task_id is not None:
        raise RequestRefused(ErrorCode.FORBIDDEN)
    return caller


async def any_operator(caller: Identified) -> Caller:
    """Admin or viewer, of one task or of all tasks."""
    if caller.role not in _OPERATORS:
        raise RequestRefused(ErrorCode.FORBIDDEN)
    return caller


async def admin(task_id: TaskId, caller: Identified) -> Caller:
    """Admin of this task or of all tasks."""
    if caller.role is not CallerRole.ADMIN or not caller.may_reach(task_id):
        raise RequestRefused(ErrorCode.FORBIDDEN)
    return caller


async def operator(task_id: TaskId, caller: Identified) -> Caller:
    """Admin or viewer of this task or of all tasks."""
    if caller.role not in _OPERATORS or not caller.may_reach(task_id):
        raise RequestRefused(ErrorCode.FORBIDDEN)
    return caller


async def reader(task_id: TaskId, caller: Identified) -> Caller:
    """Admin or viewer, or a client of this task."""
    if caller.role is CallerRole.CODE or not caller.may_reach(task_id):
        raise RequestRefused(ErrorCode.FORBIDDEN)
    return caller


async def task_caller(request: Request, task_id: TaskId, context: Ctx, callers: Callers, credentials: Bearer) -> Caller:
    """Admin, viewer, a client of this task, or a holder of its enrolment code or of a certificate for it."""
    if credentials is None and certificate_of(request) is not None:
        if not await takes_certificates(context, task_id):
            raise RequestRefused(ErrorCode.UNAUTHENTICATED)
        return Caller(CallerRole.CODE, task_id=task_id)
    caller = await identify(request, context, callers, credentials)
    if not caller.may_reach(task_id):
        raise RequestRefused(ErrorCode.FORBIDDEN)
    return caller


async def takes_certificates(context: Context, task_id: str) -> bool:
    """Whether clients may enrol in this task with a certificate instead of a code. Only the operator allows it."""
    allowed = context.settings.certificate_task_names
    if not allowed:
        return False
    task = await context.read(lambda tx: tx.tasks.get(task_id))
    return task is not None and ("*" in allowed or task.name in allowed)


async def participant(task_id: TaskId, caller: Identified) -> str:
    """The id of a client of this task."""
    if caller.client_id is None or caller.task_id != task_id:
        raise RequestRefused(ErrorCode.FORBIDDEN)
    return caller.client_id


OtherClientId = Annotated[str, Path(max_length=64, pattern=r"^[0-9a-z]{1,64}$", description="the id of a client")]
GlobalAdmin = Annotated[Caller, Depends(global_admin)]
AnyOperator = Annotated[Caller, Depends(any_operator)]
Admin = Annotated[Caller, Depends(admin)]
Operator = Annotated[Caller, Depends(operator)]
Reader = Annotated[Caller, Depends(reader)]
TaskCaller = Annotated[Caller, Depends(task_caller)]
ClientId = Annotated[str, Depends(participant)]
