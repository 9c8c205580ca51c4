"""A call ends at its deadline, however slowly the other side sends or reads."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import httpcore
import httpx
import pytest

from qidpfl_client.api import TaskApi, connect
from qidpfl_client.errors import NotFound, Unreachable
from qidpfl_client.sdk import deadlines
from qidpfl_client.sdk.deadlines import call_deadline
from support.peers.raw_server import SLOW_ANSWERS, Script, dripping, raw_server
from support.peers.scripted_coordinator import AT_ONCE, TASK, TOKEN, Scripted

TIMEOUT_S = 0.3
ONCE = replace(AT_ONCE, attempts=1)


@pytest.fixture(autouse=True)
def quick_transfers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of an answer add no time to the deadline."""
    monkeypatch.setattr("qidpfl_client.sdk.transport._SLOWEST_BYTES_PER_S", float("inf"))


@pytest.fixture
def began() -> float:
    return time.monotonic()


def task_of(http: httpx.Client) -> TaskApi:
    return TaskApi(http, task_id=TASK, token=TOKEN, retries=ONCE)


@contextmanager
def against(answer: Script, *, reads: bool = True) -> Iterator[TaskApi]:
    with raw_server(answer, reads=reads) as server, connect(server.url, timeout_s=TIMEOUT_S) as http:
        yield task_of(http)


@pytest.mark.parametrize("answer", SLOW_ANSWERS)
def test_a_slow_answer_ends_at_the_deadline(answer: Script, began: float) -> None:
    with against(answer) as task, pytest.raises(Unreachable, match="does not answer"):
        task.selection()
    assert TIMEOUT_S <= time.monotonic() - began < TIMEOUT_S + 0.5


def test_a_long_poll_has_its_wait_and_the_timeout(began: float) -> None:
    with against(SLOW_ANSWERS[0]) as task, pytest.raises(Unreachable):
        task.announcement(wait_s=0.4)
    assert TIMEOUT_S + 0.4 <= time.monotonic() - began < TIMEOUT_S + 0.9


def test_an_error_that_drips_is_reported_without_its_detail(began: float) -> None:
    def script() -> Iterator[bytes]:
        yield b"HTTP/1.1 404 Not Found\r\nContent-Length: 1000\r\n\r\n"
        yield from dripping(b" " * 1000)

    with against(script) as task, pytest.raises(NotFound, match="status 404"):
        task.selection()
    assert time.monotonic() - began < TIMEOUT_S + 0.5


def test_a_server_that_does_not_read_ends_an_upload_at_the_deadline(began: float) -> None:
    def silence() -> Iterator[bytes]:
        time.sleep(5)
        yield b""

    with against(silence, reads=False) as task, pytest.raises(Unreachable):
        task.upload(1, bytes(64 << 20))
    assert time.monotonic() - began < TIMEOUT_S + 0.7


def test_the_body_of_any_other_transport_ends_at_the_deadline() -> None:
    class Slow(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            while True:
                time.sleep(0.02)
                yield b" "

    coordinator = Scripted(httpx.Response(200, stream=Slow()))
    http = coordinator.http()
    http.timeout = httpx.Timeout(0.1)
    with pytest.raises(Unreachable, match="takes too long"):
        TaskApi(http, task_id=TASK, token=TOKEN, retries=ONCE).selection()


def test_the_feed_of_events_has_a_deadline_for_its_headers_only(began: float) -> None:
    with against(SLOW_ANSWERS[0]) as task, pytest.raises(Unreachable):
        next(task.events())
    assert time.monotonic() - began < TIMEOUT_S + 0.5


def test_all_addresses_of_a_host_share_one_timeout(monkeypatch: pytest.MonkeyPatch, began: float) -> None:
    tried = []

    class Unanswered(httpcore.SyncBackend):
        def connect_tcp(
            self, host: str, *_: object, timeout: float | None = None, **__: object
        ) -> httpcore.NetworkStream:
            tried.append(host)
            assert timeout is not None
            time.sleep(min(timeout, 0.1))
            raise httpcore.ConnectTimeout("no answer")

    many = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"10.0.0.{n}", 80)) for n in range(100)]
    monkeypatch.setattr("qidpfl_client.sdk.deadlines.socket.getaddrinfo", lambda *_, **__: many)
    with pytest.raises(httpcore.ConnectTimeout):
        deadlines._DeadlineBackend(Unanswered()).connect_tcp("many.example", 80, timeout=TIMEOUT_S)
    assert time.monotonic() - began < TIMEOUT_S + 0.2 and tried[:2] == ["10.0.0.0", "10.0.0.1"]


def test_an_unknown_host_is_an_error_of_the_connection() -> None:
    with (
        connect("https://no-such-host.invalid", timeout_s=TIMEOUT_S) as http,
        pytest.raises(Unreachable, match="does not answer"),
    ):
        task_of(http).selection()


@pytest.mark.parametrize("proxy", ["http://proxy.example:3128", "https://proxy.example:3128"])
def test_connections_through_a_proxy_obey_the_deadline_too(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with connect("https://coordinator.example") as http:
        transport = http._transport_for_url(httpx.URL("https://coordinator.example"))
        assert isinstance(transport, httpx.HTTPTransport) and transport is not http._transport
        assert isinstance(transport._pool._network_backend, deadlines._DeadlineBackend)


def test_a_deadline_ends_with_its_block() -> None:
    with call_deadline(0.0):
        assert deadlines.deadline_is_over()
    assert not deadlines.deadline_is_over()
