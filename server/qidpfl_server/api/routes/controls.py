"""Routes with which an admin changes a running task: pause, deadlines of later rounds, enrolment codes."""

from typing import Annotated

import structlog
from fastapi import APIRouter, Body, Path

from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import TaskSummary
from qidpfl_shared.protocol.operators import (
    CreateCodes,
    CreatedCodes,
    Deadlines,
    EnrolmentCodeInfo,
    WhatIf,
    WhatIfRequest,
)

from ...ops.what_if import read_situation, what_if
from ...service.controls import create_codes, enrolment_codes, pause_task, revoke_code, set_deadlines
from ...service.lifecycle import get_task
from ...service.views import task_summary
from ..auth import Admin, Callers, TaskId
from ..context import Ctx
from ..errors import JSON_BODY, responses
from ..json_routes import StrictJsonRoute
from ..openapi import success

router = APIRouter(prefix="/v1/tasks/{task_id}", tags=["tasks"], route_class=StrictJsonRoute)
_log = structlog.get_logger()
_READ = (ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN, ErrorCode.NOT_FOUND, ErrorCode.INVALID_REQUEST)
_CHANGE = (*_READ, ErrorCode.TASK_ENDED)
CodeId = Annotated[str, Path(pattern=r"^[0-9a-f]{24,64}$", description="the id of an enrolment code")]
_WHAT_IF = {
    "status": "answered",
    "detail": "no calibration was given",
    "rounds": 20,
    "money_micro": 411_000_000,
    "first_reward_micro": 14_500_000,
    "last_reward_micro": 28_900_000,
    "noise": 0.42,
    "worst_rho": 1.9,
    "worst_epsilon": 10.4,
    "worst_ordinal": 3,
    "accuracy": None,
}
_CODE = {"code_id": "0123456789abcdef01234567", "single_use": True}


@router.post("/pause", summary="Pause a task", responses=responses(*_CHANGE))
async def pause(context: Ctx, caller: Admin, task_id: TaskId) -> TaskSummary:
    """Open no new round until the task is resumed. An open round goes on to its end, with all its attempts.

    Clients keep polling: their long polls are answered with 204.
    """
    now = context.now()
    await context.write(lambda tx: pause_task(tx, task_id, now))
    failpoint("pause.after_commit")
    _log.info("admin_action", action="pause", task=task_id)
    return await context.read(lambda tx: task_summary(tx, get_task(tx, task_id)))


@router.put(
    "/deadlines",
    summary="Change the deadlines",
    responses=responses(*_CHANGE, *JSON_BODY, ErrorCode.STORAGE_FULL),
)
async def put_deadlines(
    context: Ctx,
    caller: Admin,
    task_id: TaskId,
    request: Annotated[Deadlines, Body(examples=[{"declare_s": 60.0, "deliver_s": 120.0}])],
) -> Deadlines:
    """From the next round or attempt on. The announced deadlines of the open round stay binding."""
    now = context.now()
    await context.write(lambda tx: set_deadlines(tx, task_id, request, now))
    _log.info("admin_action", action="deadlines", task=task_id)
    return request


@router.post(
    "/what-if",
    tags=["reading"],
    summary="What a change would cost",
    responses=responses(*_READ, *JSON_BODY) | success(_WHAT_IF),
)
async def post_what_if(
    context: Ctx,
    caller: Admin,
    task_id: TaskId,
    request: Annotated[WhatIfRequest, Body(examples=[{"reward_factor": 1.5}, {"without": [3], "rounds": 10}])],
) -> WhatIf:
    """Money, noise, epsilon and expected accuracy of the task under a change. Nothing is stored or announced.

    The task is planned from its first round with the clients that it has now, each bidding as planned.
    """
    situation = await context.read(lambda tx: read_situation(tx, task_id))
    return await context.compute(lambda: what_if(situation, request))


@router.get("/codes", summary="List enrolment codes", responses=responses(*_READ) | success([_CODE]))
async def list_codes(context: Ctx, caller: Admin, task_id: TaskId) -> list[EnrolmentCodeInfo]:
    """All enrolment codes of the task, without their secrets."""
    return await context.read(lambda tx: enrolment_codes(tx, task_id))


@router.post(
    "/codes",
    status_code=201,
    summary="Make enrolment codes",
    responses=responses(*_CHANGE, *JSON_BODY, ErrorCode.STORAGE_FULL),
)
async def post_codes(
    context: Ctx, caller: Admin, task_id: TaskId, request: Annotated[CreateCodes, Body(examples=[{"count": 2}])]
) -> CreatedCodes:
    """Further enrolment codes. They are shown only once."""
    now = context.now()
    created = await context.write(lambda tx: create_codes(tx, task_id, request, now))
    _log.info("admin_action", action="codes", task=task_id, count=request.count)
    return created


@router.delete("/codes/{code_id}", status_code=204, summary="Revoke an enrolment code", responses=responses(*_READ))
async def delete_code(context: Ctx, callers: Callers, caller: Admin, task_id: TaskId, code_id: CodeId) -> None:
    """No further client can enrol with it. Clients that have used it stay. A repeat changes nothing."""
    now = context.now()
    await context.write(lambda tx: revoke_code(tx, task_id, code_id, now))
    callers.clear()
    _log.info("admin_action", action="code_revoke", task=task_id, code=code_id)
