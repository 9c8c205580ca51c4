"""What is not HTTP gets problem+json with a documented code and a request id, and fills neither the log nor memory."""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from qidpfl_shared.protocol.errors import ErrorCode
from support.coordinators import Coordinator, connected, running, until_closed
from support.http_attacks import health_s, memory_mb

pytestmark = pytest.mark.live

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = (
    b"POST /v1/tasks/0/clients HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
# What is sent, and the code of the answer.
MALFORMED: dict[str, tuple[bytes, ErrorCode]] = {
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", ErrorCode.MALFORMED_REQUEST),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ErrorCode.MALFORMED_REQUEST),
    "an unknown method": (b"FETCH / HTTP/1.1\r\nHost: x\r\n\r\n", ErrorCode.MALFORMED_REQUEST),
    "an address with a space": (b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", ErrorCode.MALFORMED_REQUEST),
    "an address that is no path": (b"GET http:// HTTP/1.1\r\nHost: x\r\n\r\n", ErrorCode.MALFORMED_REQUEST),
    "a tunnel": (b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n", ErrorCode.MALFORMED_REQUEST),
    "lines without a return": (b"GET / HTTP/1.1\nHost: x\n\n", ErrorCode.MALFORMED_REQUEST),
    "a NUL in a header": (b"GET / HTTP/1.1\r\nHost: x\r\nX: \0\r\n\r\n", ErrorCode.MALFORMED_REQUEST),
    "a header without a name": (b"GET / HTTP/1.1\r\nHost: x\r\n: x\r\n\r\n", ErrorCode.MALFORMED_REQUEST),
    "two lengths": (
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        ErrorCode.MALFORMED_REQUEST,
    ),
    "a length and chunks": (
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ErrorCode.MALFORMED_REQUEST,
    ),
    "a length that overflows": (
        b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\n",
        ErrorCode.MALFORMED_REQUEST,
    ),
    "a chunk without a size": (CHUNKED + b"x\r\n", ErrorCode.MALFORMED_REQUEST),
    "a long header": (b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000, ErrorCode.HEADER_TOO_LARGE),
    "a long trailer": (CHUNKED + b"1\r\n{\r\n0\r\nX: " + b"a" * 200_000, ErrorCode.HEADER_TOO_LARGE),
    "many trailers": (CHUNKED + b"1\r\n{\r\n0\r\n" + b"X: a\r\n" * 40_000, ErrorCode.HEADER_TOO_LARGE),
    "half a header": (b"GET / HTTP/1.1\r\nX: ", ErrorCode.REQUEST_TIMEOUT),
}


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with running(tmp_path_factory.mktemp("parser"), environment={"QIDPFL_HEADER_TIMEOUT_S": "1"}) as live:
        yield live


def answers_to(coordinator: Coordinator, data: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """Status, headers and body of all answers on one connection, which the coordinator closes."""
    with connected(coordinator) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(data)
        received = until_closed(connection)
    answers = []
    while received:
        head, _, received = received.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        length = int(headers.get("content-length", "0"))
        answers.append((int(first.split()[1]), headers, received[:length]))
        received = received[length:]
    return answers


def is_problem(answer: tuple[int, dict[str, str], bytes], code: ErrorCode) -> bool:
    status, headers, body = answer
    said: dict[str, Any] = json.loads(body)
    return (status, headers["content-type"], said["code"], bool(headers["x-request-id"])) == (
        code.status,
        "application/problem+json",
        code.value,
        True,
    )


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_not_http_gets_a_problem_with_a_code(coordinator: Coordinator, name: str) -> None:
    data, code = MALFORMED[name]
    (answer,) = answers_to(coordinator, data)
    assert is_problem(answer, code)
    assert answer[1]["connection"] == "close"


def test_an_error_comes_after_the_answers_to_earlier_requests(coordinator: Coordinator) -> None:
    *earlier, last = answers_to(coordinator, HEALTH * 10 + b"\0\0\0\0")
    assert [status for status, _, _ in earlier] == [200] * 10
    assert is_problem(last, ErrorCode.MALFORMED_REQUEST)


def test_a_wish_for_another_protocol_is_ignored(coordinator: Coordinator) -> None:
    wish = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: %s\r\n\r\n"
    last = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answers = answers_to(coordinator, wish % b"h2c" + wish % b"websocket" + HEALTH + last)
    assert [status for status, _, _ in answers] == [200] * 4


def test_malformed_requests_do_not_fill_the_log_or_the_memory(coordinator: Coordinator) -> None:
    health_s(coordinator)
    lines, memory = len(coordinator.log), memory_mb(coordinator)
    for _ in range(500):
        with connected(coordinator) as connection, suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(b"\0\r\n\r\n")
            connection.recv(4096)
    assert len(coordinator.log) - lines < 20
    assert memory_mb(coordinator) - memory < 20
    malformed = [event for event in coordinator.log if event["event"] == "malformed_request"]
    assert malformed[0]["client"] == "127.0.0.1" and malformed[0]["code"] and malformed[0]["request_id"]


def test_every_answer_has_a_request_id_of_its_own(coordinator: Coordinator) -> None:
    last = b"GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    ids = [headers["x-request-id"] for _, headers, _ in answers_to(coordinator, HEALTH * 3 + last)]
    assert len(set(ids)) == 4
