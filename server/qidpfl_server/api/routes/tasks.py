"""Routes of the tasks: create, list, show, start, resume and stop them, and their live feed."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated

import anyio.to_thread
import structlog
from fastapi import APIRouter, BackgroundTasks, Body, Header, Query, Request
from fastapi.responses import StreamingResponse

from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.evidence import Tombstone
from qidpfl_shared.protocol.messages import Event, TaskSummary, TaskView
from qidpfl_shared.protocol.operators import CreatedTask, CreateTask

from ...errors import RequestRefused
from ...service.deletion import delete_task
from ...service.lifecycle import get_task
from ...service.selection import open_window
from ...service.tasks import create_task, resume_task, save_initial_model, start_task, stop_task, task_spec
from ...service.views import task_summary, task_view
from ..auth import Admin, AnyOperator, CallerRole, Callers, GlobalAdmin, Operator, TaskCaller, TaskId, bearer, identify
from ..context import Context, Ctx
from ..document.texts import EVENT_EXAMPLE, EVENTS
from ..errors import JSON_BODY, responses
from ..json_routes import StrictJsonRoute

_log = structlog.get_logger()
router = APIRouter(prefix="/v1/tasks", route_class=StrictJsonRoute)
_READ = (ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN, ErrorCode.NOT_FOUND, ErrorCode.INVALID_REQUEST)
_KEEP_ALIVE_S = 15.0
_GATHER_S = 0.25
_LOOK_EVERY_S = 1.0


@router.post(
    "",
    tags=["tasks"],
    status_code=201,
    operation_id="create_task",
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
        ErrorCode.REWARD_REQUIRED,
        ErrorCode.PAID_WITHOUT_NOISE,
        ErrorCode.NOISE_WITHOUT_BUDGET,
        ErrorCode.SERVER_STEP_FIXED,
        ErrorCode.CONVEX_NETWORK_REQUIRED,
        ErrorCode.IMAGE_ROWS_REQUIRED,
        ErrorCode.STORAGE_FULL,
    ),
)
async def create(
    context: Ctx, caller: GlobalAdmin, request: Annotated[CreateTask, Body()], afterwards: BackgroundTasks
) -> CreatedTask:
    """Create a task from a preset, as an admin of all tasks. Clients can enrol from now on."""
    spec = task_spec(request.preset, request.overrides, context.rules)
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
    _log.info("admin_action", action="create", task=created.task.task_id, name=request.name)
    if (evaluator := context.scheduler.evaluator(created.task)) is not None:
        afterwards.add_task(evaluator.prepare)
    view = await context.read(lambda tx: task_view(tx, created.task))
    return CreatedTask(task=view, enrolment_codes=created.codes)


@router.get(
    "", tags=["tasks"], summary="List tasks", responses=responses(ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN)
)
async def list_tasks(context: Ctx, caller: AnyOperator) -> list[TaskSummary]:
    """All tasks, oldest first. A token for one task lists this task only."""
    return await context.read(
        lambda tx: [task_summary(tx, task) for task in tx.tasks.all() if caller.may_reach(task.task_id)]
    )


@router.get("/{task_id}", operation_id="get_task", tags=["reading"], summary="Show a task", responses=responses(*_READ))
async def show_task(context: Ctx, caller: TaskCaller, task_id: TaskId) -> TaskView:
    """The task with its whole spec: for its clients, holders of its enrolment code, admin and viewer."""
    shows_pause = caller.role in (CallerRole.ADMIN, CallerRole.VIEWER)
    return await context.read(lambda tx: task_view(tx, get_task(tx, task_id), shows_pause=shows_pause))


@router.post(
    "/{task_id}/start",
    operation_id="start_task",
    tags=["tasks"],
    summary="Start a task",
    responses=responses(
        *_READ, ErrorCode.TASK_ENDED, ErrorCode.PROFILE_MISSING, ErrorCode.RULES_NOT_LOADED, ErrorCode.TASK_PAUSED
    ),
)
async def start(
    context: Ctx,
    caller: Admin,
    task_id: TaskId,
    window: Annotated[
        bool, Query(description="begin the enrolment window now instead; otherwise the first stored profile begins it")
    ] = False,
) -> TaskSummary:
    """Select clients now, without waiting for more of them; or only begin the enrolment window.

    The selection needs `min_clients` profiles: with fewer the answer is 409 `profile_missing`. A repeat, and a start of
    a task that trains already, changes nothing.
    """
    now = context.now()
    if window:
        await context.write(lambda tx: open_window(tx, task_id, now))
    else:
        await context.write(lambda tx: start_task(tx, task_id, now, context.rules))
    _log.info("admin_action", action="open_window" if window else "start", task=task_id)
    return await context.read(lambda tx: task_summary(tx, get_task(tx, task_id)))


@router.post(
    "/{task_id}/resume",
    operation_id="resume_task",
    tags=["tasks"],
    summary="Resume a task",
    responses=responses(*_READ, ErrorCode.TASK_ENDED, ErrorCode.RULES_NOT_LOADED),
)
async def resume(context: Ctx, caller: Admin, task_id: TaskId) -> TaskSummary:
    """Continue a paused task, or one that failed with `step_failed` or `state_damaged`, once its cause is gone."""
    now = context.now()
    await context.write(lambda tx: resume_task(tx, task_id, now, context.rules))
    failpoint("resume.after_commit")
    _log.info("admin_action", action="resume", task=task_id)
    return await context.read(lambda tx: task_summary(tx, get_task(tx, task_id)))


@router.post(
    "/{task_id}/stop",
    operation_id="stop_task",
    tags=["tasks"],
    summary="Stop a task",
    responses=responses(*_READ),
)
async def stop(context: Ctx, caller: Admin, task_id: TaskId) -> TaskSummary:
    """End the task. Its open round is settled if it has enough updates, else it is void."""
    task = await context.read(lambda tx: tx.tasks.get(task_id))
    if task is None:
        raise RequestRefused(ErrorCode.NOT_FOUND, "there is no such task")
    if not task.ended:
        evaluator = context.scheduler.evaluator(task)
        await anyio.to_thread.run_sync(stop_task, context.store, task_id, evaluator, context.now())
        _log.info("admin_action", action="stop", task=task_id)
    return await context.read(lambda tx: task_summary(tx, get_task(tx, task_id)))


@router.delete(
    "/{task_id}",
    operation_id="delete_task",
    tags=["tasks"],
    summary="Delete a task",
    responses=responses(*_READ, ErrorCode.TASK_NOT_ENDED),
)
async def delete(context: Ctx, callers: Callers, caller: Admin, task_id: TaskId) -> Tombstone:
    """Delete a task that has ended, with everything that it has stored. A signed tombstone stays; a repeat returns it.

    Keep the tombstone, and an export of the task if clients may still want to check their receipts.
    """
    now = context.now()
    stone = await context.write(lambda tx: delete_task(tx, task_id, deleted_by="admin", now=now))
    callers.clear()
    context.settled_rounds.drop(task_id)
    _log.info("admin_action", action="delete", task=task_id, name=stone.name)
    failpoint("delete.after_commit")
    return stone


@router.get(
    "/{task_id}/events",
    tags=["reading"],
    summary="Live feed",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": EVENTS,
            "content": {"text/event-stream": {"schema": {"type": "string"}, "example": EVENT_EXAMPLE}},
        },
        **responses(*_READ),
    },
)
async def get_events(
    request: Request,
    context: Ctx,
    callers: Callers,
    caller: Operator,
    task_id: TaskId,
    last_event_id: Annotated[int, Header(ge=0, le=2**53)] = 0,
) -> StreamingResponse:
    """Server-sent events of a task; resumes after `Last-Event-ID`."""
    if await context.read(lambda tx: tx.tasks.get(task_id)) is None:
        raise RequestRefused(ErrorCode.NOT_FOUND, "there is no such task")

    async def is_known() -> bool:
        try:
            await identify(request, context, callers, await bearer(request))
        except RequestRefused:
            return False
        return True

    stream = _event_stream(context, task_id, last_event_id, is_known=is_known)
    return StreamingResponse(stream, media_type="text/event-stream")


async def _event_stream(
    context: Context, task_id: str, last_event_id: int, *, is_known: Callable[[], Awaitable[bool]]
) -> AsyncIterator[str]:
    """The events of a task until it has ended, the server stops, or the token of the caller is revoked."""
    seen = last_event_id
    while not context.notifier.closing:
        looked = time.monotonic()
        # It waits from before the look: a change during the look is not missed.
        changed = asyncio.create_task(context.notifier.wait(task_id, _KEEP_ALIVE_S))
        try:
            events = await _events_after(context, task_id, seen)
            if not await is_known():
                return
            for event in events:
                yield _as_server_sent(event)
                seen = event.id
            announced = await context.notifier.current(task_id)
            if announced is not None and announced.task.ended:
                if not events:
                    return
                continue
            if not events:
                yield ": still here\n\n"
            await changed
        finally:
            changed.cancel()
        # Changes of a busy round come in groups: one look at the store for all of them, and not more than one a second.
        await anyio.sleep(max(_GATHER_S, looked + _LOOK_EVERY_S - time.monotonic()))


async def _events_after(context: Context, task_id: str, event_id: int) -> list[Event]:
    return await context.read(lambda tx: tx.events.after(task_id, event_id))


def _as_server_sent(event: Event) -> str:
    return f"id: {event.id}\nevent: {event.kind}\ndata: {json.dumps(event.model_dump(mode='json'))}\n\n"
