"""Taking part until the task has ended, across outages of the coordinator."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from qidpfl_shared.core import arguments
from qidpfl_shared.protocol.messages import Announcement

from ..errors import Unavailable, Unreachable
from ..sdk.client import Retries
from .conduct import HONEST, Conduct
from .participant import Later, Participant
from .session import Applicant

# The participant tries again by itself, for minutes; one call need not.
SHORT_RETRIES = Retries(attempts=3, timeout_s=20.0, wait_initial_s=0.2, wait_max_s=2.0, jitter_s=0.3)
_LONG_POLL_S = 30.0
_LONGEST_PAUSE_S = 15.0


@dataclass
class Outage:
    """How long the coordinator has been away, and how long that is borne: briefly before it was ever there."""

    patience_s: float
    first_contact_s: float
    report: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _since: float | None = field(default=None, init=False)
    _failures: int = field(default=0, init=False)
    _met: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        arguments.non_negative("patience", self.patience_s)
        arguments.non_negative("first contact", self.first_contact_s)

    @property
    def lasts(self) -> bool:
        """Whether the coordinator has not answered since the last failure."""
        return self._since is not None

    def over(self) -> None:
        """The coordinator has answered."""
        if self._since is not None and self._met:
            self.report("the coordinator is back")
        self._since, self._failures, self._met = None, 0, True

    def pause_s(self, error: Unreachable | Unavailable) -> float:
        """How long to wait before the next try; raises the error once the patience is over.

        Pauses grow and are random, so that many clients do not come back at the same moment.
        """
        now = self.clock()
        if self._since is None:
            self._since = now
            self.report(f"{error}; trying again")
        self._failures += 1
        left = self._since + (self.patience_s if self._met else self.first_contact_s) - now
        if left <= 0:
            raise error
        longest = min(_LONGEST_PAUSE_S, 0.5 * 2.0**self._failures)
        return min(left, random.uniform(longest / 2, longest))


def take_part(
    applicant: Applicant, *, patience_s: float, first_contact_s: float, conduct: Conduct = HONEST
) -> Announcement:
    """Join, and answer every round until the task has ended; its last announcement comes back."""
    outage = Outage(patience_s=patience_s, first_contact_s=first_contact_s, report=applicant.report)
    participant: Participant | None = None
    while True:
        try:
            if participant is None:
                participant = Participant(applicant, applicant.take_seat(), conduct=conduct)
                outage.over()
            # After an outage a short look first: it is over when the coordinator answers, not when there is news.
            end = participant.step(wait_s=0 if outage.lasts else _LONG_POLL_S)
            outage.over()
            if end is not None:
                return end
        except Later as pause:
            outage.over()
            time.sleep(pause.seconds)
        except (Unreachable, Unavailable) as error:
            time.sleep(outage.pause_s(error))
