"""A total deadline for one call, which covers every connect, write and read below httpx.

httpx limits each single read. A peer that sends one byte per read, or 1xx answers without end, would therefore hold a
call for ever. Here the rest of the call's time is the upper limit of each operation on the socket.
"""

import socket
import ssl
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import httpcore
import httpx

_ends_at: ContextVar[float | None] = ContextVar("ends_at", default=None)
TOO_SLOW = "the call takes too long"
# A peer that reads slowly meets the deadline between two pieces.
_PIECE_BYTES = 16 << 10


@contextmanager
def call_deadline(seconds: float) -> Iterator[None]:
    """Limit all network operations of this thread until the end of the block."""
    token = _ends_at.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _ends_at.reset(token)


def deadline_is_over() -> bool:
    """Whether the call has used up its time."""
    ends_at = _ends_at.get()
    return ends_at is not None and time.monotonic() >= ends_at


def bounded(http: httpx.Client) -> httpx.Client:
    """Let all connections of this client, also those through a proxy, obey the deadline of a call."""
    # httpx has no option for the network backend. If a new version renames these, this fails at once.
    for transport in (http._transport, *http._mounts.values()):
        if isinstance(transport, httpx.HTTPTransport):
            pool = transport._pool
            pool._network_backend = _DeadlineBackend(pool._network_backend)
    return http


def limited(timeout: float | None, error: type[Exception]) -> float | None:
    """The timeout of one operation: not more than the rest of the call. Raises `error` if nothing is left."""
    ends_at = _ends_at.get()
    if ends_at is None:
        return timeout
    left = ends_at - time.monotonic()
    if left <= 0:
        raise error(TOO_SLOW)
    return left if timeout is None else min(timeout, left)


class _DeadlineBackend(httpcore.NetworkBackend):
    def __init__(self, backend: httpcore.NetworkBackend) -> None:
        self._backend = backend

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Connect to the first address of the host that answers. The timeout is for all of them together."""
        whole = limited(timeout, httpcore.ConnectTimeout)
        with nullcontext() if whole is None else call_deadline(whole):
            failure: Exception = httpcore.ConnectError(f"{host} has no address")
            for address in _addresses(host, port):
                try:
                    stream = self._backend.connect_tcp(
                        address,
                        port,
                        timeout=limited(timeout, httpcore.ConnectTimeout),
                        local_address=local_address,
                        socket_options=socket_options,
                    )
                except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                    failure = error
                else:
                    return _DeadlineStream(stream)
            raise failure

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.NetworkStream:
        within = limited(timeout, httpcore.ConnectTimeout)
        return _DeadlineStream(self._backend.connect_unix_socket(path, timeout=within, socket_options=socket_options))

    def sleep(self, seconds: float) -> None:
        self._backend.sleep(seconds)


class _DeadlineStream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, timeout=limited(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _PIECE_BYTES):
            piece = buffer[start : start + _PIECE_BYTES]
            self._stream.write(piece, timeout=limited(timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        within = limited(timeout, httpcore.ConnectTimeout)
        return _DeadlineStream(self._stream.start_tls(ssl_context, server_hostname, timeout=within))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _addresses(host: str, port: int) -> list[str]:
    """The numeric addresses of a host, in the order in which to try them."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise httpcore.ConnectError(str(error)) from error
    return [str(address[0]) for *_, address in found]
