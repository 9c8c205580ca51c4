"""Routes of the rounds of a task: announcement, budget, upload of the update, and result."""

from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Body, Query, Request, Response
from pydantic import TypeAdapter

from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import (
    Announcement,
    BudgetReceipt,
    BudgetRequest,
    RoundResult,
    TaskState,
    UpdateReceipt,
)
from qidpfl_shared.protocol.wire import parse_content_digest

from ...clock import SECOND
from ...errors import RequestRefused
from ...service.rounds.planning import mark_coming_back
from ...service.rounds.submissions import (
    BudgetAnswer,
    Delivery,
    StagedDelivery,
    accept_updates,
    declare_budgets,
    void_update,
)
from ...service.views import AnnouncementState, as_seen_by, last_closed_round
from ...store.small_blobs import SMALL_BYTES
from ...store.store import RoundKey
from ..auth import Admin, ClientId, OtherClientId, Reader, RoundNumber, TaskId, bearer, identify, participant
from ..context import Context, Ctx, get_context
from ..document import examples
from ..document.security import requirement
from ..errors import JSON_BODY, responses
from ..json_routes import StrictJsonRoute
from ..openapi import success
from ..uploads import CONTENT_DIGEST, VECTOR_BODY, check_headers

router = APIRouter(prefix="/v1/tasks/{task_id}/rounds", route_class=StrictJsonRoute)
_log = structlog.get_logger()
_round_number: TypeAdapter[int] = TypeAdapter(RoundNumber)
_OWN = (ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN, ErrorCode.INVALID_REQUEST)
_UPLOAD_PARAMETERS: dict[str, Any] = {
    "parameters": [
        {"in": "path", "name": "task_id", "required": True, "schema": TypeAdapter(TaskId).json_schema()},
        {"in": "path", "name": "round_number", "required": True, "schema": _round_number.json_schema()},
        CONTENT_DIGEST,
    ],
    "requestBody": VECTOR_BODY,
    "security": requirement("client"),
}


@router.get(
    "/current",
    tags=["clients"],
    summary="Wait for an announcement",
    response_model=Announcement,
    responses={
        **success(examples=examples.ANNOUNCEMENTS, description="something newer, or no round yet, or the end"),
        204: {"description": "nothing new within the time: ask again with the same `after`"},
        **responses(*_OWN),
    },
)
async def get_announcement(
    context: Ctx,
    client_id: ClientId,
    task_id: TaskId,
    after: Annotated[
        str, Query(pattern=r"^\d{1,7}\.\d{1,4}$", description="{round}.{attempt} that the client knows")
    ] = "0.0",
    wait: Annotated[float, Query(ge=0, le=60, description="seconds to wait for something newer")] = 0.0,
    last_result: Annotated[bool, Query(description="send the result of the last closed round too")] = False,
) -> Response:
    """Long poll. Answers at once if there is something newer than `after`, or if the task has ended."""
    number, _, attempt = after.partition(".")
    known = (int(number), int(attempt))
    deadline = context.now() + round(wait * SECOND)
    while True:
        announced = await _announced(context, task_id)
        left = (deadline - context.now()) / SECOND
        if announced.is_newer_than(known) or announced.task.ended:
            break
        if left <= 0 or context.notifier.closing:
            if announced.task.state is TaskState.ENROLLING:
                break
            return Response(status_code=204)
        await context.notifier.wait(task_id, left, known)
    if announced.was_set_aside(client_id):
        await context.write(lambda tx: mark_coming_back(tx, client_id), task_id=task_id)
    body = announced.announcement(client_id, context.now())
    if last_result:
        body = body.model_copy(update={"last_result": await _last_result(context, announced, client_id)})
    return Response(body.model_dump_json(), media_type="application/json")


async def _last_result(context: Context, announced: AnnouncementState, client_id: str) -> RoundResult | None:
    """The result of the round before the announced one, or of the last one of a task that has ended."""
    task = announced.task
    if announced.round_ is None:
        number = await context.read(lambda tx: last_closed_round(tx, task))
    else:
        number = announced.round_.round_number - 1 or None
    if number is None:
        return None
    return context.signed(as_seen_by(await _result(context, task.task_id, number, with_scores=False), client_id))


async def _result(context: Context, task_id: str, number: int, *, with_scores: bool = True) -> RoundResult:
    """The result of a round. Without `with_scores` it may lack scores that were stored after its settlement."""
    result = context.settled_rounds.get(task_id, number, with_scores=with_scores)
    return await context.round_results.submit((task_id, number), None) if result is None else result


async def _announced(context: Context, task_id: str) -> AnnouncementState:
    announced = await context.notifier.current(task_id)
    if announced is None:
        # It was deleted after the caller was identified.
        raise RequestRefused(ErrorCode.NOT_FOUND, "there is no such task")
    return announced


@router.put(
    "/{round_number}/budget",
    tags=["clients"],
    summary="Declare a budget, or decline",
    responses=responses(
        *_OWN,
        *JSON_BODY,
        ErrorCode.NOT_FOUND,
        ErrorCode.TASK_ENDED,
        ErrorCode.NOT_INVITED,
        ErrorCode.BUDGET_DECLARED,
        ErrorCode.UPDATE_EXISTS,
        ErrorCode.ROUND_CLOSED,
        ErrorCode.OUT_OF_BOUNDS,
        ErrorCode.STORAGE_FULL,
    )
    | success(examples.BUDGET_RECEIPT),
)
async def put_budget(
    context: Ctx,
    client_id: ClientId,
    task_id: TaskId,
    round_number: RoundNumber,
    request: Annotated[BudgetRequest, Body(openapi_examples=examples.ANSWERS)],
) -> BudgetReceipt:
    """The answer to an announcement: `{rho}`, `{decline, reason}`, or `{join}` in a task without a game.

    The best `rho` is S − φ·ν·S²/R, at most `rho_max` of the announcement. It is reserved in the ledger. A client may
    change its answer once, to a decline, before its upload. A repeat gets the first receipt, in any state of the round.
    """
    answer = BudgetAnswer(client_id=client_id, request=request, at=context.now())
    receipt = await context.store.write_batched(declare_budgets, (task_id, round_number), answer)
    failpoint("declare.after_commit")
    return context.signed(receipt)


@router.put(
    "/{round_number}/update",
    tags=["clients"],
    summary="Upload the noised update",
    responses=responses(
        *_OWN,
        ErrorCode.NOT_FOUND,
        ErrorCode.TASK_ENDED,
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
        ErrorCode.OUT_OF_BOUNDS,
        ErrorCode.STORAGE_FULL,
    )
    | {200: {"model": UpdateReceipt, **success(examples.UPDATE_RECEIPT)[200]}},
    openapi_extra=_UPLOAD_PARAMETERS,
)
async def put_update(request: Request) -> Response:
    """Once per round and client: 4·d bytes, little-endian float32, with their `Content-Digest`.

    An update is like a gradient: the coordinator subtracts the mean. Its noise is that of the declared budget. The
    receipt means durable. Send the same bytes again if an answer is lost: a repeat gets the first receipt, also after
    the round has closed. New noise would be a second release: after any error whose request had a body, never send
    other bytes in this round.
    """
    # The parameters are read by hand: for a small upload FastAPI's own way costs as much as the rest of the event
    # loop's work.
    context = await get_context(request)
    task_id = request.path_params["task_id"]
    caller = await identify(request, context, request.app.state.callers, await bearer(request))
    client_id = await participant(task_id, caller)
    round_number = _round_number.validate_python(request.path_params["round_number"])
    return await receive_update(context, request, client_id, (task_id, round_number))


async def receive_update(context: Context, request: Request, client_id: str, round_key: RoundKey) -> Response:
    """Read and record the update of a client."""
    digest = parse_content_digest(request.headers.get("content-digest", ""))
    uploads, announced = context.uploads, await _announced(context, round_key[0])
    byte_length = announced.task.spec.layout.byte_length
    receipt = None
    delivery = Delivery(client_id=client_id, digest=digest, at=context.now())
    accepts = announced.accepts_updates(round_key[1], delivery.at) and not uploads.accepted.has(*round_key, client_id)
    if byte_length > SMALL_BYTES or not accepts:
        # The server does not read the body of a repeat or of an update that is too late. To read a small one costs less
        # than this check, which is made again when the update is recorded.
        receipt = await context.admissions.submit(round_key, delivery)
    if receipt is None:
        check_headers(request, byte_length)
        failpoint("upload.before_body")
        with context.store.blobs.stage() as blob:
            async with uploads.queue.turn((round_key, client_id)) as line:
                with line.reading():
                    norm = await uploads.receive(blob, request.stream(), byte_length=byte_length, digest=digest)
                staged = StagedDelivery(
                    client_id=client_id, digest=digest, at=context.now(), blob=blob, squared_norm=norm
                )
                receipt = await context.store.write_batched(accept_updates, round_key, staged)
        uploads.accepted.add(*round_key, client_id)
        failpoint("upload.after_commit")
    return Response(context.signed(receipt).model_dump_json(), media_type="application/json")


@router.delete(
    "/{round_number}/updates/{client_id}",
    status_code=204,
    tags=["operations"],
    operation_id="void_update",
    summary="Void an update",
    responses=responses(
        ErrorCode.UNAUTHENTICATED,
        ErrorCode.FORBIDDEN,
        ErrorCode.NOT_FOUND,
        ErrorCode.ROUND_CLOSED,
        ErrorCode.INVALID_REQUEST,
    ),
)
async def delete_update(
    context: Ctx, caller: Admin, task_id: TaskId, round_number: RoundNumber, client_id: OtherClientId
) -> None:
    """Only while the round is open. The update stays stored and its budget is spent, but it does not count."""
    now = context.now()
    await context.write(lambda tx: void_update(tx, task_id, round_number, client_id, now))
    _log.info("update_voided", task=task_id, round_number=round_number, client_id=client_id)


@router.get(
    "/{round_number}",
    tags=["reading"],
    summary="Result of a round",
    responses=responses(ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN, ErrorCode.NOT_FOUND, ErrorCode.INVALID_REQUEST)
    | success(examples.ROUND),
)
async def get_round(context: Ctx, caller: Reader, task_id: TaskId, round_number: RoundNumber) -> RoundResult:
    """The totals and the client's own part. Admin and viewer see the parts of all clients once the round is closed."""
    result = await _result(context, task_id, round_number)
    return context.signed(result if caller.client_id is None else as_seen_by(result, caller.client_id))
