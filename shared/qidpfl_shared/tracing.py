"""OpenTelemetry traces of coordinator and client. Nothing of OpenTelemetry is imported until tracing is started.

Spans are sent by OTLP over HTTP, in the background and from a bounded queue: a dead collector costs spans, never a
round. The standard `OTEL_*` variables say where to and under which name.
"""

import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

VARIABLE = "QIDPFL_TRACES"
_TRACEPARENT = "traceparent"
_SECOND = 1_000_000_000
# The tracer, once tracing has been started. `Any`: OpenTelemetry may be absent.
_tracer: Any = None
_provider: Any = None
_NO_SPAN: AbstractContextManager[Any] = nullcontext()
_IDS = re.compile(r"/[0-9a-f]{16,64}(?=/|$)")
_NUMBERS = re.compile(r"/[0-9]+(?=[/.]|$)")


class TracingUnavailable(Exception):
    """OpenTelemetry is not installed."""

    def __init__(self, distribution: str) -> None:
        super().__init__(f"traces need OpenTelemetry: pip install '{distribution}[traces]', or unset {VARIABLE}")


def traces_are_wanted() -> bool:
    """Whether the environment asks for traces."""
    return os.environ.get(VARIABLE, "").lower() in ("1", "true", "yes", "on")


def start_tracing(distribution: str) -> None:
    """Send the spans of this process from now on.

    Raises:
        TracingUnavailable: the extra of this distribution is not installed.
    """
    global _provider, _tracer
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise TracingUnavailable(distribution) from None
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    _provider = TracerProvider(resource=Resource.create({} if named else {"service.name": distribution}))
    _provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    _tracer = _provider.get_tracer("qidpfl")


def tracer_provider() -> Any:
    """The provider of the spans, for a library that makes its own. Tracing has been started."""
    return _provider


def client_span(method: str, path: str, server: str) -> AbstractContextManager[Any]:
    """A span around a call to a coordinator; nothing unless tracing was started."""
    if _tracer is None:
        return _NO_SPAN
    from opentelemetry.trace import SpanKind

    attributes = {"http.request.method": method, "url.path": path.partition("?")[0], "server.address": server}
    span: AbstractContextManager[Any] = _tracer.start_as_current_span(
        f"{method} {span_route(path)}", kind=SpanKind.CLIENT, attributes=attributes
    )
    return span


def span_route(path: str) -> str:
    """A path without its query, and with ids and numbers replaced: otherwise there would be too many kinds of spans.

    >>> span_route("/v1/tasks/0123456789abcdef01234567/rounds/12/budget?x=1")
    '/v1/tasks/{id}/rounds/{number}/budget'
    """
    return _NUMBERS.sub("/{number}", _IDS.sub("/{id}", path.partition("?")[0]))


def trace_headers() -> dict[str, str]:
    """The `traceparent` of the current span, also of a program that has set up OpenTelemetry itself; else nothing.

    Neither `tracestate` nor baggage is passed on: they could tell the coordinator more than the owner wants.
    """
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return {_TRACEPARENT: carrier[_TRACEPARENT]} if _TRACEPARENT in carrier else {}


@contextmanager
def server_span(name: str, traceparent: str, attributes: Mapping[str, Any]) -> Iterator[Any]:
    """A span around a request. It continues the trace that the caller names, if that is well-formed."""
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {_TRACEPARENT: traceparent} if traceparent else {}
    context = TraceContextTextMapPropagator().extract(carrier)
    with _tracer.start_as_current_span(
        name, context=context, kind=SpanKind.SERVER, attributes=dict(attributes), record_exception=False
    ) as span:
        yield span


def past_span(name: str, seconds: float, attributes: Mapping[str, Any]) -> None:
    """A span of something that has just ended and took this long."""
    ended = time.time_ns()
    started = ended - int(seconds * _SECOND)
    _tracer.start_span(name, start_time=started, attributes=dict(attributes)).end(end_time=ended)
