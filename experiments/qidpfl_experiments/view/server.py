"""Serves the page of results on a loopback address: static files, and the content as JSON."""

from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from qidpfl_shared.web import PAGE_POLICY, page_files

_ADDRESS = "127.0.0.1"
_NAMES = (_ADDRESS, "localhost")
_ALWAYS = {
    "Content-Security-Policy": PAGE_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
CONTENT_PATH = "results.json"


class PageServer(ThreadingHTTPServer):
    """A server of one page. `read` returns the content as JSON, or raises with what is wrong."""

    daemon_threads = True
    # A port that another server listens on is an error, also on systems where the option would share it.
    allow_reuse_port = False

    def __init__(self, port: int, read: Callable[[], bytes], failures: tuple[type[Exception], ...]) -> None:
        self.files = page_files("qidpfl_experiments.view", "page")
        self.read = read
        self.failures = failures
        try:
            super().__init__((_ADDRESS, port), _PageHandler)
        except OSError as error:
            said = f"port {port} cannot be used ({error.strerror}); leave out --port for a free one"
            raise OSError(error.errno, said) from None

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{_ADDRESS}:{self.server_port}/"


class _PageHandler(BaseHTTPRequestHandler):
    server: PageServer
    server_version = "qidpfl-experiments"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    # A connection that says nothing for so long is closed.
    timeout = 60

    def do_GET(self) -> None:
        name = urlsplit(self.path).path.lstrip("/") or "index.html"
        # A foreign page whose name leads to this address must not read results.
        if self.headers.get("Host", "") not in {f"{host}:{self.server.server_port}" for host in _NAMES}:
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, b"this page is served on a loopback address only\n")
        elif name == CONTENT_PATH:
            self._content()
        elif found := self.server.files.get(name):
            if found.etag == self.headers.get("If-None-Match"):
                self._answer(HTTPStatus.NOT_MODIFIED, b"", found.media_type, found.etag)
            else:
                self._answer(HTTPStatus.OK, found.data, found.media_type, found.etag)
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"there is no such file\n")

    do_HEAD = do_GET

    def _content(self) -> None:
        """The results are read for every visit: a running experiment adds cells."""
        try:
            self._answer(HTTPStatus.OK, self.server.read(), "application/json")
        except self.server.failures as error:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, f"{error}\n".encode())

    def _answer(
        self, status: HTTPStatus, body: bytes, media_type: str = "text/plain; charset=utf-8", etag: str = ""
    ) -> None:
        self.send_response(status)
        headers = _ALWAYS | ({"ETag": etag, "Cache-Control": "no-cache"} if etag else {"Cache-Control": "no-store"})
        for name, value in headers.items():
            self.send_header(name, value)
        if status is not HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD" and status is not HTTPStatus.NOT_MODIFIED:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Requests are not logged: the terminal shows the address only."""
