"""Routes of the clients: enrol, profile, verdict, announcement, budget, update, ledger, leave."""

from typing import Annotated

from fastapi import APIRouter, Body, Query, Request, Response

from qidpfl_shared.core.planning import Standing
from qidpfl_shared.failpoints import failpoint
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

from ...clock import SECOND
from ...service.declarations import BudgetAnswer
from ...service.deliveries import Delivery
from ...service.enrolment import enrol, leave, store_profile
from ...service.planning import mark_coming_back
from ...service.views import ledger, selection_verdict
from ..auth import ClientId, RoundNumber, TaskId
from ..context import Ctx, get_context
from ..errors import JSON_BODY, responses
from ..json import StrictJsonRoute
from ..openapi import success
from ..uploads import UPLOAD_PARAMETERS, announced_upload, deliver

router = APIRouter(prefix="/v1/tasks/{task_id}", tags=["clients"], route_class=StrictJsonRoute)
_MOMENT = "2026-01-01T00:00:00Z"
_SOME_ID, _SOME_DIGEST = "5f1d7a84db00d2fce00b31a7", "9f" * 32
_ENROL = {"enrolment_code": f"{_SOME_ID}.of-the-operator", "enrolment_key": "some random text of one's own"}
_ENROLLED = {"client_id": _SOME_ID, "token": "shown-only-once", "ordinal": 0, "spec_digest": _SOME_DIGEST}
_PROFILE = {"label_counts": [11] * 10, "size": 110, "privacy_value": 1.0, "histogram_rho": 0.1}
_RECEIPT = {
    "round_number": 1,
    "client_id": _SOME_ID,
    "digest": _SOME_DIGEST,
    "byte_length": 2600,
    "received_at": _MOMENT,
}
_OWN = (ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN, ErrorCode.INVALID_REQUEST)


@router.post(
    "/clients",
    status_code=201,
    summary="Enrol",
    responses=responses(
        ErrorCode.UNAUTHENTICATED,
        *JSON_BODY,
        ErrorCode.TASK_FULL,
        ErrorCode.TASK_NOT_ENROLLING,
        ErrorCode.TASK_ENDED,
        ErrorCode.ORDINAL_TAKEN,
        ErrorCode.ALREADY_ENROLLED,
        ErrorCode.CODE_USED,
        ErrorCode.OUT_OF_BOUNDS,
        ErrorCode.STORAGE_FULL,
    )
    | success(_ENROLLED, status=201),
)
async def enrol_client(
    context: Ctx, task_id: TaskId, request: Annotated[EnrolRequest, Body(examples=[_ENROL])]
) -> EnrolAnswer:
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
        *JSON_BODY,
        ErrorCode.PROFILE_FROZEN,
        ErrorCode.TASK_NOT_ENROLLING,
        ErrorCode.TASK_ENDED,
        ErrorCode.HISTOGRAM_MISMATCH,
        ErrorCode.OUT_OF_BOUNDS,
        ErrorCode.STORAGE_FULL,
    ),
)
async def put_profile(
    context: Ctx, client_id: ClientId, task_id: TaskId, profile: Annotated[Profile, Body(examples=[_PROFILE])]
) -> None:
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
        announced = await context.notifier.current(task_id)
        assert announced is not None
        left = (deadline - context.now()) / SECOND
        if announced.is_newer_than(known) or announced.task.ended:
            break
        if left <= 0 or context.notifier.closing:
            if announced.task.state is TaskState.ENROLLING:
                break
            return Response(status_code=204)
        await context.notifier.wait(task_id, left)
    if announced.standings.get(client_id) is Standing.SET_ASIDE:
        await context.write(lambda tx: mark_coming_back(tx, client_id))
    body = announced.announcement(client_id, context.now())
    return Response(body.model_dump_json(), media_type="application/json")


@router.put(
    "/rounds/{round_number}/budget",
    summary="Declare a budget, or decline",
    responses=responses(
        *_OWN,
        *JSON_BODY,
        ErrorCode.NOT_FOUND,
        ErrorCode.NOT_INVITED,
        ErrorCode.BUDGET_DECLARED,
        ErrorCode.UPDATE_EXISTS,
        ErrorCode.ROUND_CLOSED,
        ErrorCode.OUT_OF_BOUNDS,
        ErrorCode.STORAGE_FULL,
    )
    | success({"round_number": 1, "state": "declared", "rho": 0.05, "recorded_at": _MOMENT}),
)
async def put_budget(
    context: Ctx,
    client_id: ClientId,
    task_id: TaskId,
    round_number: RoundNumber,
    request: Annotated[BudgetRequest, Body(examples=[{"rho": 0.05}])],
) -> BudgetReceipt:
    """The Stage II answer. May be changed once, to a decline, before the upload."""
    answer = BudgetAnswer(client_id=client_id, request=request, at=context.now())
    receipt = await context.declarations.ask((task_id, round_number), answer)
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
        ErrorCode.OUT_OF_BOUNDS,
        ErrorCode.STORAGE_FULL,
    )
    | {200: {"model": UpdateReceipt, **success(_RECEIPT)[200]}},
    openapi_extra=UPLOAD_PARAMETERS,
)
async def put_update(request: Request) -> Response:
    """Once per round and client. Acknowledged only when durable; a repeat of the same bytes gets its first receipt."""
    context = await get_context(request)
    upload = await announced_upload(context, request)
    delivery = Delivery(client_id=upload.client_id, digest=upload.digest, at=context.now())
    receipt = await context.admissions.ask(upload.place, delivery)
    if receipt is None:
        receipt = await deliver(context, upload, request)
        failpoint("upload.after_commit")
    return Response(receipt.model_dump_json(), media_type="application/json")


@router.get("/clients/me/ledger", summary="My ledger", responses=responses(*_OWN))
async def get_ledger(context: Ctx, client_id: ClientId, task_id: TaskId) -> Ledger:
    """What was declared, what is proven, what was paid."""
    return await context.read(lambda tx: ledger(tx, client_id))


@router.delete("/clients/me", status_code=204, summary="Leave", responses=responses(*_OWN))
async def leave_task(context: Ctx, client_id: ClientId, task_id: TaskId) -> None:
    """Out from the next round on; the ledgers stay."""
    now = context.now()
    await context.write(lambda tx: leave(tx, client_id, now))
