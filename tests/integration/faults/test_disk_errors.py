"""A disk that fails for a while: requests get 503, the log stays short, no task ends, and everything heals."""

import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.coordinators import FILE_UPDATES, Coordinator, ScriptedClient, running
from support.faults import failing_steps

pytestmark = pytest.mark.live

CLIENTS = 3
ROUNDS = {"expected_clients": CLIENTS, "min_clients": CLIENTS, "min_updates": CLIENTS}
REQUESTS = 40


def gathered(coordinator: Coordinator, **overrides: Any) -> list[ScriptedClient]:
    """Clients of a task of one round, which is open and in which all have declared."""
    task_id, code = coordinator.create_task(game={"horizon": 1}, rounds=ROUNDS, **overrides)
    clients = [ScriptedClient(coordinator.url, task_id, code, f"the-key-of-client-{n}") for n in range(CLIENTS)]
    for client in clients:
        client.enrol()
        client.profile().raise_for_status()
    for client in clients:
        answer = client.poll(wait=60)
        assert answer is not None
        client.declare(answer["round"]).raise_for_status()
        client.unanswered = answer["round"]
    return clients


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)


@contextmanager
def without_file_handles(coordinator: Coordinator) -> Iterator[None]:
    assert coordinator.process is not None
    process = coordinator.process.pid
    limits = resource.prlimit(process, resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir(f"/proc/{process}/fd"))
    resource.prlimit(process, resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_NOFILE, limits)


def require_refusals(client: ScriptedClient, coordinator: Coordinator) -> None:
    """Every upload gets 503, and the log has about one line a second and no traceback."""
    assert client.unanswered is not None
    before, started = len(coordinator.log), time.monotonic()
    for _ in range(REQUESTS):
        refused = client.upload(client.unanswered)
        assert (refused.status_code, refused.json()["code"]) == (503, "store_busy"), refused.text
        assert int(refused.headers["Retry-After"]) > 0
        assert str(coordinator.state_dir) not in refused.text
    said = coordinator.log[before:]
    assert not [line for line in said if line["event"] in ("internal_error", "library")]
    failed = [line for line in said if line["event"] == "request_failed"]
    assert 1 <= len(failed) <= time.monotonic() - started + 2


def require_healed(clients: list[ScriptedClient], coordinator: Coordinator) -> None:
    for client in clients:
        assert client.unanswered is not None
        client.upload(client.unanswered).raise_for_status()
        client.seen = "1.1"
    while (answer := clients[0].poll(wait=60)) is None:
        pass
    assert answer["reason"] == "horizon_reached"
    assert "0 violated" in coordinator.audit()


def test_a_read_only_blob_folder_answers_503_and_heals_by_itself(tmp_path: Path, small_disk: Path) -> None:
    with running(tmp_path / "state", blob_dir=small_disk / "blobs") as coordinator:
        clients = gathered(coordinator, **FILE_UPDATES)
        with read_only(small_disk):
            require_refusals(clients[0], coordinator)
        require_healed(clients, coordinator)


def test_a_process_without_file_handles_answers_503_and_heals_by_itself(tmp_path: Path) -> None:
    with running(tmp_path / "state") as coordinator:
        clients = gathered(coordinator, **FILE_UPDATES)
        clients[0].http.get("/clients/me/ledger").raise_for_status()
        with without_file_handles(coordinator):
            require_refusals(clients[0], coordinator)
        require_healed(clients, coordinator)


@contextmanager
def without_writes_to_the_database(coordinator: Coordinator) -> Iterator[None]:
    """No file can be written beyond two pages, so SQLite reports an I/O error. Updates and log lines are smaller."""
    assert coordinator.process is not None
    process = coordinator.process.pid
    limits = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (2 * 4096, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_FSIZE, limits)


def test_a_database_that_cannot_be_written_answers_503_and_heals_by_itself(tmp_path: Path) -> None:
    with running(tmp_path / "state") as coordinator:
        clients = gathered(coordinator)
        with without_writes_to_the_database(coordinator):
            require_refusals(clients[0], coordinator)
        require_healed(clients, coordinator)


@pytest.mark.parametrize("sound", [True, False], ids=["now", "without the limit"])
def test_a_coordinator_paused_in_the_closing_transaction_delays_the_other_by_about_five_seconds(
    postgres_url: str, tmp_path: Path, sound: bool
) -> None:
    """Without the time limit of PostgreSQL the other one waits as long as the pause lasts: the check can fail."""
    blobs = tmp_path / "blobs"
    pause = failing_steps.stop_holding_the_round if sound else failing_steps.stop_holding_the_round_for_ever
    paused = Coordinator(tmp_path / "a", store_url=postgres_url, blob_dir=blobs, sabotage=pause)
    other = Coordinator(tmp_path / "b", store_url=postgres_url, blob_dir=blobs)
    with paused.start(), other.start():
        assert paused.process is not None
        clients = gathered(paused)
        reader = clients[0]
        try:
            for client in clients:
                assert client.unanswered is not None
                client.upload(client.unanswered).raise_for_status()
            wait_until_paused(paused)
            started = time.monotonic()
            reader.http.base_url = f"{other.url}/v1/tasks/{reader.task_id}"
            while not (closed := is_closed(reader)) and time.monotonic() - started < 10:
                time.sleep(0.05)
            delay_s = time.monotonic() - started
        finally:
            os.kill(paused.process.pid, signal.SIGCONT)
        print(f"closed: {closed}, {delay_s:.1f} s after the pause began")
        # Five seconds, and what a loaded machine needs to notice and to settle.
        assert closed is sound
        while not is_closed(reader):
            time.sleep(0.05)
        assert "0 violated" in other.audit()


def wait_until_paused(coordinator: Coordinator) -> None:
    assert coordinator.process is not None
    status, deadline = Path(f"/proc/{coordinator.process.pid}/stat"), time.monotonic() + 60
    while status.read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline, "the coordinator was never paused"
        time.sleep(0.02)


def is_closed(client: ScriptedClient) -> bool:
    state: str = client.http.get("/rounds/1").raise_for_status().json()["state"]
    return state != "open"
