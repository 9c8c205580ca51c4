"""Authentication: the role behind the token or enrolment code of a request, and which role may do what.

The server gives unknown, wrong and revoked credentials the same 401, so that an answer tells nothing about tokens. A
caller that is known but may not do something gets 403.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from fastapi import Depends, Path, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from qidpfl_shared.protocol.errors import ErrorCode

from ..errors import RequestRefused
from ..identifiers import hash_secret, same_secret
from ..logs import LimitedLog
from ..service.enrolment import use_token
from .context import Context, Ctx

_log = LimitedLog()
_MAX_CACHED_CALLERS = 100_000

bearer = HTTPBearer(auto_error=False, description="an admin, viewer or client token, or an enrolment code")
Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(bearer)]
RoundNumber = Annotated[int, Path(ge=1, le=1_000_000, description="the number of a round, from 1")]
TaskId = Annotated[str, Path(max_length=64, pattern=r"^[0-9a-f]{1,64}$", description="the id of a task")]


class CallerRole(StrEnum):
    """The roles; each has its own credentials."""

    ADMIN = "admin"
    VIEWER = "viewer"
    CLIENT = "client"
    CODE = "code"


@dataclass(frozen=True)
class Caller:
    """A caller with valid credentials. A client and a holder of an enrolment code belong to one task."""

    role: CallerRole
    client_id: str | None = None
    task_id: str | None = None


class CallerCache:
    """Callers by the hash of their token, so that most requests do not read the store.

    The cache is cleared when a token may have been revoked: at once by this process, within a second by another one.
    """

    def __init__(self) -> None:
        self._by_hash: dict[str, Caller] = {}
        self.generation = 0

    def get(self, token_hash: str) -> Caller | None:
        return self._by_hash.get(token_hash)

    def add(self, token_hash: str, caller: Caller, *, generation: int) -> None:
        """Cache a caller that was read in this generation; an older one may have been revoked since."""
        if generation != self.generation:
            return
        if len(self._by_hash) >= _MAX_CACHED_CALLERS:
            self.clear()
        self._by_hash[token_hash] = caller

    def clear(self) -> None:
        self._by_hash.clear()
        self.generation += 1


async def get_caller_cache(request: Request) -> CallerCache:
    """A coroutine, so that FastAPI does not use a thread for it."""
    callers: CallerCache = request.app.state.callers
    return callers


Callers = Annotated[CallerCache, Depends(get_caller_cache)]


async def identify(context: Ctx, callers: Callers, credentials: Bearer) -> Caller:
    """The caller of a request, or 401."""
    if credentials is None:
        raise RequestRefused(ErrorCode.UNAUTHENTICATED)
    token = credentials.credentials
    if same_secret(token, context.secrets.admin):
        return Caller(CallerRole.ADMIN)
    if same_secret(token, context.secrets.viewer):
        return Caller(CallerRole.VIEWER)
    token_hash = hash_secret(token)
    if (cached := callers.get(token_hash)) is not None:
        _know(context, cached, token_hash)
        return cached
    generation = callers.generation
    found = await _look_up(context, token_hash)
    if found is None:
        _log.warning("login_failed")
        raise RequestRefused(ErrorCode.UNAUTHENTICATED)
    callers.add(token_hash, found, generation=generation)
    _know(context, found, token_hash)
    return found


def _know(context: Context, caller: Caller, token_hash: str) -> None:
    """Give a client its own rate of requests. All clients of a task may share a code, so it has the address's rate."""
    if caller.role is CallerRole.CLIENT:
        context.rates.know(token_hash)


async def _look_up(context: Context, token_hash: str) -> Caller | None:
    found = await context.look_up_credential(token_hash)
    if (client := found.client) is not None:
        # The token may have been replaced since it was read: the transaction that keeps it decides.
        if not client.token_used and not await context.write(lambda tx: use_token(tx, client, token_hash)):
            return None
        return Caller(CallerRole.CLIENT, client.client_id, client.task_id)
    return None if found.code_of_task is None else Caller(CallerRole.CODE, None, found.code_of_task)


Identified = Annotated[Caller, Depends(identify)]


async def admin(caller: Identified) -> Caller:
    if caller.role is not CallerRole.ADMIN:
        raise RequestRefused(ErrorCode.FORBIDDEN)
    return caller


async def operator(caller: Identified) -> Caller:
    """Admin or viewer."""
    if caller.role not in (CallerRole.ADMIN, CallerRole.VIEWER):
        raise RequestRefused(ErrorCode.FORBIDDEN)
    return caller


async def reader(task_id: TaskId, caller: Identified) -> Caller:
    """Admin, viewer, or a client of this task."""
    if caller.role is CallerRole.CODE or (caller.role is CallerRole.CLIENT and caller.task_id != task_id):
        raise RequestRefused(ErrorCode.FORBIDDEN)
    return caller


async def task_caller(task_id: TaskId, caller: Identified) -> Caller:
    """Admin, viewer, a client of this task, or a holder of its enrolment code."""
    if caller.task_id is not None and caller.task_id != task_id:
        raise RequestRefused(ErrorCode.FORBIDDEN)
    return caller


async def participant(task_id: TaskId, caller: Identified) -> str:
    """The id of a client of this task."""
    if caller.client_id is None or caller.task_id != task_id:
        raise RequestRefused(ErrorCode.FORBIDDEN)
    return caller.client_id


Admin = Annotated[Caller, Depends(admin)]
Operator = Annotated[Caller, Depends(operator)]
Reader = Annotated[Caller, Depends(reader)]
TaskCaller = Annotated[Caller, Depends(task_caller)]
ClientId = Annotated[str, Depends(participant)]
