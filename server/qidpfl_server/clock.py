"""Time in whole microseconds since 1970, in UTC. The clock is an argument, so that a test can set it."""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

Micros = int
SECOND = 1_000_000


class Clock(Protocol):
    def now(self) -> Micros:
        """The time."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> Micros:
        return time.time_ns() // 1000


def seconds(duration_s: float) -> Micros:
    """A duration in microseconds."""
    return round(duration_s * SECOND)


def as_datetime(moment: Micros) -> datetime:
    """A moment as messages carry it."""
    return datetime.fromtimestamp(moment / SECOND, UTC)


def as_micros(moment: datetime) -> Micros:
    """The moment of a message, exactly."""
    return (moment - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


def seconds_left(until: Micros, now: Micros) -> float:
    """The seconds until a deadline, at least 0."""
    return max(0, until - now) / SECOND
