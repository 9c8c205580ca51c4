"""Small HTTP/1.1 exchanges over kept connections, for plain http: testbeds with a coordinator on the same machine.

A request through httpx and httpcore costs about a millisecond of processor time, most of it in layers that a call to a
coordinator does not need. `DirectTransport` is the usual transport of httpx, with one method more: `exchange` sends a
whole request and reads a whole answer on a connection that no other thread uses. Everything else, such as the feed of
events, takes the usual way.

The answer is not trusted: its head and its body are bounded, every read and write obeys the deadline of the call, and a
connection is used again only if the answer ended exactly where its head said.
"""

import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import httpx
from httpx._transports.default import map_httpcore_exceptions

from .deadlines import limited

_LONGEST_HEAD = 100 << 10
_RECEIVED_AT_ONCE = 64 << 10
# A peer that reads slowly meets the deadline between two pieces.
_SENT_AT_ONCE = 256 << 10
# An older connection may be closed by the other side at any moment.
_LONGEST_IDLE_S = 5.0
_NO_BODY = (204, 304)


class TooLong(Exception):
    """The body is longer than the limit."""


@dataclass(frozen=True)
class Answer:
    """An answer. The names of the headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Timeouts:
    """The timeouts of one exchange, in seconds: of the connect, and of each read and write."""

    connect: float
    read: float
    write: float


# The block in which a thread waits for the other side.
Waiting = Callable[[], AbstractContextManager[Any]]


class DirectTransport(httpx.HTTPTransport):
    """A transport with kept connections of its own to one host. Threads may share it."""

    def __init__(
        self, address: httpx.URL, *, limits: httpx.Limits, waiting: Waiting = nullcontext, **options: Any
    ) -> None:
        super().__init__(limits=limits, **options)
        self._waiting = waiting
        self.host = address.host
        self.port = address.port or 80
        self.netloc = address.netloc.decode("ascii")
        self._most = limits.max_keepalive_connections or 1
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []

    def exchange(
        self, head: bytes, content: bytes, *, limits: Mapping[int, int], otherwise: int, timeouts: Timeouts
    ) -> Answer:
        """Send a request and read its answer.

        Args:
            head: request line and headers, with the empty line.
            content: the body, of the length that the head says.
            limits: the longest body for each expected status, in bytes.
            otherwise: the longest body for other statuses; one that is longer or breaks off is left out.
            timeouts: the timeouts of the exchange.

        Raises:
            TooLong: the body of an expected status is longer than its limit.
            httpx.TransportError: the exchange has failed.
        """
        connection = self._free() or self._connected(timeouts)
        try:
            if len(content) < _SENT_AT_ONCE:
                connection.send(head + content, timeouts.write)
            else:
                with self._waiting():
                    connection.send(head, timeouts.write)
                    connection.send(content, timeouts.write)
            answer = connection.receive(limits, otherwise, timeouts.read)
        except BaseException:
            connection.close()
            raise
        if not connection.may_stay:
            connection.close()
        else:
            self._keep(connection)
        return answer

    def close(self) -> None:
        self._close_idle()
        super().close()

    def __exit__(self, *raised: Any) -> None:
        self._close_idle()
        super().__exit__(*raised)

    def _close_idle(self) -> None:
        """Close what no thread uses. Connections in use are closed after their exchange."""
        with self._lock:
            idle, self._idle, self._most = self._idle, [], 0
        for connection in idle:
            connection.close()

    def _free(self) -> "_Connection | None":
        """The connection that was used last, if the other side has not closed it."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.is_usable():
                return connection
            connection.close()

    def _keep(self, connection: "_Connection") -> None:
        connection.idle_since = time.monotonic()
        with self._lock:
            if len(self._idle) < self._most:
                self._idle.append(connection)
                return
        connection.close()

    def _connected(self, timeouts: Timeouts) -> "_Connection":
        with self._waiting(), map_httpcore_exceptions():
            # The backend that obeys deadlines, over all addresses of the host.
            stream = self._pool._network_backend.connect_tcp(self.host, self.port, timeout=timeouts.connect)
        return _Connection(stream.get_extra_info("socket"), self._waiting)


@dataclass
class _Connection:
    """One connection, used by one thread at a time. `received` holds bytes that are not read yet."""

    socket: socket.socket
    waiting: Waiting = nullcontext
    received: bytearray = field(default_factory=bytearray)
    idle_since: float = 0.0
    may_stay: bool = False

    def __post_init__(self) -> None:
        self._poll = select.poll()
        self._poll.register(self.socket, select.POLLIN)

    def close(self) -> None:
        self.socket.close()

    def is_usable(self) -> bool:
        """Whether the other side has sent nothing, not even the end, since the last answer."""
        if time.monotonic() - self.idle_since > _LONGEST_IDLE_S:
            return False
        return not self._poll.poll(0)

    def send(self, data: bytes, timeout: float) -> None:
        try:
            for start in range(0, len(data), _SENT_AT_ONCE):
                self._set_timeout(limited(timeout, httpx.WriteTimeout))
                self.socket.sendall(data if len(data) <= _SENT_AT_ONCE else data[start : start + _SENT_AT_ONCE])
        except TimeoutError as error:
            raise httpx.WriteTimeout(str(error)) from error
        except OSError as error:
            raise httpx.WriteError(str(error)) from error

    def receive(self, limits: Mapping[int, int], otherwise: int, timeout: float) -> Answer:
        version, status, headers = self._head(timeout)
        while 100 <= status < 200:
            if status == 101:
                raise httpx.RemoteProtocolError("the server changes the protocol")
            version, status, headers = self._head(timeout)
        limit, is_expected = limits.get(status, otherwise), status in limits
        is_kept = version == "HTTP/1.1" and "close" not in headers.get("connection", "").lower()
        try:
            body, ended = self._body(status, headers, limit, timeout)
        except (TooLong, httpx.TransportError):
            if is_expected:
                raise
            # The status tells what went wrong; the detail is left out.
            body, ended = b"", False
        self.may_stay = is_kept and ended and not self.received
        return Answer(status, headers, body)

    def _head(self, timeout: float) -> tuple[str, int, dict[str, str]]:
        searched = 0
        while (end := self.received.find(b"\r\n\r\n", searched)) < 0:
            if len(self.received) > _LONGEST_HEAD:
                raise httpx.RemoteProtocolError("the headers of the answer are too long")
            searched = max(0, len(self.received) - 3)
            self._read_more(timeout)
        head = self.received[:end].decode("latin-1")
        del self.received[: end + 4]
        first, *lines = head.split("\r\n")
        version, _, rest = first.partition(" ")
        code = rest[:3]
        is_number = code.isascii() and code.isdigit()
        if version not in ("HTTP/1.1", "HTTP/1.0") or not is_number or rest[3:4] not in ("", " "):
            raise httpx.RemoteProtocolError("the answer is not HTTP/1.1")
        if "\0" in head or not head.count("\r") == head.count("\n") == len(lines):
            raise httpx.RemoteProtocolError("a header of the answer is malformed")
        return version, int(code), _headers(lines)

    def _body(self, status: int, headers: Mapping[str, str], limit: int, timeout: float) -> tuple[bytes, bool]:
        """The body, and whether its end was exactly known."""
        if status in _NO_BODY:
            return b"", True
        if "transfer-encoding" in headers:
            if headers["transfer-encoding"].lower() != "chunked" or "content-length" in headers:
                raise httpx.RemoteProtocolError("the length of the answer is unclear")
            return self._chunks(limit, timeout), True
        if "content-length" in headers:
            return self._exactly(_length(headers["content-length"], 10), limit, timeout), True
        while self._read_more(timeout, may_end=True):
            if len(self.received) > limit:
                raise TooLong
        body = bytes(self.received)
        self.received.clear()
        return body, False

    def _exactly(self, length: int, limit: int, timeout: float) -> bytes:
        if length > limit:
            raise TooLong
        while len(self.received) < length:
            self._read_more(timeout)
        body = bytes(self.received[:length])
        del self.received[:length]
        return body

    def _chunks(self, limit: int, timeout: float) -> bytes:
        body = bytearray()
        while length := _length(self._line(timeout).partition(";")[0].strip(), 16):
            body += self._exactly(length, limit - len(body), timeout)
            if self._line(timeout):
                raise httpx.RemoteProtocolError("a chunk of the answer does not end")
        read = 0
        while line := self._line(timeout):
            # Trailers, which no one needs.
            read += len(line)
            if read > _LONGEST_HEAD:
                raise httpx.RemoteProtocolError("the trailers of the answer are too long")
        return bytes(body)

    def _line(self, timeout: float) -> str:
        while (end := self.received.find(b"\r\n")) < 0:
            if len(self.received) > _LONGEST_HEAD:
                raise httpx.RemoteProtocolError("a line of the answer is too long")
            self._read_more(timeout)
        line = self.received[:end].decode("latin-1")
        del self.received[: end + 2]
        return line

    def _read_more(self, timeout: float, *, may_end: bool = False) -> bool:
        try:
            self._set_timeout(limited(timeout, httpx.ReadTimeout))
            if self.received and self._poll.poll(0):
                data = self.socket.recv(_RECEIVED_AT_ONCE)
            else:
                with self.waiting():
                    data = self.socket.recv(_RECEIVED_AT_ONCE)
        except TimeoutError as error:
            raise httpx.ReadTimeout(str(error)) from error
        except OSError as error:
            raise httpx.ReadError(str(error)) from error
        if not data and not may_end:
            raise httpx.RemoteProtocolError("the server has closed the connection before the end of its answer")
        self.received += data
        return bool(data)

    def _set_timeout(self, seconds: float | None) -> None:
        # A system call, and the timeout is the same for most of them.
        if seconds != self.socket.gettimeout():
            self.socket.settimeout(seconds)


def _headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        key = name.lower()
        if not colon or not name or name != name.strip():
            raise httpx.RemoteProtocolError("a header of the answer is malformed")
        text = value.strip()
        if key in headers and key in ("content-length", "transfer-encoding") and headers[key] != text:
            raise httpx.RemoteProtocolError("the length of the answer is unclear")
        headers[key] = text if key not in headers or key == "content-length" else f"{headers[key]}, {text}"
    return headers


def _length(text: str, base: int) -> int:
    digits = "0123456789abcdef"[:base]
    if not 1 <= len(text) <= 16 or any(character not in digits for character in text.lower()):
        raise httpx.RemoteProtocolError("the length of the answer is not a number")
    return int(text, base)
