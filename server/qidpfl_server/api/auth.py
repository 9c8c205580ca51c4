"""Who is calling: admin, viewer, a client of one task, or somebody with an enrolment code.

Unknown, wrong and revoked credentials get one and the same answer. What a known caller may not do is 403.
"""

from typing import Annotated

from fastapi import Depends, Path, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from qidpfl_shared.protocol.errors import ErrorCode

from ..errors import RequestRefused
from ..identifiers import hash_secret, same_secret
from .callers import Caller, CallerRole
from .context import Context, Ctx

bearer = HTTPBearer(auto_error=False, description="an admin, viewer or client token, or an enrolment code")
Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(bearer)]
RoundNumber = Annotated[int, Path(ge=1, le=1_000_000, description="the number of a round, from 1")]
TaskId = Annotated[str, Path(max_length=64, pattern=r"^[0-9a-f]{1,64}$", description="the id of a task")]


async def identify(context: Ctx, credentials: Bearer) -> Caller:
    """The caller of a request, or 401."""
    if credentials is None:
        raise RequestRefused(ErrorCode.UNAUTHENTICATED)
    token = credentials.credentials
    if same_secret(token, context.secrets.admin):
        return Caller(CallerRole.ADMIN)
    if same_secret(token, context.secrets.viewer):
        return Caller(CallerRole.VIEWER)
    token_hash = hash_secret(token)
    era = context.callers.era
    found = context.callers.get(token_hash) or await _look_up(context, token_hash)
    if found is None:
        raise RequestRefused(ErrorCode.UNAUTHENTICATED)
    context.callers.add(token_hash, found, era=era)
    return found


async def _look_up(context: Context, token_hash: str) -> Caller | None:
    client = await context.read(lambda tx: tx.clients.by_token(token_hash))
    if client is not None:
        return Caller(CallerRole.CLIENT, client.client_id, client.task_id)
    task_id = await context.read(lambda tx: tx.tasks.task_of_code(token_hash))
    return None if task_id is None else Caller(CallerRole.CODE, None, task_id)


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


async def anybody_of_task(task_id: TaskId, caller: Identified) -> Caller:
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
AnybodyOfTask = Annotated[Caller, Depends(anybody_of_task)]
ClientId = Annotated[str, Depends(participant)]
