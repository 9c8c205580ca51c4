"""A TCP server that sends scripted bytes, also such that no HTTP library would send."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat

Script = Callable[[], Iterator[bytes]]

OK = b"HTTP/1.1 200 OK\r\n"


def dripping(text: bytes, every_s: float = 0.05) -> Iterator[bytes]:
    """These bytes, one at a time."""
    for byte in text:
        time.sleep(every_s)
        yield bytes([byte])


def headers_that_drip() -> Iterator[bytes]:
    yield OK
    yield from dripping(b"X-Slow: " + b"x" * 1000)


def endless_interim_answers() -> Iterator[bytes]:
    for interim in repeat(b"HTTP/1.1 103 Early Hints\r\n\r\n"):
        time.sleep(0.01)
        yield interim


def body_that_drips() -> Iterator[bytes]:
    yield OK + b"Content-Length: 1000\r\n\r\n"
    yield from dripping(b" " * 1000)


def chunks_that_drip() -> Iterator[bytes]:
    yield OK + b"Transfer-Encoding: chunked\r\n\r\n"
    for _ in range(1000):
        time.sleep(0.05)
        yield b"1\r\n \r\n"


SLOW_ANSWERS = (headers_that_drip, endless_interim_answers, body_that_drips, chunks_that_drip)


class RawServer:
    """Reads a request (or, without `reads`, nothing), then sends the bytes of the script."""

    def __init__(self, script: Script, *, reads: bool = True) -> None:
        self._script, self._reads = script, reads
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        # When connections were opened.
        self.opened_at: list[float] = []

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.opened_at.append(time.monotonic())
            threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def close(self) -> None:
        # Without this, the thread that waits in accept would keep the port open.
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                if self._reads:
                    connection.recv(1 << 16)
                for piece in self._script():
                    connection.sendall(piece)
            except OSError:
                return


@contextmanager
def raw_server(script: Script, *, reads: bool = True) -> Iterator[RawServer]:
    """A server that runs until the end of the block."""
    server = RawServer(script, reads=reads)
    threading.Thread(target=server.serve, daemon=True).start()
    try:
        yield server
    finally:
        server.close()
