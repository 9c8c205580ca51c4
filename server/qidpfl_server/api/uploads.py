"""Uploads of updates: from what their heads announce to their receipts.

FastAPI documents this route like any other, but its parameters are read by hand: on a small upload FastAPI's own way to
them costs as much as all the rest of the event loop's work.
"""

from dataclasses import dataclass
from typing import Any

from fastapi import Request
from pydantic import TypeAdapter

from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol.messages import UpdateReceipt
from qidpfl_shared.protocol.wire import parse_content_digest

from ..service.deliveries import StagedDelivery
from .auth import RoundNumber, TaskId, bearer, identify, participant
from .bodies import CONTENT_DIGEST, VECTOR_BODY, check_headers, receive
from .context import Context, RoundKey

_round_number: TypeAdapter[int] = TypeAdapter(RoundNumber)

UPLOAD_PARAMETERS: dict[str, Any] = {
    "parameters": [
        {"in": "path", "name": "task_id", "required": True, "schema": TypeAdapter(TaskId).json_schema()},
        {"in": "path", "name": "round_number", "required": True, "schema": _round_number.json_schema()},
        CONTENT_DIGEST,
    ],
    "requestBody": VECTOR_BODY,
    "security": [{bearer.scheme_name: []}],
}


@dataclass(frozen=True)
class Upload:
    """What the head of an upload says: from whom, for which round, which bytes."""

    client_id: str
    place: RoundKey
    digest: str


async def announced_upload(context: Context, request: Request) -> Upload:
    """The upload that a request's path and headers announce, from a client of the task."""
    task_id = request.path_params["task_id"]
    client_id = await participant(task_id, await identify(context, await bearer(request)))
    round_number = _round_number.validate_python(request.path_params["round_number"])
    digest = parse_content_digest(request.headers.get("content-digest", ""))
    return Upload(client_id, (task_id, round_number), digest)


async def deliver(context: Context, upload: Upload, request: Request) -> UpdateReceipt:
    """Take in the body of an upload; its receipt, once everything is durable."""
    announced = await context.notifier.current(upload.place[0])
    assert announced is not None
    byte_length = announced.task.spec.layout.byte_length
    check_headers(request, byte_length)
    failpoint("upload.before_body")
    with context.store.blobs.stage() as blob:
        async with context.turns.turn((upload.place, upload.client_id)) as turn:
            with turn.reading():
                norm = await receive(context, blob, request.stream(), byte_length=byte_length, digest=upload.digest)
            staged = StagedDelivery(
                client_id=upload.client_id, digest=upload.digest, at=context.now(), blob=blob, squared_norm=norm
            )
            return await context.deliveries.ask(upload.place, staged)
