"""uvicorn's HTTP protocol with timeouts and a header limit, which uvicorn does not have."""

from asyncio import TimerHandle
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..api.limits import UPLOAD_PATHS

_HEADER_LIMIT = 64 * 1024
_JSON_TIMEOUT_S = 10.0


class DeadlineProtocol(HttpToolsProtocol):
    """Closes a connection if headers or body do not arrive in time, for each request on it.

    It also closes a connection whose client does not read the response.
    """

    header_timeout_s = 10.0
    body_timeout_s = 120.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: TimerHandle | None = None
        self._write_deadline: TimerHandle | None = None
        self._header_bytes = 0
        self._in_headers = True

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect(self.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(None)
        self._expect_reads(False)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_headers:
            self._header_bytes += len(data)
            if self._deadline is None:
                self._expect(self.header_timeout_s)
        super().data_received(data)
        if self._in_headers and self._header_bytes > _HEADER_LIMIT and not self.transport.is_closing():
            self.send_400_response("Request header fields too large.")

    def on_headers_complete(self) -> None:
        self._in_headers = False
        super().on_headers_complete()
        upload = self.scope["path"].endswith(UPLOAD_PATHS)
        self._expect(self.body_timeout_s if upload else min(self.body_timeout_s, _JSON_TIMEOUT_S))

    def pause_writing(self) -> None:
        self._expect_reads(True)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._expect_reads(False)
        super().resume_writing()

    def on_message_complete(self) -> None:
        self._in_headers, self._header_bytes = True, 0
        self._expect(None)
        super().on_message_complete()

    def _expect(self, timeout_s: float | None) -> None:
        """Replace the current timeout; None stops it."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if timeout_s is None else self.loop.call_later(timeout_s, self._time_out)

    def _expect_reads(self, expected: bool) -> None:
        """Start or stop the time in which the client must read some of the response."""
        if self._write_deadline is not None:
            self._write_deadline.cancel()
        # `close` would wait until the client has read the rest; `abort` drops it.
        self._write_deadline = self.loop.call_later(self.body_timeout_s, self.transport.abort) if expected else None

    def _time_out(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()


def protocol_with(*, header_timeout_s: float, body_timeout_s: float) -> type[DeadlineProtocol]:
    """A protocol class with these timeouts; uvicorn takes a class, not an object."""
    return type(
        "ConfiguredDeadlineProtocol",
        (DeadlineProtocol,),
        {"header_timeout_s": header_timeout_s, "body_timeout_s": body_timeout_s},
    )
