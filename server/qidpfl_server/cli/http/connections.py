"""How many connections are open, in total and per address, and which one is closed when a new one needs its place.

Also what a connection has received of a request, and when it reads on.
"""

import asyncio
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl

from ...api.rates import AttemptRate, network_of
from ...api.uploads import OPEN_UPLOADS

# For the store, blobs, logs and libraries.
_RESERVED_FILES = 128
_WANTED_FILES = 65_536
# Connections beyond the limits, for health and operators.
_RESERVED_CONNECTIONS = 32
# New connections of one address. A client keeps its connection, so only a restart brings many at once.
_NEW_PER_S = 100.0
# A connection above that rate is not read for at most this time: honest clients of the same address wait as long.
_LONGEST_DELAY_S = 0.5
# A new connection looks for another one that has sent nothing among so many. It must stay cheap.
_LOOKED_AT = 16


@dataclass(frozen=True)
class ConnectionLimits:
    """The largest numbers of open connections; `per_address` None: no limit for one address."""

    total: int
    per_address: int | None
    reserved: int = _RESERVED_CONNECTIONS


def raise_file_limit() -> int:
    """Raise the soft limit of open files as far as the system allows; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED_FILES if hard == resource.RLIM_INFINITY else min(hard, _WANTED_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return _WANTED_FILES if soft == resource.RLIM_INFINITY else soft


def limits_within(files: int, *, total: int, per_address: int | None) -> ConnectionLimits:
    """The limits that leave enough files for the store, and for the uploads that keep their files open."""
    possible = files - _RESERVED_FILES - 2 * _RESERVED_CONNECTIONS
    possible -= min(OPEN_UPLOADS, possible // 2)
    return ConnectionLimits(total=min(total, max(1, possible)), per_address=per_address)


class Slot:
    """The place of one connection. It is idle until a whole request has arrived, and between requests."""

    def __init__(self, lane: "_Lane", address: "_Address") -> None:
        self._lane = lane
        self._address = address
        self._close: Callable[[], None] = lambda: None
        self._is_unread: Callable[[], bool] = lambda: False
        self._free = False
        self._paused = False

    @property
    def reserved(self) -> bool:
        """Whether the connection is beyond the limits, for health and operators only."""
        return self._lane.reserved

    def on_close(self, close: Callable[[], None], *, is_unread: Callable[[], bool] = lambda: False) -> None:
        """What closes the connection when another one needs its place.

        `is_unread` tells whether its first bytes wait for the server. The connection then keeps its place, if another
        one has none: it is not idle, the server is late.
        """
        self._close = close
        self._is_unread = is_unread
        if self in self._address.idle:
            self.set_idle(True)

    def is_unread(self) -> bool:
        """Whether first bytes have arrived that the server has not read yet."""
        return self._is_unread()

    def set_idle(self, idle: bool) -> None:
        """Idle connections are closed first, the longest idle one before the others."""
        if self._paused and not self._free:
            return
        self._address.idle.pop(self, None)
        if idle and not self._free:
            self._address.idle[self] = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The connection stays idle during the `with` block, also if bytes arrive on it: its caller must wait."""
        self.set_idle(True)
        self._paused = True
        try:
            yield
        finally:
            self._paused = False
            self.set_idle(False)

    def release(self) -> None:
        """Free the place. Repeats change nothing."""
        if not self._free:
            self._free = True
            self.set_idle(False)
            self._lane.forget(self._address)

    def evict(self) -> None:
        """Close the connection and free its place at once."""
        self.release()
        self._close()


class _Address:
    """The connections of one address."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.open = 0
        self.idle: dict[Slot, None] = {}

    def make_room(self) -> bool:
        """Close the connection that has been idle for the longest time; False if none is idle."""
        for candidate in list(islice(self.idle, _LOOKED_AT)):
            if not candidate.is_unread():
                break
            candidate.set_idle(True)
        slot = next(iter(self.idle), None)
        if slot is not None:
            slot.evict()
        return slot is not None


class _Lane:
    """Connections with a limit of their own."""

    def __init__(self, total: int, per_address: int | None, *, reserved: bool) -> None:
        self._total = total
        self._per_address = per_address
        self.reserved = reserved
        self._open = 0
        self._addresses: dict[str, _Address] = {}

    def admit(self, name: str) -> Slot | None:
        """A place for a new connection; None if all are taken by requests that are being answered."""
        known = self._addresses.get(name)
        if known is not None and self._per_address is not None and known.open >= self._per_address:
            if not known.make_room():
                return None
        elif self._open >= self._total and not self._make_room():
            return None
        address = self._addresses.setdefault(name, _Address(name))
        address.open += 1
        self._open += 1
        slot = Slot(self, address)
        slot.set_idle(True)
        return slot

    def forget(self, address: _Address) -> None:
        self._open -= 1
        address.open -= 1
        if not address.open:
            del self._addresses[address.name]

    def _make_room(self) -> bool:
        """Close an idle connection of the address that has the most connections."""
        candidates = [address for address in self._addresses.values() if address.idle]
        return bool(candidates) and max(candidates, key=lambda address: address.open).make_room()


class Connections:
    """The open connections of the server."""

    def __init__(self, limits: ConnectionLimits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._new = None if limits.per_address is None else AttemptRate(_NEW_PER_S, clock=clock)
        self._lanes = (
            _Lane(limits.total, limits.per_address, reserved=False),
            _Lane(limits.reserved, None, reserved=True),
        )
        places = limits.total if limits.per_address is None else min(limits.total, limits.per_address)
        self._most_waiting = places // 2
        self._waiting: dict[str, dict[asyncio.Event, None]] = {}

    def admit(self, host: str) -> Slot | None:
        """A place for a new connection of this host, in the reserved lane if there is no other; None: no place."""
        name = network_of(host)
        return next((slot for lane in self._lanes if (slot := lane.admit(name)) is not None), None)

    def delay_s(self, host: str) -> float:
        """Count a new connection of this host; returns the longest time in seconds that it waits before it is read.

        Setting up a connection costs as much as a request. A caller that makes one for every request gets few answers.
        """
        return 0.0 if self._new is None else min(self._new.take(network_of(host)), _LONGEST_DELAY_S)

    async def wait(self, host: str, delay_s: float) -> None:
        """Wait before a new connection of this host is read, while at most half the places of its address wait.

        One more ends the longest wait. Else the new ones would take the places of those that wait, and none is read.
        """
        waiting = self._waiting.setdefault(name := network_of(host), {})
        over = asyncio.Event()
        waiting[over] = None
        if len(waiting) > self._most_waiting:
            longest = next(iter(waiting))
            del waiting[longest]
            longest.set()
        with suppress(TimeoutError):
            try:
                await asyncio.wait_for(over.wait(), delay_s)
            finally:
                waiting.pop(over, None)
                if not waiting and self._waiting.get(name) is waiting:
                    del self._waiting[name]


class RequestBytes:
    """Counts the bytes of a request: those around its body, and what is left of a body of known length."""

    def __init__(self) -> None:
        self.in_header = True
        self.body_left = 0
        self._size = self.body = 0

    @property
    def framing(self) -> int:
        """Bytes of header, chunks and trailers; a body in chunks of a few bytes is allowed its usual framing."""
        return self._size - 16 * self.body

    def add(self, count: int) -> None:
        """Count bytes that are to be parsed."""
        if self.body_left:
            self.body_left -= count
        else:
            self._size += count

    def end_header(self, body_length: int) -> None:
        self.in_header = False
        self.body_left = body_length

    def add_body(self, count: int) -> None:
        self.body += count


class HeldFlow(FlowControl):
    """Reads nothing while it is held. uvicorn alone would go on reading after every answer."""

    def __init__(self, transport: Any) -> None:
        super().__init__(transport)
        self._held = False
        self._was_paused = False

    def pause_reading(self) -> None:
        self._was_paused = True
        super().pause_reading()

    def take_pause(self) -> bool:
        """Whether reading was paused at any time since the last call."""
        was_paused, self._was_paused = self._was_paused, self.read_paused
        return was_paused

    def hold(self) -> None:
        self._held = True
        self.pause_reading()

    def release(self) -> None:
        """Read on if reading was held."""
        if self._held:
            self._held = False
            self.resume_reading()

    def resume_reading(self) -> None:
        if not self._held:
            super().resume_reading()
