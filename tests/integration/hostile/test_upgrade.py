"""A client that offers another protocol, as Java's does over plain http (`Upgrade: h2c`), is served with HTTP/1.1.

The coordinator reads the body of such a request as a body, and never as the next request.
"""

import json
from collections.abc import Iterator
from contextlib import suppress

import pytest

from support.coordinators import FILE_UPDATES, Coordinator, ScriptedClient, connected, digest_header, running

pytestmark = pytest.mark.live

WISH = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
LAST = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
# More than one read of the coordinator, in the rests of several reads.
PIECES = (1, 30_000, 10_000_000)


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with running(tmp_path_factory.mktemp("upgrade")) as live:
        yield live


def request(method: str, path: str, body: bytes, *headers: str, framing: str | None = None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", *headers, framing or f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n" + WISH + b"\r\n" + body


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def answers_to(coordinator: Coordinator, data: bytes, piece: int = 10_000_000) -> list[tuple[int, bytes]]:
    """Status and body of all answers on one connection, which the last request or an error closes."""
    with connected(coordinator) as connection:
        received = b""
        with suppress(BrokenPipeError, ConnectionResetError):
            for start in range(0, len(data), piece):
                connection.sendall(data[start : start + piece])
            while part := connection.recv(65536):
                received += part
    found = []
    while received:
        head, _, received = received.partition(b"\r\n\r\n")
        lines = head.decode().lower().split("\r\n")
        length = next((int(line[16:]) for line in lines if line.startswith("content-length: ")), 0)
        found.append((int(lines[0].split()[1]), received[:length]))
        received = received[length:]
    return found


def enrolment(code: str, key: str) -> bytes:
    return json.dumps({"enrolment_code": code, "enrolment_key": f"random-text-{key}"}).encode()


@pytest.mark.parametrize("piece", PIECES)
def test_a_json_body_is_read(coordinator: Coordinator, piece: int) -> None:
    task_id, code = coordinator.create_task(f"json-{piece}")
    path, media = f"/v1/tasks/{task_id}/clients", "Content-Type: application/json"
    first = request("POST", path, enrolment(code, "of-one"), media)
    second = request("POST", path, enrolment(code, "of-two"), media)
    answers = answers_to(coordinator, first + second + LAST, piece)
    assert [status for status, _ in answers] == [201, 201, 200]
    assert len({json.loads(body)["client_id"] for _, body in answers[:2]}) == 2


@pytest.mark.parametrize("piece", PIECES)
def test_a_chunked_body_is_read(coordinator: Coordinator, piece: int) -> None:
    task_id, code = coordinator.create_task(f"chunked-{piece}")
    body = chunked(enrolment(code, "of-one"), 7)
    media, framing = "Content-Type: application/json", "Transfer-Encoding: chunked"
    sent = request("POST", f"/v1/tasks/{task_id}/clients", body, media, framing=framing)
    assert [status for status, _ in answers_to(coordinator, sent + LAST, piece)] == [201, 200]


@pytest.mark.parametrize("piece", PIECES[1:])
def test_an_upload_of_several_reads_is_stored(coordinator: Coordinator, piece: int) -> None:
    few = {"expected_clients": 2, "min_clients": 2, "min_updates": 2}
    task_id, code = coordinator.create_task(f"upload-{piece}", rounds=few, **FILE_UPDATES)
    clients = [ScriptedClient(coordinator.url, task_id, code, key=f"random-text-of-{number}") for number in range(2)]
    for client in clients:
        client.enrol()
        client.profile().raise_for_status()
    news = clients[0].poll()
    assert news is not None
    offer = news["round"]
    clients[0].declare(offer).raise_for_status()
    data = clients[0].update(offer)
    assert len(data) == 80_000
    headers = (
        f"Authorization: Bearer {clients[0].token}",
        "Content-Type: application/octet-stream",
        f"Content-Digest: {digest_header(data)}",
    )
    sent = request("PUT", f"/v1/tasks/{task_id}/rounds/1/update", data, *headers)
    (status, body), last = answers_to(coordinator, sent + LAST, piece)
    assert (status, last[0]) == (200, 200), body
    assert json.loads(body)["byte_length"] == len(data)


def test_a_body_that_looks_like_a_request_is_not_answered(coordinator: Coordinator) -> None:
    inner = b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n" * 3
    media = "Content-Type: application/json"
    sent = request("POST", "/v1/tasks/0/clients", inner, media)
    sent += request("POST", "/v1/tasks/0/clients", chunked(inner, 33), media, framing="Transfer-Encoding: chunked")
    assert [status for status, _ in answers_to(coordinator, sent + LAST)] == [400, 400, 200]


@pytest.mark.parametrize(
    "framing",
    [
        "Content-Length: 3\r\nTransfer-Encoding: chunked",
        "Content-Length: 3\r\nContent-Length: 4",
        "Transfer-Encoding: gzip",
        "Transfer-Encoding: chunked, gzip",
    ],
)
def test_an_unclear_end_of_the_body_is_refused(coordinator: Coordinator, framing: str) -> None:
    sent = request("POST", "/v1/tasks/0/clients", b"0\r\n\r\n", "Content-Type: application/json", framing=framing)
    ((status, body),) = answers_to(coordinator, sent + LAST)
    assert (status, json.loads(body)["code"]) == (400, "malformed_request")


def test_the_wish_costs_no_keep_alive(coordinator: Coordinator) -> None:
    wish = b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + WISH + b"\r\n"
    assert [status for status, _ in answers_to(coordinator, wish * 5 + LAST, 100)] == [200] * 6
