"""Routes that read: the task, its models, rounds and live feed."""

import base64
import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Response
from fastapi.responses import StreamingResponse

from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import Event, ModelInfo, RoundResult, TaskView

from ...domain import Model, Task
from ...errors import RequestRefused
from ...ops.model_files import safetensors_bytes
from ...service.lifecycle import get_task
from ...service.retention import first_kept_version
from ...service.views import as_seen_by, model_info, round_result, task_view
from ...store.transaction import Transaction
from ..auth import AnybodyOfTask, Operator, Reader, RoundNumber, TaskId
from ..context import Context, Ctx
from ..downloads import download_response, is_known
from ..errors import responses

router = APIRouter(prefix="/v1/tasks/{task_id}", tags=["reading"])
Version = Annotated[int, Path(ge=0, le=1_000_000, description="a version of the model; 0 is the start")]
_READ = (ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN, ErrorCode.NOT_FOUND, ErrorCode.INVALID_REQUEST)
_BINARY: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}
_KEEP_ALIVE_S = 15.0


@router.get("", summary="Show a task", responses=responses(*_READ))
async def show_task(context: Ctx, caller: AnybodyOfTask, task_id: TaskId) -> TaskView:
    """The task with its whole spec: for its clients, holders of its enrolment code, admin and viewer."""
    return await context.read(lambda tx: task_view(tx, get_task(tx, task_id)))


@router.get("/models", summary="List model versions", responses=responses(*_READ))
async def list_models(context: Ctx, caller: Reader, task_id: TaskId) -> list[ModelInfo]:
    """All versions, 0 first."""

    def infos(tx: Transaction) -> list[ModelInfo]:
        task = get_task(tx, task_id)
        return [model_info(task, model) for model in tx.tasks.models(task_id)]

    return await context.read(infos)


@router.get(
    "/models/{version}.safetensors",
    summary="Export a model",
    response_class=Response,
    responses={**_BINARY, **responses(*_READ)},
)
async def export_model(context: Ctx, caller: Reader, task_id: TaskId, version: Version) -> Response:
    """The named tensors of a version in the safetensors format."""
    task, model = await _task_and_model(context, task_id, version)

    def load() -> bytes:
        return safetensors_bytes(task.spec, context.store.blobs.get(model.digest))

    return download_response(await context.downloads.get((task_id, version), load), {})


@router.get(
    "/models/{version}",
    summary="Get a model",
    response_class=Response,
    responses={
        **_BINARY,
        304: {"description": "the copy that `If-None-Match` names is this model"},
        **responses(*_READ),
    },
)
async def get_model(
    context: Ctx,
    caller: Reader,
    task_id: TaskId,
    version: Version,
    if_none_match: Annotated[str, Header(max_length=1000, description="the ETag of a copy one already has")] = "",
) -> Response:
    """The flat float32 vector of a version, with its Content-Digest."""
    _, model = await _task_and_model(context, task_id, version)
    etag = f'"{model.digest}"'
    if is_known(if_none_match, etag):
        return Response(status_code=304, headers={"ETag": etag})
    download = await context.downloads.get(model.digest, partial(context.store.blobs.get, model.digest))
    digest = base64.b64encode(bytes.fromhex(model.digest)).decode()
    return download_response(download, {"Content-Digest": f"sha-256=:{digest}:", "ETag": etag})


@router.get("/rounds/{round_number}", summary="Result of a round", responses=responses(*_READ))
async def get_round(context: Ctx, caller: Reader, task_id: TaskId, round_number: RoundNumber) -> RoundResult:
    """The totals, and one's own part; for admin and viewer everybody's, once the round is closed."""
    result = context.settled_rounds.get(task_id, round_number)
    if result is None:
        result = await context.read(lambda tx: round_result(tx, get_task(tx, task_id), round_number))
        context.settled_rounds.remember(task_id, result)
    return result if caller.client_id is None else as_seen_by(result, caller.client_id)


@router.get(
    "/events",
    summary="Live feed",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}, **responses(*_READ)},
)
async def get_events(
    context: Ctx,
    caller: Operator,
    task_id: TaskId,
    last_event_id: Annotated[int, Header(ge=0, le=2**53)] = 0,
) -> StreamingResponse:
    """Server-sent events of a task; resumes after `Last-Event-ID`."""
    if await context.read(lambda tx: tx.tasks.get(task_id)) is None:
        raise RequestRefused(ErrorCode.NOT_FOUND, "there is no such task")
    return StreamingResponse(_feed(context, task_id, last_event_id), media_type="text/event-stream")


async def _feed(context: Context, task_id: str, last_event_id: int) -> AsyncIterator[str]:
    seen = last_event_id
    while not context.notifier.closing:
        events = await context.read(partial(_events_after, task_id, seen))
        for event in events:
            yield _as_server_sent(event)
            seen = event.id
        announced = await context.notifier.current(task_id)
        if not events and announced is not None and announced.task.ended:
            return
        if not events:
            yield ": still here\n\n"
            await context.notifier.wait(task_id, _KEEP_ALIVE_S)


def _events_after(task_id: str, event_id: int, tx: Transaction) -> list[Event]:
    return tx.events.after(task_id, event_id)


def _as_server_sent(event: Event) -> str:
    return f"id: {event.id}\nevent: {event.kind}\ndata: {json.dumps(event.model_dump(mode='json'))}\n\n"


async def _task_and_model(context: Context, task_id: str, version: int) -> tuple[Task, Model]:
    def look_up(tx: Transaction) -> tuple[Task, Model]:
        task = get_task(tx, task_id)
        model = tx.tasks.model(task_id, version)
        if model is None or version < first_kept_version(tx, task):
            raise RequestRefused(ErrorCode.NOT_FOUND, f"there is no model version {version}, or no longer")
        return task, model

    return await context.read(look_up)
