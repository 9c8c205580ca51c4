"""Faults of the network, the machine and the disk, and how the coordinator recovers."""

import http.client
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from support.commands import server_command
from support.coordinators import (
    FILE_UPDATES,
    Coordinator,
    ScriptedClient,
    connected,
    digest_header,
    running,
    until_closed,
)

pytestmark = pytest.mark.live

WINDOWS = {"declare_s": 600.0, "deliver_s": 600.0, "quiet_s": 600.0, "enrolment_window_s": 600.0}
DEADLINES = {"QIDPFL_HEADER_TIMEOUT_S": "1", "QIDPFL_BODY_TIMEOUT_S": "2"}


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with running(tmp_path_factory.mktemp("hardening"), environment=DEADLINES) as live:
        yield live
        assert "0 violated" in live.audit()


def gathered(coordinator: Coordinator, name: str, **overrides: Any) -> list[ScriptedClient]:
    """Three clients of a task whose first round is open."""
    task_id, code = coordinator.create_task(name, rounds=WINDOWS | {"expected_clients": 3}, **overrides)
    clients = [ScriptedClient(coordinator.url, task_id, code, f"key-of-client-{name}-{n}") for n in range(3)]
    for client in clients:
        client.enrol()
        client.profile().raise_for_status()
    return clients


def offer_to(client: ScriptedClient, after: str = "0.0") -> dict[str, Any]:
    client.seen = after
    answer = client.poll(wait=40)
    assert answer is not None
    offer: dict[str, Any] = answer["round"]
    return offer


def started_upload(client: ScriptedClient, offer: dict[str, Any]) -> bytes:
    """The headers of an upload and half of its body."""
    body = client.update(offer)
    head = (
        f"PUT /v1/tasks/{client.task_id}/rounds/{offer['round_number']}/update HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Bearer {client.token}\r\nContent-Type: application/octet-stream\r\n"
        f"Content-Digest: {digest_header(body)}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body[: len(body) // 2]


# --- the network -----------------------------------------------------------------------------------------------------


def test_an_idle_connection_is_closed(coordinator: Coordinator) -> None:
    with connected(coordinator) as connection:
        assert until_closed(connection) == b""


def test_half_a_header_is_not_waited_for(coordinator: Coordinator) -> None:
    with connected(coordinator) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        assert b"200 OK" not in until_closed(connection)


def test_a_header_that_trickles_in_is_not_waited_for(coordinator: Coordinator) -> None:
    with connected(coordinator) as connection, suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        for _ in range(600):
            connection.sendall(b"a")
            time.sleep(0.1)
        pytest.fail("the connection is still open after a minute")


def test_a_second_request_on_a_kept_connection_has_the_same_deadline(coordinator: Coordinator) -> None:
    with connected(coordinator) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in connection.recv(65536)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        assert b"200 OK" not in until_closed(connection)


def test_half_a_body_is_not_waited_for_and_leaves_nothing(coordinator: Coordinator) -> None:
    client = gathered(coordinator, "half-a-body")[0]
    offer = offer_to(client)
    client.declare(offer).raise_for_status()
    with connected(coordinator) as connection:
        connection.sendall(started_upload(client, offer))
        assert b"200 OK" not in until_closed(connection)
    staging = coordinator.state_dir / "blobs" / "staging"
    while list(staging.iterdir()):
        time.sleep(0.05)
    assert client.upload(offer).status_code == 200


@pytest.mark.parametrize(
    "request_head",
    [
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X-Many: 1\r\n" * 20_000 + b"\r\n",
        b"GET /healthz?" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["one long line", "many lines", "a long address"],
)
def test_two_hundred_kilobytes_of_header_are_refused(coordinator: Coordinator, request_head: bytes) -> None:
    with connected(coordinator) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request_head)
        assert b"200 OK" not in until_closed(connection)
    assert httpx.get(f"{coordinator.url}/healthz", timeout=60).status_code == 200


@pytest.mark.parametrize(("trusted", "seen"), [("", "127.0.0.1"), ("127.0.0.1", "203.0.113.7")])
def test_forwarded_headers_are_trusted_only_from_a_configured_proxy(tmp_path: Path, trusted: str, seen: str) -> None:
    with running(tmp_path, environment={"QIDPFL_FORWARDED_ALLOW_IPS": trusted}) as live:
        task_id, code = live.create_task()
        with closing(sqlite3.connect(tmp_path / "coordinator.db", isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            # What fails is logged with the address that the coordinator believes in.
            body = {"enrolment_code": code, "enrolment_key": "key-behind-a-proxy"}
            url, headers = f"{live.url}/v1/tasks/{task_id}/clients", {"X-Forwarded-For": "203.0.113.7"}
            assert httpx.post(url, json=body, headers=headers, timeout=60).status_code == 503
        (failed,) = [event for event in live.log if event["event"] == "request_failed"]
        assert failed["client"] == seen


# --- stopping --------------------------------------------------------------------------------------------------------


def test_it_stops_in_time_with_half_an_upload_and_waiting_clients(tmp_path: Path) -> None:
    with running(tmp_path, environment={"QIDPFL_SHUTDOWN_TIMEOUT_S": "3"}) as live:
        uploading, *waiting = gathered(live, "stopped")
        offer = offer_to(uploading)
        uploading.declare(offer).raise_for_status()
        answers: list[int] = []
        threads = [threading.Thread(target=_wait_for_news, args=[client, answers]) for client in waiting]
        for thread in threads:
            thread.start()
        with connected(live) as connection:
            connection.sendall(started_upload(uploading, offer))
            _until_waiting(live, len(waiting))
            assert live.process is not None
            live.process.send_signal(signal.SIGTERM)
            assert live.process.wait(timeout=60) == 0
        for thread in threads:
            thread.join(timeout=60)
        assert answers == [204, 204]
        assert "0 violated" in live.audit()


def _wait_for_news(client: ScriptedClient, answers: list[int]) -> None:
    answers.append(client.http.get("/rounds/current", params={"after": "1.1", "wait": 60}, timeout=120).status_code)


def _until_waiting(live: Coordinator, count: int) -> None:
    while f"qidpfl_long_polls {float(count)}" not in httpx.get(f"{live.url}/metrics", timeout=60).text:
        time.sleep(0.05)


def test_a_second_coordinator_on_the_same_store_ends_with_one_line(coordinator: Coordinator) -> None:
    second = server_command("serve", "--port", "0", "--state-dir", coordinator.state_dir)
    assert second.returncode == 1
    assert len(second.stderr.splitlines()) == 1
    assert "another coordinator" in second.stderr
    assert httpx.get(f"{coordinator.url}/readyz", timeout=60).status_code == 200


# --- the store -------------------------------------------------------------------------------------------------------


def test_a_locked_database_is_busy_and_heals(coordinator: Coordinator) -> None:
    client = gathered(coordinator, "locked")[0]
    offer = offer_to(client)
    with closing(sqlite3.connect(coordinator.state_dir / "coordinator.db", isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        busy = client.declare(offer)
        assert (busy.status_code, busy.json()["code"]) == (503, "store_busy")
        assert int(busy.headers["Retry-After"]) > 0
        assert client.http.get("/clients/me/ledger").status_code == 200
        holder.execute("ROLLBACK")
    assert client.declare(offer).status_code == 200
    assert client.upload(offer).status_code == 200


def _fill(folder: Path) -> Path:
    filler = folder / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(b"\0" * 4096):
            pass
    return filler


def test_a_full_disk_loses_nothing_and_heals_by_itself(small_disk: Path) -> None:
    with running(small_disk / "state") as live:
        first, *others = gathered(live, "full", game={"horizon": 2})
        offer = offer_to(first)
        receipt = (first.declare(offer).json(), first.upload(offer).json())
        for client in others:
            client.declare(offer).raise_for_status()
        filler = _fill(small_disk)
        for client in others:
            refused = client.upload(offer)
            assert (refused.status_code, refused.json()["code"]) == (507, "storage_full")
            assert int(refused.headers["Retry-After"]) > 0
        with live.admin as http:
            answer = http.post("/v1/tasks", json={"name": "another", "preset": "digits"})
        assert (answer.status_code, answer.json()["code"]) == (507, "storage_full")
        assert httpx.get(f"{live.url}/healthz", timeout=60).status_code == 200
        filler.unlink()

        for client in others:
            assert client.upload(offer).status_code == 200
        assert offer_to(first, "1.1")["round_number"] == 2
        assert (first.declare(offer).json(), first.upload(offer).json()) == receipt
        assert list((live.state_dir / "blobs" / "staging").iterdir()) == []
        assert "0 violated" in live.audit()


def test_a_flipped_bit_is_named_and_never_served(tmp_path: Path) -> None:
    with running(tmp_path) as live:
        clients = gathered(live, "flipped", game={"horizon": 2}, **FILE_UPDATES)
        for client in clients:
            client.play(offer_to(client))
        offer_to(clients[0], "1.1")
        with live.admin as http:
            digest = http.get(f"/v1/tasks/{clients[0].task_id}/rounds/1").json()["model_digest"]
        update = clients[0].upload({"round_number": 1}).json()["digest"]
        for name in (digest, update):
            _flip(tmp_path / "blobs" / "objects" / name)

        for path in ("/models/1", "/models/1.safetensors"):
            answer = clients[0].http.get(path)
            assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
            assert answer.headers["Content-Type"] == "application/problem+json"
        assert clients[0].http.get("/models/0").status_code == 200
        audit = server_command("audit", "--state-dir", tmp_path)
        assert audit.returncode == 1
        assert digest in audit.stdout
        assert update in audit.stdout

        for client in clients:
            client.play(offer_to(client, "1.1"))
        clients[0].seen = "2.1"
        end = clients[0].poll(wait=40)
        assert end is not None
        assert end["task_state"] == "failed"
        assert digest in end["reason"]


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_connection_that_breaks_during_an_upload_does_not_affect_the_others(coordinator: Coordinator) -> None:
    client = gathered(coordinator, "broken")[0]
    offer = offer_to(client)
    client.declare(offer).raise_for_status()
    for _ in range(5):
        with connected(coordinator) as connection:
            connection.sendall(started_upload(client, offer))
    assert client.upload(offer).status_code == 200
    address = urlsplit(coordinator.url)
    assert address.hostname is not None
    with closing(http.client.HTTPConnection(address.hostname, address.port, timeout=60)) as fresh:
        fresh.request("GET", "/readyz")
        assert fresh.getresponse().status == 200
