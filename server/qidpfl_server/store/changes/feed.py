"""Hears of the commits of other processes as soon as they happen: LISTEN of PostgreSQL, on a connection of its own."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import structlog
from sqlalchemy import Engine

from ..database import separate_connection
from ..store_clock import DatabaseTime
from .known import Change

CHANNEL = "qidpfl_changes"

_log = structlog.get_logger()
# How often the thread looks whether it is to stop, whether the connection still works, and for a new connection.
_STOP_CHECK_S = 0.5
_CHECK_EVERY_S = 5.0
_RECONNECT_AFTER_S = 1.0


class ChangeFeed:
    """Calls `on_change` for every announced commit, also those of this process, in a thread of its own.

    It also compares the clocks every few seconds. After an outage it connects again by itself, and calls
    `on_connected`: commits of the outage are not announced.
    """

    def __init__(
        self,
        engine: Engine,
        database_time: DatabaseTime,
        on_change: Callable[[Change], None],
        on_connected: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._time = database_time
        self._on_change = on_change
        self._on_connected = on_connected
        self._stopping = threading.Event()
        # Whether commits are announced now. False during the check of a connection, which may take long to fail.
        self.connected = False
        self._is_logged = False
        self._thread = threading.Thread(target=self._run, name="change-feed", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and its connection."""
        self._stopping.set()
        self._thread.join(2 * _STOP_CHECK_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listen()
            except Exception as error:
                if not self._stopping.is_set() and not self._is_logged:
                    self._is_logged = True
                    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                    _log.warning("announcements_interrupted", reason=reason, instead="a look at the store every second")
            finally:
                self.connected = False
            self._stopping.wait(_RECONNECT_AFTER_S)

    def _listen(self) -> None:
        """Pass on announcements until the connection fails or the feed stops."""
        # The connections of the pool serve the transactions.
        with separate_connection(self._engine) as connection:
            connection.execute(f"LISTEN {CHANNEL}")
            self.connected = True
            if self._is_logged:
                self._is_logged = False
                _log.info("announcements_resumed")
            self._on_connected()
            next_check = time.monotonic() + _CHECK_EVERY_S
            while not self._stopping.is_set():
                for announced in connection.notifies(timeout=_STOP_CHECK_S):
                    # A message of another program on this channel is of no interest.
                    with suppress(ValueError):
                        self._on_change(Change.of(announced.payload))
                if time.monotonic() >= next_check:
                    self.connected = False
                    self._time.measure(connection)
                    self.connected = True
                    next_check = time.monotonic() + _CHECK_EVERY_S
