"""Health, readiness and metrics."""

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.fields import Message

from ...errors import RequestRefused, StoreBusy
from ..auth import Bearer, identify
from ..context import Ctx
from ..errors import responses

router = APIRouter(tags=["operations"])


class Health(Message):
    """The process answers."""

    status: str = "ok"


@router.get("/healthz", summary="Is the process alive?")
async def health() -> Health:
    """Answers as long as the event loop runs."""
    return Health()


@router.get("/readyz", summary="Can it work?", responses=responses(ErrorCode.STORE_BUSY))
async def ready(context: Ctx) -> Health:
    """Answers when the store can be read and rounds are looked after."""
    if context.scheduler.ended or context.notifier.ended:
        raise StoreBusy("the coordinator stops, or has to be started again")
    await context.read(lambda tx: tx.change_counter())
    return Health()


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}, **responses(ErrorCode.UNAUTHENTICATED)},
)
async def metrics(context: Ctx, credentials: Bearer) -> Response:
    """Open on a loopback address; elsewhere for admin and viewer."""
    if not context.settings.docs_are_open:
        caller = await identify(context, credentials)
        if caller.task_id is not None:
            raise RequestRefused(ErrorCode.UNAUTHENTICATED)
    return Response(generate_latest(context.metrics.registry), media_type=CONTENT_TYPE_LATEST)
