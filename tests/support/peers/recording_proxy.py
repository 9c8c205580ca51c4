"""A proxy in front of a coordinator that records every update, and lets a test interfere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

from support.peers.local_http import served


class Moment(StrEnum):
    """Where an upload is when the proxy lets a test interfere."""

    MID_BODY = "mid_body"
    FORWARDED = "forwarded"


@dataclass
class RecordingProxy:
    """The digests of all uploads for each (round, credentials), accepted or not."""

    target: str
    interfere: Callable[[Moment], None] = lambda _: None
    digests: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    url: str = ""

    def seen(self, path: str, token: str, digest: str) -> None:
        self.digests.setdefault((path, token), []).append(digest)


@contextmanager
def recording(target: str) -> Iterator[RecordingProxy]:
    """A proxy that runs until the end of the block."""
    proxy = RecordingProxy(target)
    handler = type("Handler", (_Handler,), {"proxy": proxy})
    with served(handler, receive_buffer=4096) as proxy.url:
        yield proxy


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: RecordingProxy

    def log_message(self, *_: object) -> None:
        """No log."""

    def _relay(self) -> None:
        try:
            self._exchange()
        except (OSError, HTTPException):
            # One side has disconnected; the other notices.
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = _relay

    def _exchange(self) -> None:
        where = urlsplit(self.proxy.target)
        upstream = HTTPConnection(where.hostname or "", where.port, timeout=90)
        try:
            self._forward(upstream)
            answer = upstream.getresponse()
            body = answer.read()
            if self._is_upload():
                self.proxy.interfere(Moment.FORWARDED)
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                    self.send_header(name, value)
            if answer.status != 204:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        finally:
            upstream.close()

    def _forward(self, upstream: HTTPConnection) -> None:
        length = int(self.headers.get("Content-Length", 0))
        if self._is_upload():
            digest = self.headers["Content-Digest"]
            self.proxy.seen(self.path, self.headers["Authorization"], digest)
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            upstream.putheader(name, value)
        upstream.endheaders()
        upstream.send(self.rfile.read(length // 2))
        if self._is_upload():
            self.proxy.interfere(Moment.MID_BODY)
        upstream.send(self.rfile.read(length - length // 2))

    def _is_upload(self) -> bool:
        return self.command == "PUT" and self.path.endswith("/update")
