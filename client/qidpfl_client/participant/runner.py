"""Runs one participant until its task has ended, across outages of the coordinator."""

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from qidpfl_shared.core import arguments
from qidpfl_shared.protocol.messages import Announcement

from ..errors import NoTrustedConnection, Unavailable, Unreachable
from ..sdk.retries import Retries
from .delivery import IMMEDIATE_DELIVERY, DeliveryPolicy
from .participant import RetryLater, TaskParticipant
from .session import Enrolment
from .token_rotation import TokenRotation
from .waiting import EnrolmentWatch

# Few retries per call: the participant itself retries for minutes.
SHORT_RETRIES = Retries(attempts=3, timeout_s=20.0, wait_initial_s=0.2, wait_max_s=2.0, jitter_s=0.3)
_LONG_POLL_S = 30.0
_LONGEST_PAUSE_S = 15.0
_SHORTEST_POLL_S = 0.2


@dataclass
class ReconnectPolicy:
    """How long a client waits for a coordinator that does not answer.

    An outage may last `patience_s`. Before the first answer ever, the client waits only `first_contact_s`: a wrong
    address is then reported soon.
    """

    patience_s: float
    first_contact_s: float
    report: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _since: float | None = field(default=None, init=False)
    _failures: int = field(default=0, init=False)
    _ever_connected: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        arguments.non_negative("patience", self.patience_s)
        arguments.non_negative("first contact", self.first_contact_s)

    @property
    def is_disconnected(self) -> bool:
        """Whether the coordinator has not answered since the last failure."""
        return self._since is not None

    def connected(self) -> None:
        """Record an answer of the coordinator: the outage is over."""
        if self._since is not None and self._ever_connected:
            self.report("the coordinator is back")
        self._since, self._failures, self._ever_connected = None, 0, True

    def pause_s(self, error: Unreachable | Unavailable) -> float:
        """The seconds to wait before the next try; raises `error` when the outage has lasted too long.

        Pauses grow and are random, so that many clients do not return at the same moment.
        """
        if isinstance(error, NoTrustedConnection) and not self._ever_connected:
            raise error
        now = self.clock()
        if self._since is None:
            self._since = now
            self.report(f"{error}; trying again")
        self._failures += 1
        left = self._since + (self.patience_s if self._ever_connected else self.first_contact_s) - now
        if left <= 0:
            raise error
        longest = min(_LONGEST_PAUSE_S, 0.5 * 2.0**self._failures)
        return min(left, random.uniform(longest / 2, longest))


@dataclass
class PollPace:
    """Keeps the starts of two polls apart: a coordinator that answers at once, again and again, costs few requests."""

    clock: Callable[[], float] = time.monotonic
    _next_at: float = field(default=-math.inf, init=False)

    def wait_s(self) -> float:
        """The seconds to wait before the next poll. The caller waits and then polls."""
        now = self.clock()
        start = max(now, self._next_at)
        self._next_at = start + _SHORTEST_POLL_S
        return start - now


def run_until_finished(
    enrolment: Enrolment,
    *,
    patience_s: float,
    first_contact_s: float,
    delivery: DeliveryPolicy = IMMEDIATE_DELIVERY,
    slots: bool = True,
    rotation: TokenRotation | None = None,
) -> Announcement:
    """Join the task and answer every round until it has ended; returns the last announcement."""
    reconnect = ReconnectPolicy(patience_s=patience_s, first_contact_s=first_contact_s, report=enrolment.context.report)
    participant: TaskParticipant | None = None
    pace = PollPace()
    while True:
        time.sleep(pace.wait_s())
        try:
            if participant is None:
                session, context = enrolment.join(), enrolment.context
                watch = EnrolmentWatch(context.api, session.spec, context.report, context.countdown)
                participant = TaskParticipant(context, session, delivery=delivery, slots=slots, watch=watch)
                reconnect.connected()
            if rotation is not None:
                rotation.rotate_if_due(enrolment.context.api, enrolment.context.journal)
            # After an outage, poll once without waiting: any answer ends the outage, news or not.
            end = participant.step(wait_s=0 if reconnect.is_disconnected else _LONG_POLL_S)
            reconnect.connected()
            if end is not None:
                return end
        except RetryLater as pause:
            reconnect.connected()
            time.sleep(pause.seconds)
        except (Unreachable, Unavailable) as error:
            time.sleep(reconnect.pause_s(error))
