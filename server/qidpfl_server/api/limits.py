"""Limits on requests at once, on their rate and on the size of JSON bodies, and the id of each request.

Long polls do not count as requests at once. Health, readiness and metrics are always answered.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import StrEnum

import anyio
import structlog
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qidpfl_shared.protocol.errors import ErrorCode

from ..identifiers import hash_secret, new_request_id, same_secret
from ..logs import LimitedLog
from ..ops.tokens import Secrets
from .auth import CallerCache
from .errors import problem_response
from .json import json_limits
from .metrics import Metrics
from .rates import CallerRates
from .security_headers import security_headers

# Paths that take vectors end like this. All other bodies are small JSON.
UPLOAD_PATHS = ("/update", "/models/0")
LONG_POLL_PATHS = ("/rounds/current", "/events")
HEALTH_PATHS = ("/healthz", "/readyz", "/metrics")
REQUEST_ID_HEADER = b"x-request-id"
# The key of a scope whose connection is beyond the limits: only health and operators are answered.
RESERVED = "qidpfl.reserved"
# The key of a scope for the place of its connection, which has `paused()`.
CONNECTION = "qidpfl.connection"
# Requests at once of operators.
_OPERATOR_REQUESTS = 64
# How long the answer to a request above the rate is held back. Health is answered within the time-out of a prober.
_LONGEST_PAUSE_S = 10.0
_LONGEST_HEALTH_PAUSE_S = 0.5

_log = LimitedLog()


class Lane(StrEnum):
    """Requests that share a limit. Clients cannot fill the lane of operators. Health has no limit at all."""

    HEALTH = "health"
    OPERATOR = "operator"
    CLIENT = "client"


@dataclass(frozen=True)
class RequestKind:
    """What a request counts as. A client's token also has a limit of its own, for long polls and for the others."""

    lane: Lane
    is_long_poll: bool
    token: bytes | None

    @property
    def caller(self) -> tuple[bytes, bool] | None:
        return None if self.token is None or self.lane is not Lane.CLIENT else (self.token, self.is_long_poll)

    @property
    def token_hash(self) -> str | None:
        return None if self.token is None else hash_secret(self.token.decode("latin-1"))


class _Exchange:
    """One request and its answer, as the application sees them. One object, because each layer costs every request."""

    __slots__ = (
        "_body_bytes",
        "_complete",
        "_limits",
        "_receive",
        "_request_id",
        "_scope",
        "_send",
        "lane",
        "largest_body",
        "status",
    )

    def __init__(self, limits: "RequestLimits", scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        self._limits = limits
        self._scope = scope
        self._receive = receive
        self._send = send
        self._request_id = request_id
        self._complete = False
        self._body_bytes = 0
        self.status = 0
        # The lane that counts the request; None while no lane does.
        self.lane: Lane | None = None
        self.largest_body: int | None = None

    async def receive(self) -> Message:
        """The next part of the body. A request does not count while the server waits for its bytes.

        A body is refused once it is too large: Content-Length may be missing.
        """
        if self.lane is None or self._complete:
            message = await self._receive()
        else:
            with self._limits.waiting(self.lane):
                message = await self._receive()
            self._complete = not message.get("more_body", False)
            if self._complete and self._limits.is_beyond(self.lane):
                raise HTTPException(429)
        if self.largest_body is not None:
            self._body_bytes += len(message.get("body", b""))
            if self._body_bytes > self.largest_body:
                raise HTTPException(413)
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the answer. A request does not count while the server waits for the client to read."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._limits.count_answer(self._scope["method"], self.status)
            headers = list(message.get("headers", ()))
            added = security_headers(self._scope, headers)
            headers += ((REQUEST_ID_HEADER, self._request_id.encode()), *added)
            message = {**message, "headers": headers}
        elif self.lane is not None and message.get("more_body", False):
            with self._limits.waiting(self.lane):
                await self._send(message)
            return
        await self._send(message)


class _Waiting:
    """A request of a lane that waits for its client: it does not count meanwhile."""

    def __init__(self, running: dict[Lane, int], lane: Lane) -> None:
        self._running = running
        self._lane = lane

    def __enter__(self) -> None:
        self._running[self._lane] -= 1

    def __exit__(self, *_: object) -> None:
        self._running[self._lane] += 1


class RequestLimits:
    """ASGI application in front of another one, without a request object, so that it does not buffer bodies."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: Metrics,
        secrets: Secrets,
        callers: CallerCache,
        rates: CallerRates,
        max_requests: int,
        max_requests_per_client: int,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._callers = callers
        self._rates = rates
        self._secrets = secrets
        self._limits = {Lane.HEALTH: math.inf, Lane.OPERATOR: _OPERATOR_REQUESTS, Lane.CLIENT: max_requests}
        self._per_client = max_requests_per_client
        self._running = dict.fromkeys(Lane, 0)
        self._waiting = {lane: _Waiting(self._running, lane) for lane in Lane}
        self._by_caller: dict[tuple[bytes, bool], int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = new_request_id()
        client = scope.get("client")
        # All that is logged while the request is answered names it.
        structlog.contextvars.bind_contextvars(request_id=request_id, client=client and client[0])
        exchange = _Exchange(self, scope, receive, send, request_id)
        kind, host = self._kind(scope), client[0] if client else ""
        if kind.lane is Lane.CLIENT:
            await self._answer_client(kind, host, scope, receive, exchange)
        elif kind.lane is Lane.OPERATOR or await self._may_ask_health(host, scope, receive):
            await self._answer(kind, scope, exchange)

    def count_answer(self, method: str, status: int) -> None:
        """Count an answer in the metrics."""
        self._metrics.count_request(method, status)

    def waiting(self, lane: Lane) -> AbstractContextManager[None]:
        """A block in which a request of this lane does not count."""
        return self._waiting[lane]

    def is_beyond(self, lane: Lane) -> bool:
        """Whether more requests of this lane run than may."""
        return self._running[lane] > self._limits[lane]

    async def _answer_client(
        self, kind: RequestKind, host: str, scope: Scope, receive: Receive, exchange: _Exchange
    ) -> None:
        """Answer a request of a client or an outsider if its rate allows it."""
        token_hash = kind.token_hash
        ticket = self._rates.count(token_hash, host)
        if ticket.wait_s:
            _log.warning("rate_limited", of="client" if ticket.address is None else "address")
            if await _held_back(scope, receive, min(ticket.wait_s, _LONGEST_PAUSE_S)):
                await _too_many(math.ceil(ticket.wait_s))(scope, receive, exchange.send)
            return
        if RESERVED in scope:
            await _too_many(1)(scope, receive, exchange.send)
            return
        try:
            await self._answer(kind, scope, exchange)
        finally:
            self._rates.settle(ticket, token_hash, exchange.status)

    async def _may_ask_health(self, host: str, scope: Scope, receive: Receive) -> bool:
        """Whether the caller still waits for its answer, which comes late to an address that asks too often."""
        wait_s = self._rates.count_health(host)
        return not wait_s or await _held_back(scope, receive, min(wait_s, _LONGEST_HEALTH_PAUSE_S))

    async def _answer(self, kind: RequestKind, scope: Scope, exchange: _Exchange) -> None:
        receive, send = exchange.receive, exchange.send
        if self._is_full(kind):
            await _too_many(1)(scope, receive, send)
            return
        with self._counted(kind):
            if not kind.is_long_poll:
                exchange.lane = kind.lane
            if not scope["path"].endswith(UPLOAD_PATHS):
                exchange.largest_body = limit = json_limits(scope["path"]).size
                if (error := _header_error(scope, limit)) is not None:
                    await problem_response(error)(scope, receive, send)
                    return
            await self._app(scope, receive, send)

    def _kind(self, scope: Scope) -> RequestKind:
        header = next((value for name, value in scope["headers"] if name == b"authorization"), None)
        token = None if header is None else header.partition(b" ")[2].strip()
        is_long_poll = scope["path"].endswith(LONG_POLL_PATHS)
        if scope["path"] in HEALTH_PATHS:
            return RequestKind(Lane.HEALTH, False, token)
        text = None if token is None else token.decode("latin-1")
        if text is not None and self._is_operator(text):
            return RequestKind(Lane.OPERATOR, is_long_poll, token)
        return RequestKind(Lane.CLIENT, is_long_poll, token)

    def _is_operator(self, token: str) -> bool:
        """Whether this is a static token, or that of a known operator of all tasks.

        An operator of one task counts as a client: such tokens cannot fill the lane of the others.
        """
        secrets = (self._secrets.admin, self._secrets.viewer)
        return any(same_secret(token, secret) for secret in secrets) or self._callers.was_operator(token)

    def _is_full(self, kind: RequestKind) -> bool:
        if kind.caller is not None and self._by_caller.get(kind.caller, 0) >= self._per_client:
            return True
        return not kind.is_long_poll and self._running[kind.lane] >= self._limits[kind.lane]

    @contextmanager
    def _counted(self, kind: RequestKind) -> Iterator[None]:
        gauge = self._metrics.waiting if kind.is_long_poll else self._metrics.in_flight
        gauge.inc()
        self._running[kind.lane] += not kind.is_long_poll
        if (caller := kind.caller) is not None:
            self._by_caller[caller] = self._by_caller.get(caller, 0) + 1
        try:
            yield
        finally:
            gauge.dec()
            self._running[kind.lane] -= not kind.is_long_poll
            if caller is not None:
                self._by_caller[caller] -= 1
                if not self._by_caller[caller]:
                    del self._by_caller[caller]


async def _held_back(scope: Scope, receive: Receive, pause_s: float) -> bool:
    """Wait before an answer; False if the caller leaves first. A new connection may take the place of this one."""
    connection = scope.get(CONNECTION)
    with nullcontext() if connection is None else connection.paused(), anyio.move_on_after(pause_s):
        while (await receive())["type"] != "http.disconnect":
            pass
        return False
    return True


def _too_many(retry_after_s: int) -> JSONResponse:
    return problem_response(ErrorCode.TOO_MANY_REQUESTS, retry_after_s=retry_after_s)


def _header_error(scope: Scope, limit: int) -> ErrorCode | None:
    """The error that the headers of a JSON request already show."""
    headers = dict(scope["headers"])
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        return ErrorCode.UNSUPPORTED_MEDIA_TYPE
    length = headers.get(b"content-length", b"0")
    return ErrorCode.BODY_TOO_LARGE if length.isdigit() and int(length) > limit else None
