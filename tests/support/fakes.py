"""Fakes for the ports of the server."""

import os
from collections.abc import Collection
from functools import partial
from pathlib import Path
from unittest.mock import patch

from qidpfl_server.clock import SECOND, Micros, SystemClock, seconds


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


class ShiftedClock(SystemClock):
    """The machine's clock, ahead by the seconds in a file, so that a test can move the deadlines of a live server."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def now(self) -> Micros:
        ahead_s = float(self._file.read_text()) if self._file.exists() else 0.0
        return super().now() + seconds(ahead_s)


def shift_clock(file: Path, ahead_s: float) -> None:
    """Set the clocks of this file ahead. The file is replaced at once: a clock never reads a part of it."""
    partial_file = file.with_suffix(".new")
    partial_file.write_text(str(ahead_s))
    os.replace(partial_file, file)


def serve_with_clock(file: Path) -> None:
    """Let `serve` use a shifted clock in this process."""
    patch("qidpfl_server.cli.serve.SystemClock", partial(ShiftedClock, file)).start()


class NoClaims:
    """Claims for blobs that no transaction uses: a sweep gets all that it asks for."""

    def __init__(self) -> None:
        self.claimed: set[str] = set()
        self.finished: set[str] = set()

    def claim(self, digests: Collection[str], since: Micros) -> list[str]:
        self.claimed |= set(digests)
        return sorted(digests)

    def finish(self, digests: Collection[str]) -> None:
        self.finished |= set(digests)
