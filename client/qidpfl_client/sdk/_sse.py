"""A task's live feed: server-sent events, each of bounded size, resumed after the last one that was seen."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import httpx

from qidpfl_shared.protocol.messages import Event

from ..errors import Unreachable
from .transport import SMALL, Answer, Call, Channel, untrusted

_KEEP_ALIVE = b":"


def follow(channel: Channel, call: Call, *, after: int, ended: Callable[[], bool]) -> Iterator[Event]:
    """Events from `after` on until the task has ended.

    A connection that brought neither an event nor a second keep-alive counts as failed; after as many of them in a
    row as there are attempts, the feed is given up.
    """
    failed = 0
    while True:
        resumed = replace(call, headers={**call.headers, "Last-Event-ID": str(after)})
        signs = 0
        for event in _connection(channel, resumed):
            signs += 1
            if event is not None:
                if event.id <= after:
                    raise untrusted(call, f"event {event.id} after event {after}")
                after, signs = event.id, signs + 1
                yield event
        if signs < 2:
            # The feed of a task that has ended closes; so does that of a coordinator that stops.
            if ended():
                return
            failed += 1
            if failed >= channel.retries.attempts:
                raise Unreachable(f"{channel.where} breaks the feed off again and again")
            time.sleep(channel.retries.wait_initial_s)
        else:
            failed = 0


def _connection(channel: Channel, call: Call) -> Iterator[Event | None]:
    """What one connection brings until it ends or breaks: events, and None for a keep-alive."""
    with closing(channel.open(call)) as response:
        data = b""
        for line in _lines(response, call):
            if line.startswith(_KEEP_ALIVE):
                yield None
            elif line.startswith(b"data:"):
                data += line.removeprefix(b"data:").strip()
                if len(data) > SMALL:
                    raise untrusted(call, "an event without end")
            elif not line and data:
                yield Answer(call, response.status_code, data).read(Event)
                data = b""


def _lines(response: httpx.Response, call: Call) -> Iterator[bytes]:
    """The lines of a body, none longer than the limit; a broken connection ends them."""
    rest = b""
    try:
        for piece in response.iter_bytes():
            *whole, rest = (rest + piece).split(b"\n")
            yield from (line.rstrip(b"\r") for line in whole)
            if len(rest) > SMALL:
                raise untrusted(call, "a line without end")
    except httpx.TransportError:
        return
