"""The progress display of a command: lines with times, and a spinner on a terminal."""

import sys
import time
from dataclasses import dataclass
from datetime import datetime

from rich.console import Console
from rich.status import Status
from rich.text import Text

from qidpfl_shared.protocol.errors import one_line


class ProgressDisplay:
    """Writes lines with times to standard error. On a terminal a spinner also shows the latest one."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._status: Status | None = None

    def __enter__(self) -> "ProgressDisplay":
        if self._console.is_terminal:
            self._status = self._console.status("connecting")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, line: str) -> None:
        """Show a line. Parts of it may come from the coordinator: only printable characters reach the terminal."""
        line = one_line(line)
        stamped = f"{datetime.now():%H:%M:%S} {line}"
        if self._status is None:
            # One write per line, because the members of a fleet write at the same time.
            sys.stderr.write(f"{stamped}\n")
            sys.stderr.flush()
        else:
            self._console.print(stamped)
            # A text, because the spinner reads markup in a string.
            self._status.update(Text(line))

    def count_down(self, text: str, left_s: float) -> None:
        """On a terminal: show a text and the seconds that are left, until the next line."""
        if self._status is not None:
            self._status.update(_Countdown(one_line(text), time.monotonic() + left_s))


@dataclass(frozen=True)
class _Countdown:
    """A text with the seconds until a time. The spinner draws it anew several times a second."""

    text: str
    until: float

    def __rich__(self) -> Text:
        return Text(f"{self.text}; {max(0.0, self.until - time.monotonic()):.0f} s left")
