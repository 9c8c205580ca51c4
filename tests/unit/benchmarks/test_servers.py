"""What the benchmarks read about processes and receive from servers."""

import asyncio
import os
import resource
import threading
import time
from collections.abc import Awaitable, Callable

from servers import Connection, peak_memory_mib, processor_ms


def test_the_processor_time_counts_threads_that_have_ended() -> None:
    own = time.process_time_ns() / 1e6
    thread = threading.Thread(target=lambda: sum(range(1_000_000)))
    thread.start()
    thread.join()
    assert own < processor_ms(os.getpid()) <= time.process_time_ns() / 1e6


def test_the_peak_memory_is_in_mebibytes() -> None:
    used = os.urandom(64 << 20)
    # The kernel's own figure may be that of the program that started this one, which is larger.
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert len(used) / 2**20 < peak_memory_mib(os.getpid()) < 1.1 * most


def answers(pieces: list[bytes], calls: int) -> list[tuple[int, bytes]]:
    """What a connection returns when the server sends these pieces after each request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(calls):
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()

    async def call(
        serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    ) -> list[tuple[int, bytes]]:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            connection = await Connection(server.sockets[0].getsockname()[1]).open()
            received = [await connection.call("GET", "/") for _ in range(calls)]
            connection.close()
            return received

    return asyncio.run(call(serve))


def test_a_connection_puts_an_answer_together_from_pieces() -> None:
    pieces = [b"HTTP/1.1 201 Created\r\nContent-", b"Length: 5\r\n\r", b"\nab", b"cde"]
    assert answers(pieces, calls=2) == [(201, b"abcde")] * 2


def test_a_connection_knows_an_answer_without_a_body() -> None:
    assert answers([b"HTTP/1.1 204 No Content\r\n\r\n"], calls=2) == [(204, b"")] * 2


def test_a_connection_receives_a_model_without_keeping_it() -> None:
    length = 3 << 20
    assert (
        answers([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length, bytes(length)], calls=2) == [(200, b"")] * 2
    )
