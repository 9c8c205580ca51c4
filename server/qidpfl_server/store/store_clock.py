"""The time of the database, so that all coordinators of a store have the same deadlines, however their clocks differ.

A SQLite store has one coordinator, whose own clock is its time.
"""

import time
from typing import Any

import structlog
from sqlalchemy import Engine

from ..clock import SECOND, Clock, Micros, SystemClock
from .database import separate_connection, translated_errors

_log = structlog.get_logger()
_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
# A slower answer says too little about the moment at which the database read its clock.
_LONGEST_ANSWER = SECOND // 2
# Smaller differences are the noise of the measurement.
_SMALLEST_CORRECTION = SECOND // 50
_WORTH_A_WARNING = SECOND
_TRIES = 5


class DatabaseTime:
    """How far the clock of this machine is ahead of the clock of the database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ahead: Micros | None = None if engine.dialect.name == "postgresql" else 0

    @property
    def ahead(self) -> Micros:
        """Measured at the first use, which may block and raise `StoreBusy`."""
        if self._ahead is None:
            with translated_errors(), separate_connection(self._engine) as connection:
                for _ in range(_TRIES):
                    if self.measure(connection):
                        break
        return self._ahead or 0

    def measure(self, connection: Any) -> bool:
        """Measure again, with a connection of the driver; False if the answer took too long."""
        before = time.time_ns() // 1000
        theirs = int(connection.execute(_NOW).fetchone()[0])
        after = time.time_ns() // 1000
        if not 0 <= after - before <= _LONGEST_ANSWER:
            return False
        ahead = (before + after) // 2 - theirs
        if self._ahead is None or abs(ahead - self._ahead) >= _SMALLEST_CORRECTION:
            if abs(ahead - (self._ahead or 0)) >= _WORTH_A_WARNING:
                _log.warning("clock_differs", ahead_s=ahead / SECOND, instead="the time of the database is used")
            self._ahead = ahead
        return True


class StoreClock:
    """The clock of this machine, corrected to that of the database."""

    def __init__(self, database: DatabaseTime, machine: Clock | None = None) -> None:
        self._database = database
        self._machine = SystemClock() if machine is None else machine

    def now(self) -> Micros:
        """The time."""
        return self._machine.now() - self._database.ahead
