"""An object store that is away, full, slow or lying: clear errors, nothing lost, healthy again by itself."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.coordinators import FILE_UPDATES, Coordinator, ScriptedClient, running
from support.peers.seaweedfs import BUCKET, SeaweedFS
from support.peers.toxic_proxy import Toxin, toxic
from support.task_checks import violations

pytestmark = pytest.mark.live

CLIENTS = 3
ROUNDS = {"expected_clients": CLIENTS, "min_clients": CLIENTS, "min_updates": CLIENTS}


@pytest.fixture
def toxin() -> Toxin:
    return Toxin()


@pytest.fixture
def coordinator(
    tmp_path: Path, bucket_url: str, object_store: SeaweedFS, toxin: Toxin, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Coordinator]:
    """A coordinator that reaches its object store through the proxy; the audit goes past it."""
    with toxic(object_store.url, toxin) as address:
        environment = object_store.environment(address)
        with running(tmp_path / "state", blobs=bucket_url, environment=environment) as started:
            yield started


def gathered(coordinator: Coordinator, **overrides: Any) -> list[ScriptedClient]:
    """Clients of a task of one round, which is open and in which all have declared."""
    task_id, code = coordinator.create_task(game={"horizon": 1}, rounds=ROUNDS, **(FILE_UPDATES | overrides))
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


def upload(client: ScriptedClient) -> httpx.Response:
    assert client.unanswered is not None
    return client.upload(client.unanswered)


def require_refusal(answer: httpx.Response, status: int, code: str, bucket: str) -> None:
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.headers["Content-Type"] == "application/problem+json" and int(answer.headers["Retry-After"]) > 0
    # Clients learn neither the bucket nor the address of the object store.
    assert bucket not in answer.text and "127.0.0.1" not in answer.text and "http" not in answer.json()["detail"]


def require_end(clients: list[ScriptedClient], coordinator: Coordinator) -> None:
    while (answer := clients[0].poll(wait=60)) is None or answer["task_state"] == "training":
        clients[0].seen = "1.1"
    assert answer["reason"] == "horizon_reached"
    assert violations(coordinator, clients[0].task_id, clients) == []


def until_readiness_is(http: httpx.Client, status: int) -> None:
    """The answer is shared by those who ask within a fifth of a second."""
    deadline = time.monotonic() + 30
    while (answer := http.get("/readyz")).status_code != status:
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("toxins", "status", "code", "readiness"),
    [
        ({"refusal": (503, "SlowDown")}, 503, "store_busy", 503),
        pytest.param({"refusal": (500, "InternalError")}, 503, "store_busy", 503, marks=pytest.mark.long),
        pytest.param({"refusal": (403, "AccessDenied")}, 503, "store_busy", 503, marks=pytest.mark.long),
        pytest.param({"drops": True}, 503, "store_busy", 503, marks=pytest.mark.long),
        # A full object store still answers reads.
        ({"refusal": (507, "InsufficientStorage"), "refused": {"PUT"}}, 507, "storage_full", 200),
        pytest.param(
            {"refusal": (403, "QuotaExceeded"), "refused": {"PUT"}}, 507, "storage_full", 200, marks=pytest.mark.long
        ),
    ],
    ids=["503", "500", "403", "drops", "507", "quota"],
)
def test_uploads_are_refused_while_the_object_store_fails_and_accepted_afterwards(
    coordinator: Coordinator, toxin: Toxin, toxins: dict[str, Any], status: int, code: str, readiness: int
) -> None:
    clients = gathered(coordinator)
    upload(clients[0]).raise_for_status()
    bucket = str(coordinator.blobs)
    with httpx.Client(base_url=coordinator.url) as http:
        until_readiness_is(http, 200)
        vars(toxin).update(toxins)
        for client in clients[1:]:
            require_refusal(upload(client), status, code, bucket)
        # A repeat of what was acknowledged needs no object store.
        upload(clients[0]).raise_for_status()
        until_readiness_is(http, readiness)
        assert http.get("/healthz").status_code == 200
        toxin.heal()
        for client in clients[1:]:
            upload(client).raise_for_status()
        require_end(clients, coordinator)
        until_readiness_is(http, 200)
    said = [line for line in coordinator.log if line["event"] == "request_failed"]
    assert said and all(line["reason"] for line in said)
    assert not [line for line in coordinator.log if line["event"] in ("internal_error", "library")]


def test_a_slow_object_store_delays_a_round_and_loses_nothing(coordinator: Coordinator, toxin: Toxin) -> None:
    clients = gathered(coordinator)
    toxin.latency_s = 0.3
    threads = [threading.Thread(target=lambda client=client: upload(client).raise_for_status()) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    require_end(clients, coordinator)


def test_a_settlement_waits_until_the_object_store_returns_the_right_bytes(
    coordinator: Coordinator, toxin: Toxin
) -> None:
    clients = gathered(coordinator)
    toxin.lies = True
    for client in clients:
        upload(client).raise_for_status()
    deadline = time.monotonic() + 60
    while not (failed := [line for line in coordinator.log if line["event"] == "step_failed"]):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert "other bytes" in failed[0]["reason"]
    assert clients[0].poll(wait=0.2) is None or clients[0].http.get("/rounds/1").json()["state"] == "open"
    toxin.heal()
    require_end(clients, coordinator)


def test_a_download_with_wrong_bytes_is_refused_and_right_later(coordinator: Coordinator, toxin: Toxin) -> None:
    clients = gathered(coordinator)
    toxin.lies = True
    require_refusal(clients[0].http.get("/models/0"), 503, "store_busy", str(coordinator.blobs))
    toxin.heal()
    assert len(clients[0].http.get("/models/0").raise_for_status().content) == 4 * 20_000


def test_an_object_store_killed_in_a_round_keeps_all_acknowledged_uploads(tmp_path: Path) -> None:
    store = SeaweedFS(tmp_path / "seaweedfs").start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in store.environment().items():
                patch.setenv(name, value)
            with running(tmp_path / "state", blobs=f"s3://{BUCKET}/killed") as coordinator:
                clients = gathered(coordinator)
                upload(clients[0]).raise_for_status()
                store.kill()
                require_refusal(upload(clients[1]), 503, "store_busy", f"s3://{BUCKET}")
                store.start()
                for client in clients:
                    upload(client).raise_for_status()
                require_end(clients, coordinator)
    finally:
        store.kill()


@pytest.mark.long
def test_a_coordinator_stops_cleanly_while_its_object_store_hangs(coordinator: Coordinator, toxin: Toxin) -> None:
    """A thread that waits for the object store must not abort the interpreter at its end."""
    clients = gathered(coordinator)
    toxin.latency_s = 20.0
    before = len(toxin.seen)
    answers: list[object] = []

    def try_upload() -> None:
        try:
            answers.append(upload(clients[0]).status_code)
        except httpx.TransportError as error:
            answers.append(error)

    uploading = threading.Thread(target=try_upload)
    uploading.start()
    while not any("/objects/" in path for _, path in toxin.seen[before:]):
        time.sleep(0.02)
    assert coordinator.stop() == 0
    uploading.join()
    toxin.heal()
    # Nothing was acknowledged unless it is stored.
    coordinator.start()
    clients[0].http.base_url = f"{coordinator.url}/v1/tasks/{clients[0].task_id}"
    for client in clients:
        client.http.base_url = clients[0].http.base_url
        upload(client).raise_for_status()
    require_end(clients, coordinator)
