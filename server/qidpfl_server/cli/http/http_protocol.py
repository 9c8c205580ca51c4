"""uvicorn's HTTP protocol with the limits that uvicorn does not have: time, size of the header, waiting requests."""

import hashlib
from asyncio import BaseTransport, BufferedProtocol, TimerHandle
from collections.abc import Sequence
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from qidpfl_shared.protocol.errors import ErrorCode

from ...api.auth import CERTIFICATE
from ...api.errors import problem_response
from ...api.limits import CONNECTION, REQUEST_ID_HEADER, RESERVED, UPLOAD_PATHS
from ...api.security_headers import refusal_headers
from ...identifiers import new_request_id
from ...logs import LimitedLog
from .connections import HeldFlow, RequestBytes, Slot

_HEADER_LIMIT = 64 * 1024
_JSON_TIMEOUT_S = 10.0
# Requests of a connection that wait for the answer to an earlier one.
_MAX_WAITING = 4
# What is read at once: little until a body is expected, because requests that wait stay in memory unparsed (200 MB for
# 4,096 connections). A small upload fits in with its header.
_READ_BYTES = 48 * 1024
_BODY_READ_BYTES = 256 * 1024
_END_OF_HEADER = b"\r\n\r\n"
# What decides where a request ends, and whether another one may follow.
_FRAMING_HEADERS = (b"content-length", b"transfer-encoding", b"connection")
# A connection of the reserved lane has this time for its header.
_RESERVED_TIMEOUT_S = 2.0
# How often the speed of a body is checked, and the shortest time for a client to read some of an answer.
_RATE_PERIOD_S = 10.0
# About what the kernel and the transport hold of an answer.
_BUFFERED_BYTES = 192 * 1024

_log = LimitedLog()


class DeadlineProtocol(HttpToolsProtocol):
    """Closes a connection if headers or body do not arrive in time, for each request on it.

    It also closes a connection whose client sends an upload or reads the response too slowly, and parses no further
    request while `_MAX_WAITING` requests wait.
    """

    header_timeout_s = 10.0
    body_timeout_s = 120.0
    min_bytes_per_s = 1
    slot: Slot

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: TimerHandle | None = None
        self._write_deadline: TimerHandle | None = None
        self._rate_check: TimerHandle | None = None
        self._request = RequestBytes()
        self._unparsed, self._parsed = b"", 0
        # How much a transport may read at once.
        self.read_bytes = _READ_BYTES
        self._reading: HeldFlow
        self._running: Any = None
        self._refusal: ErrorCode | None = None
        # Whether the parser takes the end of the header for the end of the request, and whether it reads it again.
        self._wants_upgrade = self._rereading = False
        self._certificate: str | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._certificate = _fingerprint(transport)
        self.flow = self._reading = HeldFlow(transport)
        self.slot.on_close(transport.abort)
        if self.slot.reserved:
            self.header_timeout_s = min(self.header_timeout_s, _RESERVED_TIMEOUT_S)
        self._expect(self.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self.slot.release()
        self._expect(None)
        self._expect_reads(False)
        self._drop_waiting()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Answer the running request only: an attacker could keep the process alive with those that wait."""
        self._drop_waiting()
        super().shutdown()

    # --- requests ----------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._unparsed = self._unparsed[self._parsed :] + data
        self._parsed = 0
        self._parse()

    def _parse(self) -> None:
        """Parse piece by piece, each with the end of at most one request, until enough requests wait."""
        self._unset_keepalive_if_required()
        while self._parsed < len(self._unparsed) and self._refusal is None and not self.transport.is_closing():
            if len(self.pipeline) >= _MAX_WAITING:
                self._reading.hold()
                return
            piece = self._next_piece()
            if self._request.in_header and self._deadline is None:
                self._expect(self.header_timeout_s)
            self._request.add(len(piece))
            if not (self._request.in_header and self._request.framing > _HEADER_LIMIT):
                self._feed(piece)
            if self._request.framing > _HEADER_LIMIT:
                self._refuse(ErrorCode.HEADER_TOO_LARGE)
        self._reading.release()

    def _next_piece(self) -> bytes:
        """The rest of a body of known length, else the bytes up to the next empty line."""
        if self._request.body_left:
            end = self._parsed + self._request.body_left
        else:
            found = self._unparsed.find(_END_OF_HEADER, self._parsed)
            end = len(self._unparsed) if found < 0 else found + len(_END_OF_HEADER)
        piece = self._unparsed[self._parsed : end]
        self._parsed += len(piece)
        if self._parsed == len(self._unparsed):
            self._unparsed, self._parsed = b"", 0
        return piece

    def _feed(self, piece: bytes) -> None:
        try:
            self._parse_piece(piece)
        except httptools.HttpParserError:
            self._refuse(ErrorCode.MALFORMED_REQUEST)

    def _parse_piece(self, piece: bytes) -> None:
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as wish:
            # HTTP lets a server ignore the wish for another protocol. CONNECT has no answer here.
            if self.scope["method"] == "CONNECT":
                self._refuse(ErrorCode.MALFORMED_REQUEST)
                return
            self._ignore_upgrade()
            if rest := piece[wish.args[0] :]:
                self._parse_piece(rest)

    def _ignore_upgrade(self) -> None:
        """Go on with a parser that has read the same header without the wish.

        A parser of httptools skips the body after such a wish, and would read it as the next request.
        """
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        lines = [f"{self.scope['method']} / HTTP/{self.scope['http_version']}".encode()]
        lines += [name + b": " + value for name, value in self.headers if name in _FRAMING_HEADERS]
        self._wants_upgrade, self._rereading = False, True
        self.parser.feed_data(b"\r\n".join(lines) + _END_OF_HEADER)

    def on_message_begin(self) -> None:
        if not self._rereading:
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._rereading:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        # uvicorn would add the trailers of a body to the headers, without a limit.
        if self._request.in_header:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._rereading:
            self._rereading = False
            return
        self._wants_upgrade = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        super().on_headers_complete()
        length = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
        self._request.end_header(length)
        if length > _READ_BYTES:
            self.read_bytes = _BODY_READ_BYTES
        if self._certificate is not None:
            self.scope[CERTIFICATE] = self._certificate  # type: ignore[literal-required]
        self.scope[CONNECTION] = self.slot  # type: ignore[literal-required]
        if self.slot.reserved:
            self.scope[RESERVED] = True  # type: ignore[literal-required]
            self.cycle.keep_alive = False
        if self.scope["path"].endswith(UPLOAD_PATHS):
            self.slot.set_idle(False)
            self._expect(self.body_timeout_s)
            self._rate_check = self.loop.call_later(_RATE_PERIOD_S, self._check_rate, 0)
        else:
            self._expect(min(self.body_timeout_s, _JSON_TIMEOUT_S))

    def on_body(self, body: bytes) -> None:
        self._request.add_body(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._wants_upgrade:
            return
        self._request = RequestBytes()
        self._expect(None)
        self.slot.set_idle(False)
        self.read_bytes = _READ_BYTES
        super().on_message_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._running.response_complete:
            self.slot.set_idle(True)
        if self._refusal is not None and self._running.response_complete:
            self._answer_and_close(self._refusal)
        elif self._unparsed:
            self._parse()

    def _drop_waiting(self) -> None:
        """Forget the requests that were not started. uvicorn then ends the running one instead of the newest one."""
        if self.pipeline:
            self.pipeline.clear()
            self.cycle = self._running
        self._unparsed, self._parsed = b"", 0

    # --- refusals ----------------------------------------------------------------------------------------------------

    def _refuse(self, code: ErrorCode) -> None:
        """Answer with a code and close, after the answers to the earlier requests of the connection."""
        self._expect(None)
        if self.cycle is not None and self.cycle.more_body and self.pipeline:
            # The newest request can never be complete.
            self.pipeline.popleft()
            self.cycle = self.pipeline[0][0] if self.pipeline else self._running
        running = self._running
        if running is None or running.response_complete:
            self._answer_and_close(code)
        elif not running.more_body:
            self._refusal = code
        elif running.response_started:
            self.transport.close()
        else:
            self._answer_and_close(code)

    def _answer_and_close(self, code: ErrorCode) -> None:
        if self.transport.is_closing():
            return
        request_id = new_request_id()
        _log.warning("malformed_request", code=code.value, client=self.client and self.client[0], request_id=request_id)
        headers, https = self.server_state.default_headers, self.scheme == "https"
        self.transport.write(refusal(code, request_id=request_id, headers=headers, https=https))
        self.transport.close()

    # --- time --------------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self._expect_reads(True)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._expect_reads(False)
        super().resume_writing()

    def _expect(self, timeout_s: float | None) -> None:
        """Replace the current timeout; None stops it."""
        if self._deadline is not None:
            self._deadline.cancel()
        if self._rate_check is not None:
            self._rate_check.cancel()
        self._deadline = None if timeout_s is None else self.loop.call_later(timeout_s, self._time_out)

    def _expect_reads(self, expected: bool) -> None:
        """Start or stop the time in which the client must read some of the response."""
        if self._write_deadline is not None:
            self._write_deadline.cancel()
        # `close` would wait until the client has read the rest; `abort` drops it.
        timeout_s = min(self.body_timeout_s, max(_RATE_PERIOD_S, _BUFFERED_BYTES / self.min_bytes_per_s))
        self._write_deadline = self.loop.call_later(timeout_s, self.transport.abort) if expected else None

    def _check_rate(self, earlier: int) -> None:
        """Time out if an upload is too slow. The time in which the server itself did not read does not count."""
        received = self._request.body
        if not self._reading.take_pause() and received - earlier < self.min_bytes_per_s * _RATE_PERIOD_S:
            self._time_out()
        else:
            self._rate_check = self.loop.call_later(_RATE_PERIOD_S, self._check_rate, received)

    def _time_out(self) -> None:
        self._deadline = None
        if self._request.in_header and self._request.framing:
            self._refuse(ErrorCode.REQUEST_TIMEOUT)
        elif not self.transport.is_closing():
            self.transport.close()


# One buffer for all connections: every event loop reads into it and hands it over in the same step.
_BUFFER = memoryview(bytearray(_BODY_READ_BYTES))


class BoundedReads(BufferedProtocol):
    """Passes on to a protocol what its transport reads, at most `read_bytes` at once.

    A transport chooses the size itself for a protocol that is not buffered: 256 kB, with every kind of event loop.
    """

    def __init__(self, protocol: DeadlineProtocol) -> None:
        self._protocol = protocol

    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFER[: self._protocol.read_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        self._protocol.data_received(bytes(_BUFFER[:nbytes]))

    def connection_made(self, transport: BaseTransport) -> None:
        self._protocol.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)

    def eof_received(self) -> None:
        self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()


def _fingerprint(transport: Any) -> str | None:
    """The SHA-256 of the client's certificate, which the TLS handshake has verified; None without one."""
    connection = transport.get_extra_info("ssl_object")
    certificate = None if connection is None else connection.getpeercert(binary_form=True)
    return None if certificate is None else hashlib.sha256(certificate).hexdigest()


def refusal(
    code: ErrorCode,
    *,
    request_id: str | None = None,
    retry_after_s: int | None = None,
    headers: Sequence[tuple[bytes, bytes]] = (),
    https: bool = False,
) -> bytes:
    """The whole answer to a request that does not reach the application; the connection is closed after it."""
    answer = problem_response(code, retry_after_s=retry_after_s)
    all_headers = [
        *headers,
        *answer.raw_headers,
        *refusal_headers(https=https),
        (REQUEST_ID_HEADER, (request_id or new_request_id()).encode()),
        (b"connection", b"close"),
    ]
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in all_headers)
    return STATUS_LINE[code.status] + lines + b"\r\n" + bytes(answer.body)


def protocol_with(*, header_timeout_s: float, body_timeout_s: float, min_bytes_per_s: int) -> type[DeadlineProtocol]:
    """A protocol class with these timeouts; uvicorn takes a class, not an object."""
    return type(
        "ConfiguredDeadlineProtocol",
        (DeadlineProtocol,),
        {
            "header_timeout_s": header_timeout_s,
            "body_timeout_s": body_timeout_s,
            "min_bytes_per_s": min_bytes_per_s,
        },
    )
