"""A proxy in front of a correct coordinator that alters its answers: a coordinator with one bug."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

from support.peers.local_http import served


@dataclass
class Exchanged:
    """A request, and its answer, which a bug may change. Names of headers are in lower case."""

    method: str
    path: str
    sent: bytes
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Bug:
    """What happens to every answer, and to the headers of every request."""

    answer: Callable[[Exchanged], None] = lambda _: None
    request: Callable[[str, str, dict[str, str]], None] = lambda *_: None
    seen: dict[str, int] = field(default_factory=dict)


@contextmanager
def altering(target: str, bug: Bug) -> Iterator[str]:
    """A proxy that runs until the end of the block; yields its address."""
    with served(type("Handler", (_Handler,), {"target": target, "bug": bug})) as url:
        yield url


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    target: str
    bug: Bug

    def log_message(self, *_: object) -> None:
        """No log."""

    def _relay(self) -> None:
        where = urlsplit(self.target)
        upstream = HTTPConnection(where.hostname or "", where.port, timeout=90)
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.bug.request(self.command, self.path, headers)
        try:
            upstream.request(self.command, self.path, sent or None, headers)
            answer = upstream.getresponse()
            named = {name.lower(): value for name, value in answer.getheaders()}
            found = Exchanged(self.command, self.path, sent, answer.status, named, answer.read())
        except (OSError, HTTPException):
            self.close_connection = True
            return
        finally:
            upstream.close()
        self.bug.answer(found)
        self.send_response_only(found.status)
        for name, value in found.headers.items():
            if name not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        if found.status not in (204, 304):
            self.send_header("Content-Length", str(len(found.body)))
        self.end_headers()
        self.wfile.write(found.body)

    do_GET = do_PUT = do_POST = do_DELETE = _relay
