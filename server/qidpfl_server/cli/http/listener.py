"""Accepts connections within the limits; asyncio's own server accepts all of them and logs every failure."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

from qidpfl_shared.protocol.errors import ErrorCode

from ...logs import LimitedLog
from .connections import Connections, Slot
from .http_protocol import BoundedReads, DeadlineProtocol, refusal

_BACKLOG = 2048
_ACCEPTED_AT_ONCE = 64
_PAUSE_S = 0.5
# What the kernel may hold of an answer that is not sent. It would hold megabytes, and hide how slowly a client reads.
_UNSENT_BYTES = 128 * 1024

_log = LimitedLog()


async def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for all addresses of a host. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets = []
    for family, kind, protocol, _, address in dict.fromkeys(found):
        listening = socket.socket(family, kind, protocol)
        sockets.append(listening)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
            listening.listen(_BACKLOG)
            listening.setblocking(False)
        except OSError as error:
            for one in sockets:
                one.close()
            reason = (error.strerror or "").lower()
            raise OSError(error.errno, f"error while attempting to bind on address {address!r}: {reason}") from error
    return sockets


class Listener:
    """Accepts connections on listening sockets; has what uvicorn uses of a server of asyncio."""

    def __init__(
        self,
        sockets: list[socket.socket],
        connections: Connections,
        make_protocol: Callable[[], DeadlineProtocol],
        *,
        tls: ssl.SSLContext | None,
        handshake_timeout_s: float,
    ) -> None:
        self.sockets = sockets
        self._connections = connections
        self._make_protocol = make_protocol
        self._handshake_timeout_s = handshake_timeout_s
        self._tls: dict[str, Any] = {}
        if tls is not None:
            self.use_tls(tls)
        self._loop = asyncio.get_running_loop()
        self._starting: set[asyncio.Task[None]] = set()

    def use_tls(self, context: ssl.SSLContext) -> None:
        """Set up connections with these TLS settings from now on."""
        self._tls = {"ssl": context, "ssl_handshake_timeout": self._handshake_timeout_s}

    def start(self) -> None:
        """Accept connections from now on."""
        for listening in self.sockets:
            if listening.fileno() >= 0:
                self._loop.add_reader(listening, self._accept, listening)

    def close(self) -> None:
        """Accept no further connection."""
        for listening in self.sockets:
            self._loop.remove_reader(listening)
            listening.close()

    async def wait_closed(self) -> None:
        """Wait for connections that are being set up."""
        await asyncio.gather(*self._starting, return_exceptions=True)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Most likely too many open files: the connection stays in the queue of the kernel.
                _log.warning("accept_failed", reason=str(error))
                self._loop.remove_reader(listening)
                self._loop.call_later(_PAUSE_S, self.start)
                return
            self._admit(connection, str(peer[0]))

    def _admit(self, connection: socket.socket, host: str) -> None:
        connection.setblocking(False)
        slot = self._connections.admit(host)
        if slot is None:
            _log.warning("connection_refused", client=host)
            if not self._tls:
                _send_now(connection, refusal(ErrorCode.TOO_MANY_REQUESTS, retry_after_s=1))
            connection.close()
            return
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        starting = self._loop.create_task(self._set_up(connection, slot, host, self._connections.delay_s(host)))
        slot.on_close(lambda: _cancel(starting), is_unread=lambda: _is_unread(connection))
        self._starting.add(starting)
        starting.add_done_callback(self._starting.discard)

    async def _set_up(self, connection: socket.socket, slot: Slot, host: str, delay_s: float) -> None:
        """Make the protocol of a connection, after its TLS handshake. From then on the protocol owns the slot."""
        try:
            if delay_s:
                await self._connections.wait(host, delay_s)
            protocol = self._make_protocol()
            protocol.slot = slot
            await self._loop.connect_accepted_socket(lambda: BoundedReads(protocol), connection, **self._tls)
        except (OSError, TimeoutError, asyncio.CancelledError) as error:
            if isinstance(error, ssl.SSLCertVerificationError):
                _log.warning("certificate_refused", reason=error.verify_message)
            slot.release()
            connection.close()


def _cancel(starting: asyncio.Task[None]) -> None:
    starting.cancel()


def _is_unread(connection: socket.socket) -> bool:
    """Whether bytes wait to be read. The end of the other side's bytes alone does not count."""
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except OSError:
        return False


def _send_now(connection: socket.socket, data: bytes) -> None:
    try:
        connection.send(data)
    except OSError:
        return
