"""Traces of requests, if they are on: FastAPI makes the spans of its routes, and this module those of the short way.

Without traces neither costs a request anything.
"""

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi.telemetry import TelemetryConfig
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from qidpfl_shared.tracing import past_span, server_span, tracer_provider

from ...service.rounds.settlement_timer import Timing
from ..fast_path import FastPath
from ..limits import HEALTH_PATHS

_TASK = "/v1/tasks/{task_id}"
# The routes that the short way stands for, by the names of its operations.
_ROUTES = {
    "_announcement": f"{_TASK}/rounds/current",
    "_budget": f"{_TASK}/rounds/{{round_number}}/budget",
    "_model": f"{_TASK}/models/{{version}}",
    "_update": f"{_TASK}/rounds/{{round_number}}/update",
}
# A request with this key has its span already, so that FastAPI makes none.
_HAS_SPAN = "fastapi.telemetry"
_SERVER_ERROR = 500


def telemetry(*, traces: bool) -> TelemetryConfig:
    """What FastAPI itself reports: spans of requests, or nothing. Logs and metrics are those of this project."""
    config = TelemetryConfig(tracing=False, metrics=False, logs=False, operation_spans=False, auto_configure=False)
    if traces:
        config |= TelemetryConfig(tracing=True, tracer_provider=tracer_provider(), exclude=_is_probe)
    return config


def _is_probe(scope: MutableMapping[str, Any]) -> bool:
    return scope["path"] in HEALTH_PATHS


class TracedFastPath(FastPath):
    """The short way with a span for each request, as a part of the trace that its `traceparent` names."""

    async def _answer(
        self,
        operation: Callable[..., Awaitable[Response]],
        found: re.Match[str],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        route = _ROUTES[operation.__name__]
        traceparent = next((value for name, value in scope["headers"] if name == b"traceparent"), b"").decode("latin-1")
        # Neither the query nor a header becomes an attribute.
        attributes = {"http.request.method": scope["method"], "http.route": route, "url.path": scope["path"]}
        scope[_HAS_SPAN] = None
        with server_span(f"{scope['method']} {route}", traceparent, attributes) as span:

            async def noting(message: Message) -> None:
                if message["type"] == "http.response.start":
                    status: int = message["status"]
                    span.set_attribute("http.response.status_code", status)
                    if status >= _SERVER_ERROR:
                        span.set_attribute("error.type", str(status))
                await send(message)

            await super()._answer(operation, found, scope, receive, noting)


def trace_settlement(timing: Timing) -> None:
    """A span for a settlement that has just ended, or for an evaluation that was done apart from it."""
    attributes = {} if timing.evaluation_s is None else {"qidpfl.evaluation_s": timing.evaluation_s}
    if timing.settlement_s is not None:
        past_span("settle round", timing.settlement_s, attributes)
    elif timing.evaluation_s is not None:
        past_span("evaluate model", timing.evaluation_s, attributes)
