"""Limits on requests at once and on the size of JSON bodies, and the id of each request. Long polls do not count."""

import structlog
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qidpfl_shared.protocol.errors import ErrorCode

from ..identifiers import new_request_id
from .errors import problem_response
from .json import json_limits
from .metrics import Metrics

# Paths that take vectors end like this. All other bodies are small JSON.
UPLOAD_PATHS = ("/update", "/models/0")
REQUEST_ID_HEADER = b"x-request-id"


class RequestLimits:
    """ASGI middleware without a request object, so that it does not buffer bodies and streams."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, max_requests: int) -> None:
        self._app = app
        self._metrics = metrics
        self._max_requests = max_requests
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = new_request_id()
        client = scope.get("client")
        # All that is logged while the request is answered names it.
        structlog.contextvars.bind_contextvars(request_id=request_id, client=client and client[0])
        send = self._counted(scope, _named(send, request_id))
        is_long_poll = scope["path"].endswith(("/rounds/current", "/events"))
        if not is_long_poll and self._running >= self._max_requests:
            await problem_response(ErrorCode.TOO_MANY_REQUESTS, retry_after_s=1)(scope, receive, send)
            return
        self._count(1, is_long_poll)
        try:
            if not is_long_poll:
                receive = self._uncounted(receive)
            if not scope["path"].endswith(UPLOAD_PATHS):
                limit = json_limits(scope["path"]).size
                if (error := _header_error(scope, limit)) is not None:
                    await problem_response(error)(scope, receive, send)
                    return
                receive = _bounded(receive, limit)
            await self._app(scope, receive, send)
        finally:
            self._count(-1, is_long_poll)

    def _count(self, change: int, is_long_poll: bool = False) -> None:
        if is_long_poll:
            self._metrics.waiting.inc(change)
        else:
            self._running += change
            self._metrics.in_flight.inc(change)

    def _uncounted(self, receive: Receive) -> Receive:
        """The same body. A request does not count while the server waits for its bytes."""
        complete = False

        async def uncounted() -> Message:
            nonlocal complete
            if complete:
                return await receive()
            self._count(-1)
            try:
                message = await receive()
            finally:
                self._count(1)
            complete = not message.get("more_body", False)
            if complete and self._running > self._max_requests:
                raise HTTPException(429)
            return message

        return uncounted

    def _counted(self, scope: Scope, send: Send) -> Send:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(scope["method"], message["status"]).inc()
            await send(message)

        return counted


def _named(send: Send, request_id: str) -> Send:
    """The same answer with its request id."""
    header = (REQUEST_ID_HEADER, request_id.encode())

    async def named(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), header]}
        await send(message)

    return named


def _header_error(scope: Scope, limit: int) -> ErrorCode | None:
    """The error that the headers of a JSON request already show."""
    headers = dict(scope["headers"])
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        return ErrorCode.UNSUPPORTED_MEDIA_TYPE
    length = headers.get(b"content-length", b"0")
    return ErrorCode.BODY_TOO_LARGE if length.isdigit() and int(length) > limit else None


def _bounded(receive: Receive, limit: int) -> Receive:
    """The same body, refused once it is too large: Content-Length may be missing."""
    received = 0

    async def bounded() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise HTTPException(413)
        return message

    return bounded
