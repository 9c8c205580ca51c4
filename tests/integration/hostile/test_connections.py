"""Many connections, and slow ones, do not keep other callers out, also with few open files."""

import resource
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from support.coordinators import NO_TIMEOUTS, Coordinator, ScriptedClient, connected, digest_header, running
from support.http_attacks import check_speed_often, health_s, honest_task_s, open_files, repeated

pytestmark = pytest.mark.live


def few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))


def low_soft_limit() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))


def opened(coordinator: Coordinator, count: int, stack: ExitStack, source: str = "127.0.0.1") -> list[socket.socket]:
    """Idle connections from this address."""
    address = urlsplit(coordinator.url)
    return [
        stack.enter_context(
            socket.create_connection((address.hostname, address.port), timeout=10, source_address=(source, 0))
        )
        for _ in range(count)
    ]


def is_open(connection: socket.socket) -> bool:
    connection.settimeout(0)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


def gathered(coordinator: Coordinator, count: int = 3) -> list[ScriptedClient]:
    """The clients of a task whose first round is open."""
    task_id, code = coordinator.create_task(rounds=NO_TIMEOUTS | {"expected_clients": count})
    clients = [ScriptedClient(coordinator.url, task_id, code, f"key-of-a-client-{n:04d}") for n in range(count)]
    for client in clients:
        client.enrol()
        client.profile().raise_for_status()
    return clients


def test_idle_connections_beyond_all_files_stop_neither_health_nor_a_task(tmp_path: Path) -> None:
    with running(tmp_path, sabotage=few_files) as live, ExitStack() as stack:
        opened(live, 1_000, stack)
        assert health_s(live) < 5

        def open_more() -> None:
            with ExitStack() as more:
                opened(live, 100, more)
                time.sleep(0.1)

        with repeated(open_more):
            honest_task_s(live, "crowded", clients=5, horizon=2)
            assert max(health_s(live) for _ in range(20)) < 5
        assert open_files(live) < 450
        assert len(live.log) < 200
        assert "0 violated" in live.audit()


def test_the_soft_limit_of_files_is_raised(tmp_path: Path) -> None:
    with running(tmp_path, sabotage=low_soft_limit) as live, ExitStack() as stack:
        connections = opened(live, 400, stack)
        health_s(live)
        assert all(map(is_open, connections))


def test_one_address_takes_its_own_places_only(tmp_path: Path) -> None:
    limits = {"QIDPFL_MAX_CONNECTIONS": "50", "QIDPFL_MAX_CONNECTIONS_PER_ADDRESS": "20"}
    with running(tmp_path, environment=limits) as live, ExitStack() as stack:
        others = opened(live, 10, stack)
        many = opened(live, 200, stack, source="127.0.0.2")
        health_s(live)
        assert all(map(is_open, others))
        assert sum(map(is_open, many)) <= 20
        # The newest ones stay: a client that comes back after an attack is not kept out.
        assert all(map(is_open, many[-20:]))


def test_health_and_operators_are_answered_when_all_connections_are_busy(tmp_path: Path) -> None:
    with running(tmp_path, environment={"QIDPFL_MAX_CONNECTIONS": "6"}) as live, ExitStack() as stack:
        client = gathered(live)[0]
        poll = f"GET /v1/tasks/{client.task_id}/rounds/current?after=1.1&wait=60 HTTP/1.1\r\nHost: x\r\n"
        for _ in range(6):
            connection = stack.enter_context(connected(live))
            connection.sendall(f"{poll}Authorization: Bearer {client.token}\r\n\r\n".encode())
        time.sleep(0.5)
        # Idle connections do not fill the reserved places either.
        opened(live, 100, stack)
        assert health_s(live) < 5
        with live.admin as admin:
            assert admin.get(f"/v1/tasks/{client.task_id}").status_code == 200
        answer = httpx.get(f"{live.url}/v1/tasks/{client.task_id}", headers=client.http.headers, timeout=30)
        assert (answer.status_code, answer.json()["code"]) == (429, "too_many_requests")
        assert int(answer.headers["Retry-After"]) > 0


def test_a_slow_upload_is_ended_by_its_speed(tmp_path: Path) -> None:
    with running(tmp_path, environment={"QIDPFL_BODY_TIMEOUT_S": "600"}, sabotage=check_speed_often) as live:
        client = gathered(live)[0]
        news = client.poll(wait=40)
        assert news is not None
        client.declare(news["round"]).raise_for_status()
        body = client.update(news["round"])
        head = (
            f"PUT /v1/tasks/{client.task_id}/rounds/1/update HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
            f"Authorization: Bearer {client.token}\r\nContent-Digest: {digest_header(body)}\r\n\r\n"
        )
        start = time.monotonic()
        with connected(live) as connection, suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(head.encode())
            for position in range(len(body)):
                connection.sendall(body[position : position + 1])
                time.sleep(0.1)
                if not is_open(connection):
                    break
                connection.settimeout(60)
        assert time.monotonic() - start < 30
        assert list((tmp_path / "blobs" / "staging").iterdir()) == []
        assert client.upload(news["round"]).status_code == 200
