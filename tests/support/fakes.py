"""Fakes for the ports of the server."""

from qidpfl_server.clock import SECOND, Micros, seconds


class FakeClock:
    """A `Clock` that stands still until a test advances it."""

    def __init__(self, start: Micros = 1_800_000_000 * SECOND) -> None:
        self._now = start

    def now(self) -> Micros:
        return self._now

    def advance(self, duration_s: float) -> Micros:
        """Move the time forward; the new time."""
        self._now += seconds(duration_s)
        return self._now

    def move_past(self, moment: Micros) -> None:
        """Move to just after a deadline; never back."""
        self._now = max(self._now, moment + 1)
