"""A proxy in front of an object store that is slow, fails, is full or lies, as a test says."""

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

from support.peers.local_http import served

_ERROR = "<?xml version='1.0'?><Error><Code>{}</Code><Message>as the test wishes</Message></Error>"


@dataclass
class Toxin:
    """What is wrong now. A test changes it while requests run; the default is a proxy that changes nothing."""

    latency_s: float = 0.0
    # The status and the code of every answer, instead of asking the object store.
    refusal: tuple[int, str] | None = None
    # The methods of the requests that are refused; all if it is empty.
    refused: Collection[str] = ()
    # Bytes of objects that are read are changed.
    lies: bool = False
    drops: bool = False
    # The methods and paths of all requests.
    seen: list[tuple[str, str]] = field(default_factory=list)

    def heal(self) -> None:
        self.latency_s, self.refusal, self.refused, self.lies, self.drops = 0.0, None, (), False, False


@contextmanager
def toxic(target: str, toxin: Toxin) -> Iterator[str]:
    """A proxy that runs until the end of the block; yields its address."""
    with served(type("Handler", (_Handler,), {"target": target, "toxin": toxin})) as url:
        yield url


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    target: str
    toxin: Toxin

    def log_message(self, *_: object) -> None:
        """No log."""

    def _relay(self) -> None:
        toxin, body = self.toxin, self.rfile.read(int(self.headers.get("Content-Length", 0)))
        toxin.seen.append((self.command, self.path))
        if toxin.drops:
            self.close_connection = True
            return
        time.sleep(toxin.latency_s)
        if toxin.refusal is not None and (not toxin.refused or self.command in toxin.refused):
            status, code = toxin.refusal
            self._answer(status, {"Content-Type": "application/xml"}, _ERROR.format(code).encode())
            return
        where = urlsplit(self.target)
        upstream = HTTPConnection(where.hostname or "", where.port, timeout=90)
        try:
            # The signature of the request covers its Host, so that stays as it is.
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                upstream.putheader(name, value)
            upstream.endheaders(body)
            answer = upstream.getresponse()
            data = answer.read()
        except (OSError, HTTPException):
            self.close_connection = True
            return
        finally:
            upstream.close()
        if toxin.lies and self.command == "GET" and "/objects/" in self.path and answer.status in (200, 206):
            data = data[:-1] + bytes([data[-1] ^ 1])
        kept = {"connection", "transfer-encoding"} | ({"content-length"} if self.command != "HEAD" else set())
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in kept}
        self._answer(answer.status, headers, data)

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.command == "HEAD":
            self.end_headers()
            return
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _relay
