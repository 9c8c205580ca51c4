"""One address for several coordinators that come and go: forwards each connection to one of those that listen."""

import asyncio
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

_PIECE = 65536


class _Balancer:
    def __init__(self, live: Callable[[], Sequence[str]]) -> None:
        self._live = live
        self._started: Future[tuple[str, Callable[[], None]]] = Future()
        self._connections: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def start(self) -> str:
        self._thread.start()
        return self._started.result()[0]

    def stop(self) -> None:
        self._started.result()[1]()
        self._thread.join()

    async def _serve(self) -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        async with await asyncio.start_server(self._forward, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

            def stop() -> None:
                loop.call_soon_threadsafe(over.set)

            self._started.set_result((url, stop))
            await over.wait()
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes in both directions until one side closes. Without a live coordinator the connection is closed."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            urls = list(self._live())
            random.shuffle(urls)
            for url in urls:
                address = urlsplit(url)
                with suppress(OSError):
                    behind, to_behind = await asyncio.open_connection(address.hostname, address.port)
                    break
            else:
                return
            try:
                ways = [asyncio.create_task(_pass(reader, to_behind)), asyncio.create_task(_pass(behind, writer))]
                _, left = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in left:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
            finally:
                to_behind.transport.abort()
        finally:
            writer.transport.abort()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()


@contextmanager
def balanced(live: Callable[[], Sequence[str]]) -> Iterator[str]:
    """The address of a balancer; `live` gives the addresses of the coordinators that listen now."""
    balancer = _Balancer(live)
    try:
        yield balancer.start()
    finally:
        balancer.stop()
