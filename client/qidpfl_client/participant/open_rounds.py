"""The check before an upload: whether the round still takes updates. A late update is a release without payment."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from qidpfl_shared.protocol.messages import RoundOffer, RoundState

from ..sdk.client import TaskApi


@dataclass(frozen=True)
class _OpenRound:
    """The attempt of a round that takes updates until it closes, as an answer of the coordinator has shown it."""

    task_id: str
    round_number: int
    attempt: int
    asked_at: float
    closes_at: float


@dataclass
class OpenRounds:
    """Tells which attempt of a round takes updates now.

    The members of a fleet ask the same. They share what any of them has learnt in the last `shared_s` seconds, counted
    from its question. By default a client asks before each upload.
    """

    shared_s: float = 0.0
    clock: Callable[[], float] = time.monotonic
    _latest: _OpenRound | None = field(default=None, init=False)

    def attempt(self, api: TaskApi, round_number: int) -> int | None:
        """The attempt that takes updates; None if there is none."""
        now, known = self.clock(), self._latest
        if (
            known is not None
            and (known.task_id, known.round_number) == (api.task_id, round_number)
            and now < min(known.asked_at + self.shared_s, known.closes_at)
        ):
            return known.attempt
        news = api.announcement(after=(round_number, 0), wait_s=0)
        if news is None:
            # With several coordinators, this one may learn of the round later than the one that announced it.
            result = api.round(round_number)
            return result.attempt if result.state is RoundState.OPEN else None
        offer = news.round
        if offer is None or offer.round_number != round_number or offer.deliver_in_s <= 0:
            return None
        self.note(api, offer, asked_at=now)
        return offer.attempt

    def note(self, api: TaskApi, offer: RoundOffer, *, asked_at: float) -> None:
        """Remember an announcement for the other members."""
        closes_at = asked_at + offer.deliver_in_s
        self._latest = _OpenRound(api.task_id, offer.round_number, offer.attempt, asked_at, closes_at)
