"""Traces of a live task: a collector gets spans of coordinator and clients that belong together."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from qidpfl import Task, Testbed

pytestmark = pytest.mark.live

SERVER, CLIENT = "qidpfl-server", "qidpfl-client"
# The spans of the coordinator by those of the clients. The first four take the short way, the others FastAPI's routes.
SPANS = {
    "GET /v1/tasks/{id}/rounds/current": "GET /v1/tasks/{task_id}/rounds/current",
    "PUT /v1/tasks/{id}/rounds/{number}/budget": "PUT /v1/tasks/{task_id}/rounds/{round_number}/budget",
    "GET /v1/tasks/{id}/models/{number}": "GET /v1/tasks/{task_id}/models/{version}",
    "PUT /v1/tasks/{id}/rounds/{number}/update": "PUT /v1/tasks/{task_id}/rounds/{round_number}/update",
    "POST /v1/tasks/{id}/clients": "POST /v1/tasks/{task_id}/clients",
    "PUT /v1/tasks/{id}/clients/me/profile": "PUT /v1/tasks/{task_id}/clients/me/profile",
}


class Collector(ThreadingHTTPServer):
    """Takes spans by OTLP over HTTP, as a real collector does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.spans: dict[str, list[Span]] = {SERVER: [], CLIENT: []}
        self.received = b""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received += body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.server.spans[names["service.name"]] += scope.spans
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        monkeypatch.setenv("QIDPFL_TRACES", "true")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        yield collector
        collector.shutdown()


def test_requests_of_a_round_are_parts_of_the_clients_traces(collector: Collector, tmp_path: Path) -> None:
    with Testbed(clients=4, folder=tmp_path) as bed:
        run = bed.run(Task.from_preset("digits").with_(horizon=2, distance_threshold=2.0))
        token = bed._services.token()
    assert len(run.rounds) == 2
    server, client = collector.spans[SERVER], collector.spans[CLIENT]
    assert {span.name for span in server} >= {*SPANS.values(), "settle round"}
    made = {(span.trace_id, span.span_id): span for span in client}
    for span in server:
        # The testbed itself is an admin without spans.
        if span.name in SPANS.values():
            parent = made[span.trace_id, span.parent_span_id]
            assert SPANS[parent.name] == span.name
            status = {one.key: one.value.int_value for one in span.attributes}["http.response.status_code"]
            assert status in (200, 201, 204)
    updates = [span for span in server if span.name.endswith("/update")]
    assert len(updates) == 2 * 4
    assert token.encode() not in collector.received and b"Bearer" not in collector.received


def test_a_dead_collector_delays_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QIDPFL_TRACES", "true")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with Testbed(clients=4) as bed:
        run = bed.run(Task.from_preset("digits").with_(horizon=1, distance_threshold=2.0))
    assert len(run.rounds) == 1


@pytest.mark.parametrize("command", ["qidpfl_server serve --port 0", "qidpfl_client ledger"])
def test_a_missing_extra_is_one_line(command: str, tmp_path: Path) -> None:
    module, *arguments = command.split()
    script = f"import sys; sys.modules['opentelemetry.sdk'] = None; sys.argv[1:] = {arguments}\n"
    script += f"from {module}.cli.app import app, {'main' if 'client' in module else 'app as main'}; main()"
    environment = {"QIDPFL_TRACES": "true", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    name = module.replace("_", "-")
    assert done.returncode == 1
    expected = f"{name}: traces need OpenTelemetry: pip install '{name}[traces]', or unset QIDPFL_TRACES"
    assert done.stderr.strip().splitlines()[-1] == expected


def test_without_the_option_no_sdk_of_opentelemetry_is_loaded() -> None:
    """FastAPI itself imports the interface of OpenTelemetry, which does nothing without an SDK."""
    script = "import sys, qidpfl_server.cli.app, qidpfl_server.api.app, qidpfl_client.cli.app; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "fastapi" in loaded and not any(name.startswith("opentelemetry.sdk") for name in loaded)
