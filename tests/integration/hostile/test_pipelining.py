"""Many requests on one connection, sent without waiting for answers, cost no more than a few of them."""

import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from support.coordinators import Coordinator, connected, running
from support.http_attacks import health_s, memory_mb

pytestmark = pytest.mark.live

TINY = b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n"
ENROL = (
    b"POST /v1/tasks/0/clients HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 25\r\n\r\n"
    b'{"enrolment_code": "0.x"}'
)
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with running(tmp_path_factory.mktemp("pipelining")) as live:
        yield live


def send_until_full(connection: socket.socket, data: bytes) -> int:
    """Send without reading any answer, until the coordinator accepts no more for three seconds."""
    connection.settimeout(3)
    sent = 0
    with suppress(TimeoutError, BrokenPipeError, ConnectionResetError):
        while sent < len(data):
            sent += connection.send(data[sent : sent + 65536])
    return sent


def test_unread_answers_to_pipelined_requests_do_not_fill_the_memory(coordinator: Coordinator) -> None:
    health_s(coordinator)
    before = memory_mb(coordinator)
    with connected(coordinator) as connection:
        send_until_full(connection, TINY * 1_000_000)
        assert health_s(coordinator) < 5
        assert memory_mb(coordinator) - before < 20


def test_twenty_connections_do_not_stop_the_answers_of_others(coordinator: Coordinator) -> None:
    with ExitStack() as stack:
        for _ in range(20):
            connection = stack.enter_context(connected(coordinator))
            connection.settimeout(0.2)
            with suppress(TimeoutError, BrokenPipeError, ConnectionResetError):
                connection.sendall(TINY * (1_000_000 // len(TINY)))
        assert health_s(coordinator) < 5


def test_all_pipelined_requests_get_their_answers_in_order(coordinator: Coordinator) -> None:
    body = b'{"enrolment_code": "0.x"}'
    enrol = (
        b"POST /v1/tasks/0/clients HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    requests = (HEALTH + TINY + enrol % len(body) + body) * 20
    with connected(coordinator) as connection:
        for start in range(0, len(requests), 997):
            connection.sendall(requests[start : start + 997])
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        received = b""
        while piece := connection.recv(65536):
            received += piece
    statuses = [part.split(b" ", 2)[0] for part in received.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"404", b"422"] * 20 + [b"200"]


def test_it_stops_in_time_under_pipelined_requests(tmp_path: Path) -> None:
    with running(tmp_path, environment={"QIDPFL_SHUTDOWN_TIMEOUT_S": "3"}) as live, ExitStack() as stack:
        for _ in range(20):
            connection = stack.enter_context(connected(live))
            connection.settimeout(0.2)
            with suppress(TimeoutError, BrokenPipeError, ConnectionResetError):
                connection.sendall(TINY * 36_000)
        assert live.process is not None
        live.process.send_signal(signal.SIGTERM)
        assert live.process.wait(timeout=15) == 0
