"""A client that sends half a request, or does not read the answer, does not block others."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from support.coordinators import Coordinator, ScriptedClient, connected, digest_header, running, until_closed

pytestmark = pytest.mark.live

WINDOWS = {"declare_s": 600.0, "deliver_s": 600.0, "quiet_s": 600.0, "enrolment_window_s": 600.0}
FEW = {"QIDPFL_MAX_REQUESTS": "3", "QIDPFL_MAX_UPLOADS": "1", "QIDPFL_BODY_TIMEOUT_S": "600"}


def declared(coordinator: Coordinator) -> tuple[list[ScriptedClient], dict[str, Any]]:
    """Three clients that have declared, and what they were offered."""
    task_id, code = coordinator.create_task(rounds=WINDOWS | {"expected_clients": 3})
    clients = [ScriptedClient(coordinator.url, task_id, code, f"key-of-stalled-client-{n}") for n in range(3)]
    for client in clients:
        client.enrol()
        client.profile().raise_for_status()
    answer = clients[0].poll(wait=40)
    assert answer is not None
    for client in clients:
        client.declare(answer["round"]).raise_for_status()
    return clients, answer["round"]


@contextmanager
def half_sent(coordinator: Coordinator, head: str, body: bytes = b"") -> Iterator[socket.socket]:
    """A request whose body the coordinator waits for: it has answered 100 Continue."""
    with connected(coordinator) as connection:
        connection.sendall(f"{head}Host: x\r\nExpect: 100-continue\r\n\r\n".encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 100")
        connection.sendall(body)
        yield connection


def upload_head(client: ScriptedClient, body: bytes) -> str:
    return (
        f"PUT /v1/tasks/{client.task_id}/rounds/1/update HTTP/1.1\r\nAuthorization: Bearer {client.token}\r\n"
        f"Content-Digest: {digest_header(body)}\r\nContent-Length: {len(body)}\r\n"
    )


def enrolment_head(client: ScriptedClient) -> str:
    path = f"/v1/tasks/{client.task_id}/clients"
    return f"POST {path} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"


def test_half_uploads_and_half_enrolments_do_not_block_other_clients(tmp_path: Path) -> None:
    with running(tmp_path, environment=FEW) as live, ExitStack() as stack:
        (slow, slower, honest), offer = declared(live)
        for client in (slow, slower):
            stack.enter_context(half_sent(live, upload_head(client, client.update(offer)), bytes(100)))
        for _ in range(5):
            stack.enter_context(half_sent(live, enrolment_head(honest), b"{"))
        assert honest.upload(offer).status_code == 200
        assert honest.http.get("/clients/me/ledger").status_code == 200


def test_a_newer_upload_of_the_same_client_takes_the_place_of_one_that_hangs(tmp_path: Path) -> None:
    with running(tmp_path, environment=FEW) as live:
        (client, *_), offer = declared(live)
        body = client.update(offer)
        with half_sent(live, upload_head(client, body), body[:100]) as hanging:
            assert client.upload(offer).status_code == 200
            assert hanging.recv(65536).startswith(b"HTTP/1.1 429")
        assert list((tmp_path / "blobs" / "staging").iterdir()) == []
        assert "0 violated" in live.audit()


def test_half_a_json_body_is_not_waited_for_as_long_as_an_upload(tmp_path: Path) -> None:
    with running(tmp_path, environment=FEW) as live:
        task_id, code = live.create_task()
        stalled = ScriptedClient(live.url, task_id, code, "key-of-a-stalled-client")
        with half_sent(live, enrolment_head(stalled), b"{") as connection:
            assert b"201" not in until_closed(connection)


def test_a_client_that_does_not_read_a_model_is_disconnected(tmp_path: Path) -> None:
    with running(tmp_path, environment={"QIDPFL_BODY_TIMEOUT_S": "2"}) as live:
        layout = {"tensors": [{"name": "wide", "shape": [5_000_000]}]}
        task_id, _ = live.create_task(workload={"dataset": "none", "network": "wide"}, layout=layout)
        token, address = (tmp_path / "admin.token").read_text().strip(), urlsplit(live.url)
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect((address.hostname, address.port))
            head = f"GET /v1/tasks/{task_id}/models/0 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
            reader.sendall(head.encode())
            assert reader.recv(12) == b"HTTP/1.1 200"
            _until_alone(live)
            reader.settimeout(60)
            assert len(until_closed(reader)) < 4 * 5_000_000


def _until_alone(live: Coordinator) -> None:
    for _ in range(600):
        if "qidpfl_requests_in_flight 1.0" in httpx.get(f"{live.url}/metrics", timeout=60).text:
            return
        time.sleep(0.1)
    raise AssertionError("the download is still under way")


def test_a_model_that_is_already_there_is_not_sent_again(tmp_path: Path) -> None:
    with running(tmp_path) as live:
        task_id, _ = live.create_task()
        with live.admin as http:
            first = http.get(f"/v1/tasks/{task_id}/models/0")
            again = http.get(f"/v1/tasks/{task_id}/models/0", headers={"If-None-Match": first.headers["ETag"]})
        assert (first.status_code, len(first.content)) == (200, 2600)
        assert first.headers["Content-Digest"] == digest_header(first.content)
        assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", first.headers["ETag"])
