"""Routes of the tokens of operators: create, list, revoke and rotate them. Only an admin of all tasks may."""

from typing import Annotated

import structlog
from fastapi import APIRouter, Body, Path

from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol.credentials import (
    CreatedOperatorToken,
    CreateOperatorToken,
    OperatorTokenInfo,
    RotateOperatorToken,
)
from qidpfl_shared.protocol.errors import ErrorCode

from ...service.credentials import (
    create_operator_token,
    operator_tokens,
    revoke_operator_token,
    rotate_operator_token,
)
from ..auth import Callers, GlobalAdmin
from ..context import Ctx
from ..document import examples
from ..errors import JSON_BODY, responses
from ..json_routes import StrictJsonRoute

router = APIRouter(prefix="/v1/operator-tokens", tags=["operators"], route_class=StrictJsonRoute)
_log = structlog.get_logger()
_ADMIN = (ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN)
_NAMED = (*_ADMIN, ErrorCode.NOT_FOUND, ErrorCode.INVALID_REQUEST)
TokenId = Annotated[str, Path(max_length=64, pattern=r"^[0-9a-f]{1,64}$", description="the id of an operator's token")]


@router.post(
    "",
    status_code=201,
    operation_id="create_operator_token",
    summary="Create an operator's token",
    responses=responses(*_ADMIN, *JSON_BODY, ErrorCode.NOT_FOUND, ErrorCode.STORAGE_FULL),
)
async def create_token(
    context: Ctx, caller: GlobalAdmin, request: Annotated[CreateOperatorToken, Body(examples=[examples.TOKEN_REQUEST])]
) -> CreatedOperatorToken:
    """Make a token with a role, for one task or for all tasks. The token is shown only once."""
    now = context.now()
    created = await context.write(lambda tx: create_operator_token(tx, request, now))
    _log.info("admin_action", action="token_create", made=created.info.token_id, task=request.task_id)
    return created


@router.get("", operation_id="list_operator_tokens", summary="List the operators' tokens", responses=responses(*_ADMIN))
async def list_tokens(context: Ctx, caller: GlobalAdmin) -> list[OperatorTokenInfo]:
    """All tokens that were created here, oldest first, also revoked ones. The tokens themselves are never shown."""
    now = context.now()
    return await context.read(lambda tx: operator_tokens(tx, now))


@router.delete(
    "/{token_id}",
    operation_id="revoke_operator_token",
    status_code=204,
    summary="Revoke an operator's token",
    responses=responses(*_NAMED),
)
async def revoke_token(context: Ctx, callers: Callers, caller: GlobalAdmin, token_id: TokenId) -> None:
    """Revoke a token: at once on this coordinator, within about a second on others. A repeat changes nothing."""
    now = context.now()
    await context.write(lambda tx: revoke_operator_token(tx, token_id, now))
    callers.clear()
    _log.info("admin_action", action="token_revoke", revoked=token_id)


@router.post(
    "/{token_id}/rotate",
    operation_id="rotate_operator_token",
    summary="Rotate an operator's token",
    responses=responses(*_NAMED, *JSON_BODY, ErrorCode.TOKEN_REVOKED, ErrorCode.STORAGE_FULL),
)
async def rotate_token(
    context: Ctx,
    callers: Callers,
    caller: GlobalAdmin,
    token_id: TokenId,
    request: Annotated[RotateOperatorToken, Body(examples=[{"overlap_s": 3600}])],
) -> CreatedOperatorToken:
    """Replace a token. The old one stays valid for the overlap. The new one is shown only once."""
    now = context.now()
    rotated = await context.write(
        lambda tx: rotate_operator_token(tx, token_id, overlap_s=request.overlap_s, valid_s=request.valid_s, now=now)
    )
    callers.clear()
    _log.info("admin_action", action="token_rotate", rotated=token_id)
    failpoint("rotate.operator_after_commit")
    return rotated
