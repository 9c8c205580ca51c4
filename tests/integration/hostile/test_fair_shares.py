"""One client with many requests and unread answers keeps neither health, operators nor other clients waiting."""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx
import pytest

from support.coordinators import NO_TIMEOUTS, Coordinator, ScriptedClient, running
from support.http_attacks import check_speed_often, health_s, memory_mb, repeated

pytestmark = pytest.mark.live

UNREAD = 512


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    state_dir, fast = tmp_path_factory.mktemp("shares"), {"QIDPFL_MIN_BYTES_PER_S": "1000000"}
    with running(state_dir, environment=fast, sabotage=check_speed_often) as coordinator:
        yield coordinator


@pytest.fixture(scope="module")
def clients(live: Coordinator) -> list[ScriptedClient]:
    layout = {"tensors": [{"name": "wide", "shape": [5_000_000]}]}
    workload = {"dataset": "none", "network": "wide"}
    task_id, code = live.create_task(rounds=NO_TIMEOUTS | {"expected_clients": 3}, workload=workload, layout=layout)
    found = [ScriptedClient(live.url, task_id, code, f"key-of-a-greedy-client-{n}") for n in range(2)]
    for client in found:
        client.enrol()
    return found


def download_head(client: ScriptedClient) -> bytes:
    path = f"/v1/tasks/{client.task_id}/models/0"
    return f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {client.token}\r\n\r\n".encode()


async def _start_downloads(client: ScriptedClient, count: int) -> list[asyncio.StreamWriter]:
    address = urlsplit(client.url)
    writers = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=1)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(download_head(client))
        writers.append(writer)
    return writers


@contextmanager
def unread_downloads(client: ScriptedClient, count: int) -> Iterator[None]:
    """Downloads whose answers are not read."""
    with asyncio.Runner() as runner:
        writers = runner.run(_start_downloads(client, count))
        yield
        for writer in writers:
            writer.transport.abort()
        runner.run(asyncio.sleep(0))


def downloads(live: Coordinator) -> float:
    text = httpx.get(f"{live.url}/metrics", timeout=30).text
    return (
        float(next(line for line in text.splitlines() if line.startswith("qidpfl_requests_in_flight")).split()[1]) - 1
    )


def test_unread_downloads_of_one_client_block_no_other_caller(live: Coordinator, clients: list[ScriptedClient]) -> None:
    greedy, honest = clients
    with unread_downloads(greedy, UNREAD):
        start = time.monotonic()
        assert health_s(live) < 5
        with live.admin as admin:
            assert admin.get(f"/v1/tasks/{greedy.task_id}").status_code == 200
        assert honest.profile().status_code in (200, 422)
        assert honest.http.get("/models/0").status_code == 200
        assert 0 < downloads(live) <= 16
        # The client reads nothing: its downloads end by themselves.
        while downloads(live):
            assert time.monotonic() - start < 40
            time.sleep(0.5)
    assert memory_mb(live) < 400


def test_one_client_has_a_limit_of_requests_and_of_long_polls(live: Coordinator, clients: list[ScriptedClient]) -> None:
    greedy, honest = clients
    statuses: set[int] = set()

    def poll() -> None:
        params = {"after": "0.0", "wait": "2"}
        url = f"{live.url}/v1/tasks/{greedy.task_id}/rounds/current"
        statuses.add(httpx.get(url, params=params, headers=greedy.http.headers, timeout=30).status_code)

    with repeated(poll, threads=20):
        time.sleep(1)
        assert honest.http.get("/rounds/current").status_code == 200
        assert greedy.http.get("/clients/me/ledger").status_code == 200
    assert statuses == {200, 429}


def test_a_slow_reader_is_not_waited_for(live: Coordinator, clients: list[ScriptedClient]) -> None:
    greedy, address = clients[0], urlsplit(live.url)
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect((address.hostname, address.port))
        reader.sendall(download_head(greedy))
        start = time.monotonic()
        while reader.recv(1024) and downloads(live):
            assert time.monotonic() - start < 30
            time.sleep(0.2)
