"""Routes of the clients: enrol, profile, verdict, announcement, budget, update, ledger, leave."""

from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Body, Header, Path, Query, Request, Response

from qidpfl_shared.core.planning import Standing
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import (
    Announcement,
    BudgetReceipt,
    BudgetRequest,
    EnrolAnswer,
    EnrolRequest,
    Ledger,
    Profile,
    SelectionVerdict,
    TaskState,
    UpdateReceipt,
)
from qidpfl_shared.protocol.wire import parse_content_digest

from ..clock import SECOND
from ..enrolment import enrol, leave, store_profile
from ..errors import Refused
from ..failpoints import failpoint
from ..rounds import accept_update, declare, first_receipt, mark_coming_back
from ..views import ledger, selection_verdict
from .auth import ClientId, TaskId
from .context import Ctx
from .problems import responses
from .uploads import receive

router = APIRouter(prefix="/v1/tasks/{task_id}", tags=["clients"])
RoundNumber = Annotated[int, Path(ge=1, le=1_000_000, description="the number of a round, from 1")]
_OWN = (ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN, ErrorCode.INVALID_REQUEST)


@router.post(
    "/clients",
    status_code=201,
    summary="Enrol",
    responses=responses(
        ErrorCode.UNAUTHENTICATED,
        ErrorCode.MALFORMED_JSON,
        ErrorCode.TASK_FULL,
        ErrorCode.TASK_NOT_ENROLLING,
        ErrorCode.TASK_ENDED,
        ErrorCode.ORDINAL_TAKEN,
        ErrorCode.ALREADY_ENROLLED,
        ErrorCode.CODE_USED,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.OUT_OF_BOUNDS,
    ),
)
async def enrol_client(context: Ctx, task_id: TaskId, request: Annotated[EnrolRequest, Body()]) -> EnrolAnswer:
    """Become a client of the task. Repeatable with the same key until the profile is stored."""
    now = context.now()
    answer = await context.write(lambda tx: enrol(tx, task_id, request, now))
    context.callers.forget()
    failpoint("enrol.after_commit")
    return answer


@router.put(
    "/clients/me/profile",
    status_code=204,
    summary="Store the profile",
    responses=responses(
        *_OWN,
        ErrorCode.MALFORMED_JSON,
        ErrorCode.PROFILE_FROZEN,
        ErrorCode.TASK_NOT_ENROLLING,
        ErrorCode.TASK_ENDED,
        ErrorCode.HISTOGRAM_MISMATCH,
        ErrorCode.OUT_OF_BOUNDS,
    ),
)
async def put_profile(context: Ctx, client_id: ClientId, task_id: TaskId, profile: Annotated[Profile, Body()]) -> None:
    """Label histogram, size, privacy value and caps; frozen once stored."""
    now = context.now()
    await context.write(lambda tx: store_profile(tx, client_id, profile, now))
    failpoint("profile.after_commit")


@router.get("/clients/me/selection", summary="Was I selected?", responses=responses(*_OWN))
async def get_selection(context: Ctx, client_id: ClientId, task_id: TaskId) -> SelectionVerdict:
    """The client's own label distance, the threshold and the counts."""
    return await context.read(lambda tx: selection_verdict(tx, client_id))


@router.get(
    "/rounds/current",
    summary="Wait for an announcement",
    response_model=Announcement,
    responses={204: {"description": "nothing new within the time"}, **responses(*_OWN)},
)
async def get_announcement(
    context: Ctx,
    client_id: ClientId,
    task_id: TaskId,
    after: Annotated[str, Query(pattern=r"^\d{1,7}\.\d{1,4}$", description="{round}.{attempt} already known")] = "0.0",
    wait: Annotated[float, Query(ge=0, le=60, description="seconds to wait for something newer")] = 0.0,
) -> Response:
    """Long poll. Answers at once if there is something newer than `after` or the task has ended."""
    number, _, attempt = after.partition(".")
    known = (int(number), int(attempt))
    deadline = context.now() + round(wait * SECOND)
    while True:
        board = await context.announcements.current(task_id)
        assert board is not None
        left = (deadline - context.now()) / SECOND
        if board.is_newer_than(known) or board.task.ended:
            break
        if left <= 0 or context.announcements.closing:
            if board.task.state is TaskState.ENROLLING:
                break
            return Response(status_code=204)
        await context.announcements.wait(task_id, left)
    if board.standings.get(client_id) is Standing.SET_ASIDE:
        await context.write(lambda tx: mark_coming_back(tx, client_id))
    body = board.announcement(client_id, context.now())
    return Response(body.model_dump_json(), media_type="application/json")


@router.put(
    "/rounds/{round_number}/budget",
    summary="Declare a budget, or decline",
    responses=responses(
        *_OWN,
        ErrorCode.MALFORMED_JSON,
        ErrorCode.NOT_FOUND,
        ErrorCode.NOT_INVITED,
        ErrorCode.BUDGET_DECLARED,
        ErrorCode.UPDATE_EXISTS,
        ErrorCode.ROUND_CLOSED,
        ErrorCode.OUT_OF_BOUNDS,
    ),
)
async def put_budget(
    context: Ctx,
    client_id: ClientId,
    task_id: TaskId,
    round_number: RoundNumber,
    request: Annotated[BudgetRequest, Body(examples=[{"rho": 0.05}])],
) -> BudgetReceipt:
    """The Stage II answer. May be changed once, to a decline, before the upload."""
    now = context.now()
    receipt = await context.write(lambda tx: declare(tx, client_id, round_number, request, now))
    failpoint("declare.after_commit")
    return receipt


@router.put(
    "/rounds/{round_number}/update",
    summary="Upload the noised update",
    responses=responses(
        *_OWN,
        ErrorCode.NOT_FOUND,
        ErrorCode.NOT_INVITED,
        ErrorCode.BUDGET_MISSING,
        ErrorCode.UPDATE_EXISTS,
        ErrorCode.UPDATE_REPLAYED,
        ErrorCode.ROUND_CLOSED,
        ErrorCode.LENGTH_REQUIRED,
        ErrorCode.BODY_TOO_LARGE,
        ErrorCode.UNSUPPORTED_MEDIA_TYPE,
        ErrorCode.DIGEST_REQUIRED,
        ErrorCode.DIGEST_MISMATCH,
        ErrorCode.WRONG_LENGTH,
        ErrorCode.NOT_FINITE,
        ErrorCode.STORAGE_FULL,
    ),
    openapi_extra={
        "requestBody": {
            "required": True,
            "description": "exactly 4·d bytes: little-endian float32 in the order of the task's layout",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def put_update(
    context: Ctx,
    client_id: ClientId,
    task_id: TaskId,
    round_number: RoundNumber,
    request: Request,
    content_digest: Annotated[str, Header(max_length=1000, description="sha-256=:base64: (RFC 9530)")] = "",
) -> UpdateReceipt:
    """Once per round and client. Acknowledged only when durable; a repeat of the same bytes gets its first receipt."""
    digest = parse_content_digest(content_digest)
    now = context.now()
    known = await context.read(lambda tx: first_receipt(tx, task_id, client_id, round_number, digest, now))
    if known is not None:
        return known
    board = await context.announcements.current(task_id)
    assert board is not None
    byte_length = board.task.spec.layout.byte_length
    _check_headers(request, byte_length)
    failpoint("upload.before_body")
    async with context.upload_slots:
        with await anyio.to_thread.run_sync(context.store.blobs.stage, limiter=context.disk) as blob:
            norm = await receive(context, blob, request.stream(), byte_length=byte_length, digest=digest)
            arrived = context.now()
            receipt = await context.write(
                lambda tx: accept_update(tx, task_id, client_id, round_number, blob, norm, arrived)
            )
    failpoint("upload.after_commit")
    return receipt


@router.get("/clients/me/ledger", summary="My ledger", responses=responses(*_OWN))
async def get_ledger(context: Ctx, client_id: ClientId, task_id: TaskId) -> Ledger:
    """What was declared, what is proven, what was paid."""
    return await context.read(lambda tx: ledger(tx, client_id))


@router.delete("/clients/me", status_code=204, summary="Leave", responses=responses(*_OWN))
async def leave_task(context: Ctx, client_id: ClientId, task_id: TaskId) -> None:
    """Out from the next round on; the ledgers stay."""
    now = context.now()
    await context.write(lambda tx: leave(tx, client_id, now))


def _check_headers(request: Request, byte_length: int) -> None:
    """Refuse what cannot become an update before its body is read."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise Refused(ErrorCode.UNSUPPORTED_MEDIA_TYPE, "no content encoding is accepted")
    if request.headers.get("content-type", "application/octet-stream").partition(";")[0] != "application/octet-stream":
        raise Refused(ErrorCode.UNSUPPORTED_MEDIA_TYPE, "send application/octet-stream")
    length = request.headers.get("content-length", "")
    if not length.isascii() or not length.isdigit():
        raise Refused(ErrorCode.LENGTH_REQUIRED)
    if int(length) > byte_length:
        raise Refused(ErrorCode.BODY_TOO_LARGE, f"{length} bytes, expected {byte_length}")
    if int(length) != byte_length:
        raise Refused(ErrorCode.WRONG_LENGTH, f"{length} bytes, expected {byte_length}")
