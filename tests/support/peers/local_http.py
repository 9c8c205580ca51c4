"""A web server on a free port of this machine, for tests whose peer is not a real coordinator."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def served(handler: Callable[..., BaseHTTPRequestHandler], *, receive_buffer: int | None = None) -> Iterator[str]:
    """Serve until the end of the block; yields the address.

    With a small receive buffer a client is still sending a large body when the handler has read half of it.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler, bind_and_activate=False)
    server.daemon_threads = True
    # A handler that still waits for its client must not hold up the end of a test.
    server.block_on_close = False
    if receive_buffer is not None:
        server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    server.server_bind()
    server.server_activate()
    threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
