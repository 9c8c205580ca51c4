"""Routes of the admin: create, list, start and stop tasks."""

from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Body
from pydantic import Field

from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.fields import Message, Name, Tuple
from qidpfl_shared.protocol.messages import TaskSummary, TaskView

from ..errors import Refused
from ..lifecycle import locked
from ..settlement import stop_task
from ..tasks import create_task, save_initial_model, start_task, task_spec
from ..views import task_summary, task_view
from .auth import Admin, Operator, TaskId
from .context import Ctx
from .problems import responses

router = APIRouter(prefix="/v1/tasks", tags=["tasks"])


class CreateTask(Message):
    """A new task: a preset, and what is different in it."""

    name: Name = Field(examples=["digits-1"])
    preset: Name = Field(examples=["digits"])
    overrides: dict[str, Any] = Field(default={}, examples=[{"game": {"horizon": 5}}])
    single_use_codes: int = Field(default=0, ge=0, le=10_000, description="0: one code for many clients")


class CreatedTask(Message):
    """The new task, and its enrolment codes: they are shown here and never again."""

    task: TaskView
    enrolment_codes: Tuple[str]


@router.post(
    "",
    status_code=201,
    summary="Create a task",
    responses=responses(
        ErrorCode.UNAUTHENTICATED,
        ErrorCode.FORBIDDEN,
        ErrorCode.MALFORMED_JSON,
        ErrorCode.TASK_EXISTS,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_PRESET,
        ErrorCode.INCONSISTENT_SPEC,
        ErrorCode.REWARD_RANGE_REQUIRED,
        ErrorCode.STORAGE_FULL,
    ),
)
async def create(context: Ctx, caller: Admin, request: Annotated[CreateTask, Body()]) -> CreatedTask:
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
    view = await context.read(lambda tx: task_view(tx, created.task))
    return CreatedTask(task=view, enrolment_codes=created.codes)


@router.get("", summary="List tasks", responses=responses(ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN))
async def list_tasks(context: Ctx, caller: Operator) -> list[TaskSummary]:
    """All tasks, oldest first."""
    return await context.read(lambda tx: [task_summary(tx, task) for task in tx.tasks.all()])


_CHANGES = responses(
    ErrorCode.UNAUTHENTICATED,
    ErrorCode.FORBIDDEN,
    ErrorCode.NOT_FOUND,
    ErrorCode.TASK_ENDED,
    ErrorCode.PROFILE_MISSING,
    ErrorCode.INVALID_REQUEST,
)


@router.post("/{task_id}/start", summary="Start a task", responses=_CHANGES)
async def start(context: Ctx, caller: Admin, task_id: TaskId) -> TaskSummary:
    """Select now, without waiting for more clients."""
    now = context.now()
    await context.write(lambda tx: start_task(tx, task_id, now))
    return await context.read(lambda tx: task_summary(tx, locked(tx, task_id)))


@router.post("/{task_id}/stop", summary="Stop a task", responses=_CHANGES)
async def stop(context: Ctx, caller: Admin, task_id: TaskId) -> TaskSummary:
    """Settle the open round if enough updates are there, else void it; then end the task."""
    task = await context.read(lambda tx: tx.tasks.get(task_id))
    if task is None:
        raise Refused(ErrorCode.NOT_FOUND, "there is no such task")
    if not task.ended:
        evaluator = context.clockwork.evaluator(task)
        await anyio.to_thread.run_sync(stop_task, context.store, task_id, evaluator, context.now())
    return await context.read(lambda tx: task_summary(tx, locked(tx, task_id)))
