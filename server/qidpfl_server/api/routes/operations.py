"""Health, readiness and metrics."""

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.fields import Message

from ...errors import RequestRefused, StoreBusy
from ...identifiers import same_secret
from ..auth import Bearer
from ..context import Ctx
from ..errors import responses

router = APIRouter(tags=["operations"])


class Health(Message):
    """The status of the process."""

    status: str = "ok"


@router.get("/healthz", summary="Liveness")
async def health() -> Health:
    """Answers while the event loop runs."""
    return Health()


@router.get("/readyz", summary="Readiness", responses=responses(ErrorCode.STORE_BUSY))
async def ready(context: Ctx) -> Health:
    """Answers 200 when the store can be read and the scheduler runs."""
    if context.scheduler.ended or context.notifier.ended:
        raise StoreBusy("the server is stopping or must be restarted")
    await context.readiness.get()
    return Health()


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}, **responses(ErrorCode.UNAUTHENTICATED)},
)
async def metrics(context: Ctx, credentials: Bearer) -> Response:
    """Without a token on a loopback address; elsewhere only for admin and viewer."""
    # Only the two operator tokens are compared: an unknown token must not cost a look-up in the store.
    operators = (context.secrets.admin, context.secrets.viewer)
    if not context.settings.docs_are_open and (
        credentials is None or not any(same_secret(credentials.credentials, secret) for secret in operators)
    ):
        raise RequestRefused(ErrorCode.UNAUTHENTICATED)
    return Response(generate_latest(context.metrics.registry), media_type=CONTENT_TYPE_LATEST)
