"""A flood of small requests from a process of its own, so that it does not slow the test's own honest clients."""

import asyncio
import multiprocessing
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from urllib.parse import urlsplit

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_processes = multiprocessing.get_context("spawn")


@dataclass
class Flood:
    """What a flood has achieved: how many answers of each status it got, and the Retry-After headers among them."""

    statuses: Counter[int] = field(default_factory=Counter)
    waits: set[int] = field(default_factory=set)


@contextmanager
def flooded(
    url: str, requests: Sequence[bytes], *, connections: int, source: str = "127.0.0.1", reconnect: bool = False
) -> Iterator[Flood]:
    """Send these requests again and again on several connections during the `with` block.

    With `reconnect` every request has a connection of its own.
    """
    flood, answers = Flood(), _processes.Queue()
    over = _processes.Event()
    attacker = _processes.Process(
        target=_attack, args=(url, list(requests), connections, source, reconnect, over, answers), daemon=True
    )
    attacker.start()
    # The attacker says once that it has begun, and at the end what it got.
    answers.get(timeout=60)
    try:
        yield flood
    finally:
        over.set()
        flood.statuses, flood.waits = answers.get(timeout=60)
        attacker.join(timeout=60)


def http_request(method: str, path: str, token: str | None = None, body: bytes = b"") -> bytes:
    """A request as bytes."""
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", "Content-Type: application/json"]
    lines += [] if token is None else [f"Authorization: Bearer {token}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _attack(
    url: str,
    requests: list[bytes],
    connections: int,
    source: str,
    reconnect: bool,
    over: "multiprocessing.synchronize.Event",
    answers: "Queue[object]",
) -> None:
    answers.put("begun")
    answers.put(asyncio.run(_attack_until(url, requests, connections, source, reconnect, over)))


async def _attack_until(
    url: str,
    requests: list[bytes],
    connections: int,
    source: str,
    reconnect: bool,
    over: "multiprocessing.synchronize.Event",
) -> tuple[Counter[int], set[int]]:
    statuses: Counter[int] = Counter()
    waits: set[int] = set()
    address = urlsplit(url)

    async def keep_on(number: int) -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                reader, writer = await asyncio.open_connection(address.hostname, address.port, local_addr=(source, 0))
                try:
                    own = requests[number % len(requests) :] + requests
                    await _converse(reader, writer, own[: 1 if reconnect else None], statuses, waits, once=reconnect)
                finally:
                    writer.transport.abort()
            await asyncio.sleep(0)

    attackers = [asyncio.create_task(keep_on(number)) for number in range(connections)]
    await asyncio.to_thread(over.wait)
    for attacker in attackers:
        attacker.cancel()
    await asyncio.gather(*attackers, return_exceptions=True)
    return statuses, waits


async def _converse(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    requests: list[bytes],
    statuses: Counter[int],
    waits: set[int],
    *,
    once: bool,
) -> None:
    """Send one request after the other, each as soon as the answer to the one before has arrived; all of them `once`,
    or for ever.
    """
    while True:
        for request in requests:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            found = _LENGTH.search(head)
            await reader.readexactly(int(found[1]) if found else 0)
            statuses[int(head[9:12])] += 1
            waits.update(int(wait) for wait in re.findall(rb"(?i)retry-after: (\d+)", head))
        if once:
            return
