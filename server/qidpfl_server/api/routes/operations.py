"""Health, readiness and metrics."""

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.fields import Message
from qidpfl_shared.protocol.signatures import KeyList

from ...errors import RequestRefused, StoreBusy
from ...identifiers import same_secret
from ..auth import Bearer, Callers, identify
from ..context import Ctx
from ..document.security import requirement
from ..errors import responses

router = APIRouter(tags=["operations"])


class Health(Message):
    """The status of the process."""

    status: str = "ok"


@router.get("/healthz", operation_id="get_health", summary="Liveness", responses=responses())
async def health() -> Health:
    """Answers while the event loop runs."""
    return Health()


@router.get("/readyz", operation_id="get_readiness", summary="Readiness", responses=responses(ErrorCode.STORE_BUSY))
async def ready(context: Ctx) -> Health:
    """Answers 200 when the store can be read and the scheduler runs, and 503 from the moment that the server drains."""
    if context.is_draining or context.scheduler.ended or context.notifier.ended:
        raise StoreBusy("the server is stopping or must be restarted")
    await context.readiness.get()
    return Health()


@router.get("/v1/keys", summary="Public keys", responses=responses(ErrorCode.STORE_BUSY))
async def list_keys(context: Ctx) -> KeyList:
    """The keys that sign, oldest first, without a token. The last one signs now; each is endorsed by the one before."""
    return await context.read(lambda tx: tx.keys.all())


@router.get(
    "/metrics",
    operation_id="get_metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={
        200: {"description": "metrics as text", "content": {"text/plain": {"schema": {"type": "string"}}}},
        **responses(ErrorCode.UNAUTHENTICATED, ErrorCode.STORE_BUSY),
    },
    openapi_extra={"security": [{}, *requirement("admin", "viewer")]},
)
async def metrics(request: Request, context: Ctx, callers: Callers, credentials: Bearer) -> Response:
    """Without a token on a loopback address; elsewhere only for admins and viewers of all tasks."""
    if not context.settings.docs_are_open:
        # A token that was never that of an operator must not cost a look-up in the store.
        token = "" if credentials is None else credentials.credentials
        secrets = (context.secrets.admin, context.secrets.viewer)
        if not any(same_secret(token, secret) for secret in secrets) and not callers.was_operator(token):
            raise RequestRefused(ErrorCode.UNAUTHENTICATED)
        if (await identify(request, context, callers, credentials)).task_id is not None:
            raise RequestRefused(ErrorCode.UNAUTHENTICATED)
    await context.task_gauges.get()
    return Response(generate_latest(context.metrics.registry), media_type=CONTENT_TYPE_LATEST)
