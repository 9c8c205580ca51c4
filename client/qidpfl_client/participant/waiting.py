"""What a client says while its task still waits for others: who is there, how many are needed, and the time left."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from qidpfl_shared.protocol.messages import SelectionVerdict
from qidpfl_shared.protocol.task_spec import TaskSpec

from ..errors import ClientError
from ..sdk.client import TaskApi

Report = Callable[[str], None]
_ASK_EVERY_S = 2.0
# Shows a text and the seconds that are left, until the next line.
Countdown = Callable[[str, float], None]


def no_countdown(text: str, left_s: float) -> None:
    """For clients without a terminal."""


@dataclass
class EnrolmentWatch:
    """Reports how many clients are ready, each time that the number has changed."""

    api: TaskApi
    spec: TaskSpec
    report: Report
    countdown: Countdown = no_countdown
    _known: int | None = field(default=None, init=False)
    _asked_at: float = field(default=-math.inf, init=False)

    def note(self) -> None:
        """Ask the coordinator, and report news. An error is not reported: the next poll meets it again.

        A hostile coordinator may answer every poll at once, so the client asks again only after some seconds.
        """
        now = time.monotonic()
        if now - self._asked_at < _ASK_EVERY_S:
            return
        self._asked_at = now
        try:
            verdict = self.api.selection()
        except ClientError:
            return
        if verdict.selected is not None:
            return
        text = awaited_clients(verdict, self.spec)
        if verdict.begins_in_s is not None and verdict.profiles >= self.spec.rounds.min_clients:
            text += f"; the first round opens in {verdict.begins_in_s:.0f} s at the latest"
            self.countdown("waiting for more clients", verdict.begins_in_s)
        if verdict.profiles != self._known:
            self._known = verdict.profiles
            self.report(text)


def awaited_clients(verdict: SelectionVerdict, spec: TaskSpec) -> str:
    """How many clients are ready, of how many.

    >>> from qidpfl_shared.protocol.presets import preset
    >>> awaited_clients(SelectionVerdict(profiles=4), preset("digits"))
    'waiting: 4 of 10 clients are ready, at least 3 are needed'
    """
    expected = spec.rounds.expected_clients
    of = "" if expected is None else f" of {expected}"
    return f"waiting: {verdict.profiles}{of} clients are ready, at least {spec.rounds.min_clients} are needed"
