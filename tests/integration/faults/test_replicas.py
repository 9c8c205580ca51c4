"""Replicas of the coordinator on one PostgreSQL: news, a stop that drains, a taken-over settlement, clocks, secrets."""

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from support.commands import server_command
from support.coordinators import NO_TIMEOUTS, Coordinator, ScriptedClient, play_to_the_end
from support.faults.failing_steps import (
    an_hour_ahead,
    an_hour_behind,
    stop_before_a_settlement,
    stop_holding_the_round,
)
from support.task_checks import violations

pytestmark = pytest.mark.live

CLIENTS = 3
FEW = NO_TIMEOUTS | {"expected_clients": CLIENTS, "min_clients": CLIENTS, "min_updates": CLIENTS}
DRAIN_S = 3.0


@contextmanager
def replicas(url: str, folder: Path, *, first: Callable[[], None] | None = None) -> Iterator[list[Coordinator]]:
    """Two coordinators; `first` breaks the first one."""
    blobs = folder / "blobs"
    pair = [
        Coordinator(folder / "a", store_url=url, blob_dir=blobs, sabotage=first),
        Coordinator(folder / "b", store_url=url, blob_dir=blobs),
    ]
    with pair[0], pair[1]:
        yield pair


def enrolled(coordinator: Coordinator, horizon: int) -> list[ScriptedClient]:
    """The clients of a new task, in its first round."""
    task_id, code = coordinator.create_task(game={"horizon": horizon}, rounds=FEW)
    clients = [ScriptedClient(coordinator.url, task_id, code, f"the-key-of-client-{n}") for n in range(CLIENTS)]
    for client in clients:
        client.enrol()
        client.profile().raise_for_status()
    return clients


def move(client: ScriptedClient, coordinator: Coordinator) -> ScriptedClient:
    client.http.base_url = f"{coordinator.url}/v1/tasks/{client.task_id}"
    return client


def test_a_client_of_the_other_replica_hears_of_the_next_round_at_once(postgres_url: str, tmp_path: Path) -> None:
    with replicas(postgres_url, tmp_path) as (first, second), ThreadPoolExecutor(1) as thread:
        listener, *others = enrolled(first, horizon=8)
        move(listener, second)
        took = []
        for number in range(1, 8):
            for client in (listener, *others):
                client.play((client.poll() or {})["round"])
                if client is listener:
                    waiting = thread.submit(listener.poll, 30.0)
            # The first replica has the last update, so it settles the round.
            start = time.monotonic()
            assert (waiting.result() or {})["round"]["round_number"] == number + 1
            took.append(time.monotonic() - start)
        print("announced after", *(f"{1000 * seconds:.0f} ms" for seconds in took))
        assert statistics.median(took) < 0.4


def test_a_coordinator_that_is_told_to_stop_serves_until_the_balancer_has_noticed(
    postgres_url: str, tmp_path: Path
) -> None:
    environment = {"QIDPFL_DRAIN_S": str(DRAIN_S)}
    with Coordinator(tmp_path, store_url=postgres_url, environment=environment) as coordinator:
        (client, *_) = enrolled(coordinator, horizon=3)
        offer = (client.poll() or {})["round"]
        client.seen = f"{offer['round_number']}.{offer['attempt']}"
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(client.poll, 60.0)
            time.sleep(0.3)
            assert coordinator.process is not None
            start = time.monotonic()
            coordinator.process.terminate()
            while (ready := httpx.get(f"{coordinator.url}/readyz")).status_code == 200:
                assert time.monotonic() - start < 1
            assert (ready.status_code, ready.headers["connection"]) == (503, "close")
            # New connections and requests are served as before.
            client.declare(offer).raise_for_status()
            client.upload(offer).raise_for_status()
            assert waiting.result() is None
            assert DRAIN_S - 0.5 < time.monotonic() - start < DRAIN_S + 2
            assert coordinator.process.wait() == 0
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{coordinator.url}/readyz")


def test_a_second_signal_ends_the_drain(tmp_path: Path) -> None:
    with Coordinator(tmp_path, environment={"QIDPFL_DRAIN_S": "60"}) as coordinator:
        assert coordinator.process is not None
        coordinator.process.terminate()
        while httpx.get(f"{coordinator.url}/readyz").status_code == 200:
            time.sleep(0.01)
        coordinator.process.terminate()
        assert coordinator.process.wait(20) == 0


def kill_itself_before_a_settlement() -> None:
    os.environ["QIDPFL_FAILPOINT"] = "settle.model_written:1"


@pytest.mark.parametrize(
    "fault",
    [
        kill_itself_before_a_settlement,
        stop_holding_the_round,
        pytest.param(stop_before_a_settlement, marks=pytest.mark.long),
    ],
    ids=["killed", "stopped_with_a_lock", "stopped"],
)
def test_another_replica_takes_over_an_open_settlement_within_ten_seconds(
    postgres_url: str, tmp_path: Path, fault: Callable[[], None]
) -> None:
    with replicas(postgres_url, tmp_path, first=fault) as (first, second):
        clients = enrolled(first, horizon=2)
        offers = [(client.poll() or {})["round"] for client in clients]
        for client, offer in zip(clients, offers, strict=True):
            client.play(offer)
        start = time.monotonic()
        news = move(clients[0], second).poll(30.0)
        took = time.monotonic() - start
        print(f"taken over after {took:.1f} s")
        assert news is not None and news["round"]["round_number"] == 2
        assert took < 10
        assert first.process is not None
        if first.process.poll() is None:
            os.kill(first.process.pid, signal.SIGCONT)
        for client in clients:
            client.locate = lambda: second.url
        play_to_the_end([move(client, second) for client in clients])
        assert violations(second, clients[0].task_id, clients) == []


@pytest.mark.parametrize("skew", [an_hour_ahead, pytest.param(an_hour_behind, marks=pytest.mark.long)])
def test_a_replica_whose_clock_is_wrong_closes_no_round_early_and_opens_none_that_is_over(
    postgres_url: str, tmp_path: Path, skew: Callable[[], None]
) -> None:
    with replicas(postgres_url, tmp_path, first=skew) as (first, second):
        assert any(event["event"] == "clock_differs" for event in first.log)
        clients = enrolled(first, horizon=3)
        for number in (1, 2):
            # In turn, so that each replica opens a round.
            through = (first, second)[number % 2]
            offers = [(move(client, through).poll() or {})["round"] for client in clients]
            assert [offer["round_number"] for offer in offers] == [number] * CLIENTS
            if number == 1:
                # Longer than any replica waits before it looks for passed deadlines.
                time.sleep(6)
            for client, offer in zip(clients, offers, strict=True):
                client.play(offer)
        play_to_the_end(clients)
        with first.admin as http:
            rounds = http.get(f"/v1/tasks/{clients[0].task_id}/rounds").raise_for_status().json()
        assert [(found["state"], found["attempt"], found["updates"]) for found in rounds] == [
            ("settled", 1, CLIENTS)
        ] * 3
        assert violations(second, clients[0].task_id, clients) == []


def test_replicas_with_mounted_secrets_need_no_state_folder(postgres_url: str, tmp_path: Path) -> None:
    secrets, code = tmp_path / "secrets", tmp_path / "secrets" / "shared.code"
    made = server_command("keys", "new", "--out", secrets, "--code", code)
    assert sorted(Path(line).name for line in made.stdout.split()) == [
        *("admin.token", "shared.code", "signing.key", "viewer.token")
    ]
    before = {path: path.read_bytes() for path in secrets.iterdir()}
    assert server_command("keys", "new", "--out", secrets, "--code", code).stdout == ""
    arguments = ("--preset", "digits", "--clients", str(CLIENTS), "--rounds", "2")
    pair = [
        Coordinator(
            tmp_path / "none",
            store_url=postgres_url,
            blob_dir=tmp_path / "blobs",
            secrets_dir=secrets,
            environment={"QIDPFL_SHARED_CODE": str(code)},
            arguments=arguments,
        )
        for _ in range(2)
    ]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(Coordinator.start, pair))
    with pair[0], pair[1]:
        given = code.read_text().strip()
        with pair[1].admin as http:
            (task,) = http.get("/v1/tasks").raise_for_status().json()
        assert task["task_id"] == given.split(".")[0]
        client = ScriptedClient(pair[0].url, task["task_id"], given, "the-key-of-a-client")
        client.enrol()
        move(client, pair[1]).profile().raise_for_status()
        assert "0 violated" in pair[0].audit()
    assert not (tmp_path / "none").exists()
    assert {path: path.read_bytes() for path in secrets.iterdir()} == before


@pytest.mark.parametrize("missing", ["admin.token", "signing.key"])
def test_a_missing_secret_of_the_operator_is_one_line_and_is_not_made_up(tmp_path: Path, missing: str) -> None:
    secrets = tmp_path / "secrets"
    server_command("keys", "new", "--out", secrets)
    (secrets / missing).unlink()
    refused = server_command("serve", "--port", "0", "--state-dir", tmp_path / "s", QIDPFL_SECRETS_DIR=str(secrets))
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1 and missing in refused.stderr and "keys new" in refused.stderr
    assert not (secrets / missing).exists()
