"""Routes of the admin: create, list, start and stop tasks, and give a task its first model."""

from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, BackgroundTasks, Body, Request

from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import CreatedTask, CreateTask, ModelInfo, TaskSummary
from qidpfl_shared.protocol.wire import parse_content_digest

from ...errors import RequestRefused
from ...service.lifecycle import get_task
from ...service.settlement import stop_task
from ...service.tasks import (
    create_task,
    give_initial_model,
    known_initial_model,
    save_initial_model,
    start_task,
    task_spec,
)
from ...service.views import model_info, task_summary, task_view
from ..auth import Admin, Operator, TaskId
from ..bodies import CONTENT_DIGEST, VECTOR_BODY, check_headers, receive
from ..context import Ctx
from ..errors import JSON_BODY, responses
from ..json import StrictJsonRoute

router = APIRouter(prefix="/v1/tasks", tags=["tasks"], route_class=StrictJsonRoute)


@router.post(
    "",
    status_code=201,
    summary="Create a task",
    responses=responses(
        ErrorCode.UNAUTHENTICATED,
        ErrorCode.FORBIDDEN,
        *JSON_BODY,
        ErrorCode.TASK_EXISTS,
        ErrorCode.UNKNOWN_PRESET,
        ErrorCode.RULES_NOT_LOADED,
        ErrorCode.INCONSISTENT_SPEC,
        ErrorCode.REWARD_RANGE_REQUIRED,
        ErrorCode.STORAGE_FULL,
    ),
)
async def create(
    context: Ctx, caller: Admin, request: Annotated[CreateTask, Body()], afterwards: BackgroundTasks
) -> CreatedTask:
    """Make a task from a preset. It takes clients from now on."""
    spec = task_spec(request.preset, request.overrides)
    model = await anyio.to_thread.run_sync(save_initial_model, context.store.blobs, spec)
    now = context.now()
    created = await context.write(
        lambda tx: create_task(
            tx,
            name=request.name,
            preset_name=request.preset,
            spec=spec,
            model=model,
            single_use_codes=request.single_use_codes,
            now=now,
        )
    )
    if (evaluator := context.scheduler.evaluator(created.task)) is not None:
        afterwards.add_task(evaluator.prepare)
    view = await context.read(lambda tx: task_view(tx, created.task))
    return CreatedTask(task=view, enrolment_codes=created.codes)


@router.get("", summary="List tasks", responses=responses(ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN))
async def list_tasks(context: Ctx, caller: Operator) -> list[TaskSummary]:
    """All tasks, oldest first."""
    return await context.read(lambda tx: [task_summary(tx, task) for task in tx.tasks.all()])


@router.put(
    "/{task_id}/models/0",
    summary="Give the first model",
    responses=responses(
        ErrorCode.UNAUTHENTICATED,
        ErrorCode.FORBIDDEN,
        ErrorCode.NOT_FOUND,
        ErrorCode.TASK_ENDED,
        ErrorCode.MODEL_FROZEN,
        ErrorCode.LENGTH_REQUIRED,
        ErrorCode.BODY_TOO_LARGE,
        ErrorCode.UNSUPPORTED_MEDIA_TYPE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.DIGEST_REQUIRED,
        ErrorCode.DIGEST_MISMATCH,
        ErrorCode.WRONG_LENGTH,
        ErrorCode.NOT_FINITE,
        ErrorCode.STORAGE_FULL,
    ),
    openapi_extra={"requestBody": VECTOR_BODY, "parameters": [CONTENT_DIGEST]},
)
async def put_initial_model(
    context: Ctx,
    caller: Admin,
    task_id: TaskId,
    request: Request,
) -> ModelInfo:
    """Train from this model instead of a new one. Until the first round is announced; the same bytes again always."""
    digest = parse_content_digest(request.headers.get("content-digest", ""))
    known = await context.read(lambda tx: known_initial_model(tx, get_task(tx, task_id), digest))
    task = await context.read(lambda tx: get_task(tx, task_id))
    if known is None:
        byte_length = task.spec.layout.byte_length
        check_headers(request, byte_length)
        now = context.now()
        with context.store.blobs.stage() as blob:
            await receive(context, blob, request.stream(), byte_length=byte_length, digest=digest)
            known = await context.write(lambda tx: give_initial_model(tx, task_id, blob, now))
        failpoint("model.after_commit")
    return model_info(task, known)


_CHANGES = (
    ErrorCode.UNAUTHENTICATED,
    ErrorCode.FORBIDDEN,
    ErrorCode.NOT_FOUND,
    ErrorCode.TASK_ENDED,
    ErrorCode.PROFILE_MISSING,
    ErrorCode.INVALID_REQUEST,
)


@router.post("/{task_id}/start", summary="Start a task", responses=responses(*_CHANGES, ErrorCode.RULES_NOT_LOADED))
async def start(context: Ctx, caller: Admin, task_id: TaskId) -> TaskSummary:
    """Select now, without waiting for more clients."""
    now = context.now()
    await context.write(lambda tx: start_task(tx, task_id, now))
    return await context.read(lambda tx: task_summary(tx, get_task(tx, task_id)))


@router.post("/{task_id}/stop", summary="Stop a task", responses=responses(*_CHANGES))
async def stop(context: Ctx, caller: Admin, task_id: TaskId) -> TaskSummary:
    """Settle the open round if enough updates are there, else void it; then end the task."""
    task = await context.read(lambda tx: tx.tasks.get(task_id))
    if task is None:
        raise RequestRefused(ErrorCode.NOT_FOUND, "there is no such task")
    if not task.ended:
        evaluator = context.scheduler.evaluator(task)
        await anyio.to_thread.run_sync(stop_task, context.store, task_id, evaluator, context.now())
    return await context.read(lambda tx: task_summary(tx, get_task(tx, task_id)))
