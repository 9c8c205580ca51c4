"""Routes of admin and viewer over the clients of a task."""

from typing import Annotated

from fastapi import APIRouter, Path

from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import ClientSummary

from ...service.roster import revoke_client, roster
from ..auth import Admin, Operator, TaskId
from ..context import Ctx
from ..errors import responses

router = APIRouter(prefix="/v1/tasks/{task_id}/clients", tags=["clients"])
OtherClientId = Annotated[str, Path(max_length=64, pattern=r"^[0-9a-z]{1,64}$", description="the id of a client")]
_CODES = (ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN, ErrorCode.NOT_FOUND, ErrorCode.INVALID_REQUEST)


@router.get("", summary="List the clients", responses=responses(*_CODES))
async def list_clients(context: Ctx, caller: Operator, task_id: TaskId) -> list[ClientSummary]:
    """Every client with its profile, label distance and verdict."""
    return await context.read(lambda tx: roster(tx, task_id))


@router.delete("/{client_id}", status_code=204, summary="Put a client out", responses=responses(*_CODES))
async def delete_client(context: Ctx, caller: Admin, task_id: TaskId, client_id: OtherClientId) -> None:
    """Revoke its token. It is out from the next round on; its ledgers stay, and what it delivered counts."""
    now = context.now()
    await context.write(lambda tx: revoke_client(tx, task_id, client_id, now))
    context.callers.forget()
