"""Direct exchanges: connections that are used again, and answers that are malformed."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from qidpfl_client.api import TaskApi, connect
from qidpfl_client.errors import NotFound, Unreachable, UntrustedCoordinator
from qidpfl_client.sdk.direct import DirectTransport
from support.peers.raw_server import raw_server
from support.peers.scripted_coordinator import AT_ONCE, TASK, TOKEN

ONCE = replace(AT_ONCE, attempts=1)
VERDICT = b'{"selected": true, "profiles": 3, "label_distance": 0.2}'
LENGTH = b"Content-Length: %d\r\n" % len(VERDICT)


class Handler(BaseHTTPRequestHandler):
    """Notes the requests, and the connections on which they come. The path decides what is wrong with the answer."""

    protocol_version = "HTTP/1.1"
    seen: "list[tuple[Any, str, dict[str, str], bytes]]"
    ends = False

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.seen.append(
            (self.client_address, self.path, {name.lower(): value for name, value in self.headers.items()}, body)
        )
        self.send_response(200)
        self.send_header("Content-Length", str(len(VERDICT)))
        if self.ends:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(VERDICT)

    do_GET = do_PUT = answer

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def handler() -> type[Handler]:
    return type("Noting", (Handler,), {"seen": []})


@pytest.fixture
def http(handler: type[Handler]) -> Iterator[httpx.Client]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with connect(f"http://127.0.0.1:{server.server_address[1]}", timeout_s=10) as client:
        yield client
    server.shutdown()
    server.server_close()


def task_of(http: httpx.Client, token: str = TOKEN) -> TaskApi:
    return TaskApi(http, task_id=TASK, token=token, retries=ONCE)


def test_clients_share_a_connection_and_each_request_has_its_own_token(
    handler: type[Handler], http: httpx.Client
) -> None:
    for token in ("first-token", "second-token", "first-token"):
        assert task_of(http, token).selection().selected
    places = {place for place, *_ in handler.seen}
    assert len(places) == 1
    tokens = [headers["authorization"] for _, _, headers, _ in handler.seen]
    assert tokens == ["Bearer first-token", "Bearer second-token", "Bearer first-token"]
    headers = handler.seen[0][2]
    assert headers["accept-encoding"] == "identity" and headers["user-agent"] == "qidpfl-client"
    assert headers["host"] == str(http.base_url.netloc, "ascii")


def test_a_connection_that_the_server_ends_is_not_used_again(handler: type[Handler], http: httpx.Client) -> None:
    handler.ends = True
    for _ in range(3):
        task_of(http).selection()
    assert len({place for place, *_ in handler.seen}) == 3


def test_an_upload_arrives_whole(handler: type[Handler], http: httpx.Client) -> None:
    data = bytes(range(256)) * 4096
    with pytest.raises(UntrustedCoordinator):
        task_of(http).upload(1, data)
    ((_, path, headers, body),) = handler.seen
    assert path == f"/v1/tasks/{TASK}/rounds/1/update" and body == data
    assert int(headers["content-length"]) == len(data) and headers["content-digest"].startswith("sha-256=")


def test_no_header_can_have_a_line_end(http: httpx.Client, handler: type[Handler]) -> None:
    task = task_of(http)
    task._token = "a\r\nX-Injected: b"
    with pytest.raises(Unreachable, match="line end"):
        task.selection()
    assert handler.seen == []


def answered(*pieces: bytes) -> Any:
    """What a client makes of an answer in these pieces."""
    with raw_server(lambda: iter(pieces)) as server, connect(server.url, timeout_s=2) as http:
        assert type(http._transport) is DirectTransport
        return task_of(http).selection().selected


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param((b"HTTP/1.1 200 OK\r\n" + LENGTH + b"\r\n" + VERDICT,), id="at once"),
        pytest.param((b"HTTP/1.1 200 OK\r", b"\n" + LENGTH + b"\r", b"\n" + VERDICT[:5], VERDICT[5:]), id="pieces"),
        pytest.param((b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200\r\n" + LENGTH + b"\r\n" + VERDICT,), id="interim"),
        pytest.param((b"HTTP/1.0 200 OK\r\n\r\n" + VERDICT,), id="until the end"),
        pytest.param(
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\n",
                VERDICT[:5] + b"\r\n%x\r\n" % (len(VERDICT) - 5) + VERDICT[5:],
                b"\r\n0\r\nTrailer: 1\r\n\r\n",
            ),
            id="chunked",
        ),
    ],
)
def test_every_form_of_an_answer_is_read(pieces: tuple[bytes, ...]) -> None:
    assert answered(*pieces) is True


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"SSH-2.0-OpenSSH\r\n\r\n", id="another protocol"),
        pytest.param(b"HTTP/2 200 OK\r\n\r\n", id="another version"),
        pytest.param(b"HTTP/1.1 2x0 OK\r\n\r\n", id="no status"),
        pytest.param(b"HTTP/1.1 101 Switching\r\n\r\n", id="another protocol later"),
        pytest.param(b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", id="no header"),
        pytest.param(b"HTTP/1.1 200 OK\r\n folded: 1\r\n\r\n", id="folded header"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", id="negative length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n", id="length with a line"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", id="two lengths"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", id="another encoding"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", id="two ways"
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", id="no chunk"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabcd", id="longer chunk"),
        pytest.param(b"HTTP/1.1 200 OK\r\n" + LENGTH + b"\r\n" + VERDICT[:-1], id="too short"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: " + b"x" * (200 << 10), id="endless head"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_a_malformed_answer_is_an_error_of_the_connection(answer: bytes) -> None:
    with pytest.raises(Unreachable):
        answered(answer)


def test_a_long_or_compressed_answer_is_refused() -> None:
    with pytest.raises(UntrustedCoordinator, match="longer than"):
        answered(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n")
    with pytest.raises(UntrustedCoordinator, match="longer than"):
        answered(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n")
    with pytest.raises(UntrustedCoordinator, match="compressed"):
        answered(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n" + LENGTH + b"\r\n" + VERDICT)


def test_an_error_with_a_long_detail_is_reported_without_it() -> None:
    with pytest.raises(NotFound):
        answered(b"HTTP/1.1 404 Not Found\r\nContent-Length: 99999999\r\n\r\n")
