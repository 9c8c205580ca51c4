"""A coordinator that is paused while it has locked a round, and a database that restarts during a task."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from support.coordinators import NO_TIMEOUTS, Coordinator, ScriptedClient
from support.databases import restart
from support.faults.failing_steps import stop_holding_the_round
from support.task_checks import violations

pytestmark = pytest.mark.live

HORIZON = 3
CLIENTS = 4
PATIENCE_S = 150.0


@contextmanager
def clients_of(first: Coordinator, *others: Coordinator) -> Iterator[list[ScriptedClient]]:
    """Clients that start at the first coordinator; a client that gets no answer goes to the last one."""
    rounds = NO_TIMEOUTS | {"expected_clients": CLIENTS, "min_clients": CLIENTS, "min_updates": CLIENTS}
    task_id, code = first.create_task(game={"horizon": HORIZON}, rounds=rounds)
    refuge = (first, *others)[-1]
    with ExitStack() as connections:
        clients = [
            ScriptedClient(first.url, task_id, code, f"the-key-of-client-{n}", locate=lambda: refuge.url)
            for n in range(CLIENTS)
        ]
        for client in clients:
            client.http.timeout = httpx.Timeout(15)
            connections.enter_context(client.http)
        yield clients


def wait_until_stopped(coordinator: Coordinator) -> None:
    assert coordinator.process is not None
    status = Path(f"/proc/{coordinator.process.pid}/stat")
    deadline = time.monotonic() + PATIENCE_S
    while status.read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline, "the coordinator was never stopped"
        time.sleep(0.05)


@pytest.mark.long
def test_a_coordinator_paused_with_a_locked_round_does_not_block_the_other(postgres_url: str, tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    first = Coordinator(tmp_path / "a", store_url=postgres_url, blob_dir=blobs, sabotage=stop_holding_the_round)
    second = Coordinator(tmp_path / "b", store_url=postgres_url, blob_dir=blobs)
    with first.start(), second.start(), clients_of(first, second) as clients, ThreadPoolExecutor(CLIENTS) as threads:
        assert first.process is not None
        try:
            runs = [threads.submit(client.run, patience_s=PATIENCE_S) for client in clients]
            wait_until_stopped(first)
            assert [run.result()["task_state"] for run in runs] == ["finished"] * CLIENTS
            assert violations(second, clients[0].task_id, clients) == []
        finally:
            os.kill(first.process.pid, signal.SIGCONT)
        answer = httpx.get(f"{first.url}/readyz", timeout=60)
        assert answer.status_code == 200
        for coordinator in (first, second):
            assert violations(coordinator, clients[0].task_id, clients) == []


@pytest.mark.parametrize("way", ["immediate", pytest.param("fast", marks=pytest.mark.long)])
def test_a_restart_of_the_database_loses_nothing_and_the_task_continues(
    way: str, postgres_url: str, tmp_path: Path
) -> None:
    with (
        Coordinator(tmp_path, store_url=postgres_url) as coordinator,
        clients_of(coordinator) as clients,
        ThreadPoolExecutor(CLIENTS) as threads,
    ):
        runs = [threads.submit(client.run, patience_s=PATIENCE_S) for client in clients]
        for number in range(1, HORIZON + 1):
            while not any(number in client.receipts for client in clients):
                assert not any(run.done() for run in runs)
                time.sleep(0.005)
            restart(postgres_url, way)
        assert [run.result()["task_state"] for run in runs] == ["finished"] * CLIENTS
        assert coordinator.process is not None and coordinator.process.poll() is None
        assert violations(coordinator, clients[0].task_id, clients) == []
