"""The live feed of a task: server-sent events of bounded size, resumed after the last seen one."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import httpx

from qidpfl_shared.protocol.messages import Event

from ..errors import Unreachable
from .answers import SMALL
from .transport import ApiResponse, Call, Channel, untrusted

_KEEP_ALIVE = b":"


def follow(channel: Channel, call: Call, *, after: int, ended: Callable[[], bool]) -> Iterator[Event]:
    """The events after `after`, until the task has ended.

    A connection that brings neither an event nor a second keep-alive counts as failed. After `attempts` failed
    connections in a row this raises `Unreachable`.
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
            # A feed closes when the task has ended, and also when the coordinator stops: ask which it was.
            if ended():
                return
            failed += 1
            if failed >= channel.retries.attempts:
                raise Unreachable(f"{channel.where} closes the event feed repeatedly")
            time.sleep(channel.retries.wait_initial_s)
        else:
            failed = 0


def _connection(channel: Channel, call: Call) -> Iterator[Event | None]:
    """The events of one connection until it ends or breaks; None stands for a keep-alive."""
    with closing(channel.open(call)) as response:
        data = b""
        for line in _lines(response, call):
            if line.startswith(_KEEP_ALIVE):
                yield None
            elif line.startswith(b"data:"):
                data += line.removeprefix(b"data:").strip()
                if len(data) > SMALL:
                    raise untrusted(call, "an event is too long")
            elif not line and data:
                yield ApiResponse(call, response.status_code, data).read(Event)
                data = b""


def _lines(response: httpx.Response, call: Call) -> Iterator[bytes]:
    """The lines of a body, each within the limit. A broken connection ends them."""
    rest = b""
    try:
        for piece in response.iter_bytes():
            *whole, rest = (rest + piece).split(b"\n")
            yield from (line.rstrip(b"\r") for line in whole)
            if len(rest) > SMALL:
                raise untrusted(call, "a line is too long")
    except httpx.TransportError:
        return
