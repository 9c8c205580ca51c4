"""Two thousand clients that wait for the next round cost the coordinator neither threads nor connections."""

import asyncio
import json
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from support.coordinators import Coordinator, ScriptedClient, running

pytestmark = pytest.mark.live

WINDOWS = {"declare_s": 600.0, "deliver_s": 600.0, "quiet_s": 600.0, "enrolment_window_s": 600.0}
# Pools of threads and connections may still grow a little; 2,000 waiters would add thousands.
POOL = 8
# Few clients stand for many: one has more long polls than it may have by default.
CROWD = {"QIDPFL_MAX_REQUESTS_PER_CLIENT": "2000"}


@contextmanager
def many_open_files(waiting: int) -> Iterator[None]:
    """Sockets for all clients in this process, and (inherited) in the coordinator's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * waiting + 1000
    assert hard == resource.RLIM_INFINITY or hard >= wanted, "this machine allows too few open files"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("waiting", [300, pytest.param(2000, marks=pytest.mark.long)])
def test_waiting_clients_cost_no_thread_and_no_connection_and_all_get_the_next_round(
    tmp_path: Path, waiting: int
) -> None:
    with many_open_files(waiting), running(tmp_path, environment=CROWD) as coordinator:
        clients = _gathered(coordinator)
        offer = (clients[0].poll() or {})["round"]
        for client in clients:
            client.declare(offer).raise_for_status()
        for client in clients[1:]:
            client.upload(offer).raise_for_status()
        seconds, rounds, before, during = asyncio.run(_wait_and_settle(coordinator, clients, offer, waiting))
        print(f"{waiting} waiting clients answered within {seconds:.2f} s")
        print(f"threads {before[0]} -> {during[0]}, database connections {before[1]} -> {during[1]}")
        assert rounds == [2] * waiting
        assert during[0] <= before[0] + POOL
        assert during[1] <= before[1] + POOL
        assert "0 violated" in coordinator.audit()


async def _wait_and_settle(
    coordinator: Coordinator, clients: list[ScriptedClient], offer: dict[str, Any], count: int
) -> tuple[float, list[int], tuple[int, int], tuple[int, int]]:
    """Let all clients wait, deliver the last update, and collect the rounds that are announced."""
    gate = asyncio.Semaphore(100)
    crowd = [clients[n % len(clients)] for n in range(count)]
    # Requests that do not wait fill the pools first.
    assert await asyncio.gather(*(_poll(client, gate, "0.0") for client in crowd[:200])) == [1] * 200
    before = _threads(coordinator), _database_files(coordinator)
    waiting = [asyncio.create_task(_poll(client, gate, "1.1")) for client in crowd]
    while await asyncio.to_thread(_long_polls, coordinator) < count:
        await asyncio.sleep(0.1)
    during = _threads(coordinator), _database_files(coordinator)
    start = time.monotonic()
    (await asyncio.to_thread(clients[0].upload, offer)).raise_for_status()
    rounds = await asyncio.wait_for(asyncio.gather(*waiting), timeout=120)
    return time.monotonic() - start, rounds, before, during


async def _poll(client: ScriptedClient, gate: asyncio.Semaphore, after: str) -> int:
    """The number of the round that one connection is told of."""
    address = urlsplit(client.url)
    async with gate:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(
            f"GET /v1/tasks/{client.task_id}/rounds/current?after={after}&wait=60 HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {client.token}\r\nConnection: close\r\n\r\n".encode()
        )
        await writer.drain()
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    assert b" 200 " in head.splitlines()[0], head
    return int(json.loads(body)["round"]["round_number"])


def _gathered(coordinator: Coordinator) -> list[ScriptedClient]:
    task_id, code = coordinator.create_task("crowd", rounds=WINDOWS | {"expected_clients": 5})
    clients = [ScriptedClient(coordinator.url, task_id, code, f"key-of-client-in-a-crowd-{n}") for n in range(5)]
    for client in clients:
        client.enrol()
        client.profile().raise_for_status()
    return clients


def _long_polls(coordinator: Coordinator) -> int:
    for line in httpx.get(f"{coordinator.url}/metrics", timeout=60).text.splitlines():
        if line.startswith("qidpfl_long_polls "):
            return int(float(line.split()[1]))
    raise AssertionError("no such metric")


def _threads(coordinator: Coordinator) -> int:
    assert coordinator.process is not None
    status = Path(f"/proc/{coordinator.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("Threads:")).split()[1])


def _database_files(coordinator: Coordinator) -> int:
    """How many times the coordinator holds its database file open, which is once per connection."""
    assert coordinator.process is not None
    database = coordinator.state_dir / "coordinator.db"
    links = Path(f"/proc/{coordinator.process.pid}/fd").iterdir()
    return sum(link.exists() and link.resolve() == database.resolve() for link in links)
