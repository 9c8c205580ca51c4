"""uvicorn's server with a listener of our own, and a stop that gives a load balancer the time to notice it."""

import asyncio
import importlib
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import structlog
import uvicorn
from uvicorn.config import STARTUP_FAILURE

from ...errors import CoordinatorError
from ...service.notifications import ChangeNotifier
from ..display.ports import cannot_listen
from .connections import ConnectionLimits, Connections
from .http_protocol import DeadlineProtocol
from .listener import Listener, bound_sockets

_log = structlog.get_logger()
_HANDSHAKE_TIMEOUT_S = 10.0
_WARM_UP_AFTER_S = 1.0
_CLOSE = (b"connection", b"close")


@dataclass(frozen=True)
class Drain:
    """What SIGTERM does first: `begin` makes the readiness fail, and for some seconds all requests are still served."""

    seconds: float
    begin: Callable[[], None]


class CoordinatorServer(uvicorn.Server):
    """Limits connections, logs its address, and answers long polls before it waits for open requests at the stop."""

    def __init__(
        self,
        config: uvicorn.Config,
        notifier: ChangeNotifier,
        limits: ConnectionLimits,
        drain: Drain,
        say: Callable[[str], None],
    ) -> None:
        """`say` is called with the address, once it is known."""
        super().__init__(config)
        self._notifier = notifier
        self._limits = limits
        self._drain = drain
        self._say = say
        self._is_draining = False
        self._listener: Listener | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As in uvicorn, with a listener instead of a server of asyncio."""
        self._loop = asyncio.get_running_loop()
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(STARTUP_FAILURE)
        try:
            sockets = await bound_sockets(self.config.host, self.config.port)
        except OSError as error:
            await self.lifespan.shutdown()
            raise CoordinatorError(cannot_listen(self.config.host, self.config.port, error)) from error
        self._listener = listener = Listener(
            sockets,
            Connections(self._limits),
            self._new_protocol,
            tls=self.config.ssl,
            handshake_timeout_s=_HANDSHAKE_TIMEOUT_S,
        )
        listener.start()
        self.servers = [listener]  # type: ignore[list-item]
        self.started = True
        scheme = "https" if self.config.ssl_certfile else "http"
        port = sockets[0].getsockname()[1]
        _log.info("listening", url=f"{scheme}://{self.config.host}:{port}")
        self._say(f"{scheme}://{_reachable(self.config.host)}:{port}")
        # The first round needs scipy. Imported a little later, it delays neither the first requests nor that round.
        warm_up = threading.Timer(_WARM_UP_AFTER_S, _import_scipy)
        warm_up.daemon = True
        warm_up.start()

    def _new_protocol(self) -> DeadlineProtocol:
        protocol: DeadlineProtocol = self.config.http_protocol_class(  # type: ignore[assignment, call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    def use_tls(self, context: ssl.SSLContext) -> None:
        """Set up further connections with these TLS settings."""
        self.config.ssl = context
        if self._listener is not None:
            self._listener.use_tls(context)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first SIGTERM, and stop at SIGINT or at the second signal."""
        if sig == signal.SIGTERM and self._drain.seconds and self.started and not self._is_draining:
            self._is_draining = True
            assert self._loop is not None
            # A signal handler may call nothing else of the loop.
            self._loop.call_soon_threadsafe(self._begin_drain)
            return
        self._notifier.close()
        super().handle_exit(sig, frame)
        # uvicorn would raise the signal again after it has stopped, and kill the process while the store is open.
        self._captured_signals.clear()

    def _begin_drain(self) -> None:
        _log.info("draining", seconds=self._drain.seconds)
        self._drain.begin()
        # From now on every answer closes its connection, so that the next request goes to another coordinator.
        for headers in (self.config.encoded_headers, self.server_state.default_headers):
            headers.append(_CLOSE)
        asyncio.get_running_loop().call_later(self._drain.seconds, self.stop)

    def stop(self) -> None:
        """Stop without a signal, which uvicorn would raise again after it has stopped."""
        self._notifier.close()
        self.should_exit = True


def _import_scipy() -> None:
    """The noise audit of updates needs `special`. `optimize`, which few tasks need, stays out of memory."""
    importlib.import_module("scipy.special")


def _reachable(host: str) -> str:
    """The name under which this machine reaches a host that the server listens on."""
    name = {"0.0.0.0": "localhost", "::": "localhost"}.get(host, host)
    return f"[{name}]" if ":" in name else name
