"""Routes of the models of a task: list, download, export, and upload of the first one."""

import base64
from functools import partial
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Header, Path, Request, Response

from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import ModelInfo
from qidpfl_shared.protocol.wire import parse_content_digest

from ...domain import Model, Task
from ...errors import RequestRefused
from ...ops.model_files import safetensors_bytes
from ...service.lifecycle import get_task
from ...service.retention import first_kept_version
from ...service.tasks import give_initial_model, known_initial_model
from ...service.views import model_info
from ...store.transaction import Transaction
from ..auth import Admin, Reader, TaskId
from ..caches import DownloadResponse, etag_matches
from ..context import Context, Ctx
from ..document import examples
from ..document.texts import CONTENT_DIGEST as DIGEST_HEADER
from ..document.texts import ETAG
from ..errors import responses
from ..openapi import success
from ..uploads import CONTENT_DIGEST, VECTOR_BODY, check_headers

_log = structlog.get_logger()
router = APIRouter(prefix="/v1/tasks/{task_id}/models")
Version = Annotated[int, Path(ge=0, le=1_000_000, description="a version of the model; 0 is the initial model")]
_READ = (ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN, ErrorCode.NOT_FOUND, ErrorCode.INVALID_REQUEST)
_BYTES: dict[str, Any] = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}


@router.get("", tags=["reading"], summary="List model versions", responses=responses(*_READ) | success(examples.MODELS))
async def list_models(context: Ctx, caller: Reader, task_id: TaskId) -> list[ModelInfo]:
    """All versions, starting with 0."""

    return await context.read(
        lambda tx: [model_info(get_task(tx, task_id), model) for model in tx.tasks.models(task_id)]
    )


@router.get(
    "/{version}.safetensors",
    tags=["reading"],
    summary="Export a model",
    response_class=Response,
    responses={200: {"description": "a file in the safetensors format", **_BYTES}, **responses(*_READ)},
)
async def export_model(context: Ctx, caller: Reader, task_id: TaskId, version: Version) -> Response:
    """The named tensors of a version in the safetensors format."""
    task, model = await _task_and_model(context, task_id, version)

    def load() -> bytes:
        return safetensors_bytes(task.spec, context.store.blobs.get(model.digest))

    return DownloadResponse(await context.downloads.get((task_id, version), load), {})


@router.get(
    "/{version}",
    tags=["reading"],
    summary="Get a model",
    response_class=Response,
    responses={
        200: {
            "description": "4·d bytes: little-endian float32 in the order of the layout. Check their SHA-256 against"
            " the digest of the announcement.",
            "headers": {"ETag": ETAG, "Content-Digest": DIGEST_HEADER},
            **_BYTES,
        },
        304: {"description": "the model has the ETag that `If-None-Match` names", "headers": {"ETag": ETAG}},
        **responses(*_READ),
    },
)
async def get_model(
    context: Ctx,
    caller: Reader,
    task_id: TaskId,
    version: Version,
    if_none_match: Annotated[str, Header(max_length=1000, description="ETags of copies that the caller has")] = "",
) -> Response:
    """The flat float32 vector of a version, with its Content-Digest."""
    model = await _announced_model(context, task_id, version)
    if model is None:
        _, model = await _task_and_model(context, task_id, version)
    etag = f'"{model.digest}"'
    if etag_matches(if_none_match, etag):
        return Response(status_code=304, headers={"ETag": etag})
    download = await context.downloads.get(model.digest, partial(context.store.blobs.get, model.digest))
    digest = base64.b64encode(bytes.fromhex(model.digest)).decode()
    return DownloadResponse(download, {"Content-Digest": f"sha-256=:{digest}:", "ETag": etag})


@router.put(
    "/0",
    tags=["tasks"],
    summary="Upload the initial model",
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
    """Replace version 0, until the first round is announced. A repeat of the same bytes always succeeds."""
    digest = parse_content_digest(request.headers.get("content-digest", ""))
    known = await context.read(lambda tx: known_initial_model(tx, get_task(tx, task_id), digest))
    task = await context.read(lambda tx: get_task(tx, task_id))
    if known is None:
        byte_length = task.spec.layout.byte_length
        check_headers(request, byte_length)
        now = context.now()
        with context.store.blobs.stage() as blob:
            await context.uploads.receive(blob, request.stream(), byte_length=byte_length, digest=digest)
            known = await context.write(lambda tx: give_initial_model(tx, task_id, blob, now))
        failpoint("model.after_commit")
        _log.info("admin_action", action="initial_model", task=task_id)
    return model_info(task, known)


async def _announced_model(context: Context, task_id: str, version: int) -> Model | None:
    """The model that the open round starts from, if it has this version. It is known without a read of the store.

    Such a model is kept for as long as its round is open, and cannot be replaced.
    """
    announced = await context.notifier.current(task_id)
    base = None if announced is None else announced.base
    return base if base is not None and base.version == version else None


async def _task_and_model(context: Context, task_id: str, version: int) -> tuple[Task, Model]:
    def look_up(tx: Transaction) -> tuple[Task, Model]:
        task = get_task(tx, task_id)
        model = tx.tasks.model(task_id, version)
        if model is None or version < first_kept_version(tx, task):
            raise RequestRefused(ErrorCode.NOT_FOUND, f"there is no model version {version}, or it was deleted")
        return task, model

    return await context.read(look_up)
