"""A fleet: many participants in one process, for testbeds of hundreds of clients on one machine.

Every member has its own identity, journal and privacy value. One watcher thread waits for announcements for all
members; worker threads then step the members that have something to do. One of them computes at a time, while the
others wait for the coordinator or the disk. Memory holds one data set and one network per training.
"""

import heapq
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from qidpfl_shared.protocol.messages import Announcement, TaskState

from ..errors import ClientError, Unavailable, Unreachable
from ..participant.delivery import IMMEDIATE_DELIVERY, DeliveryPolicy
from ..participant.participant import RetryLater, TaskParticipant
from ..participant.runner import PollPace, ReconnectPolicy
from ..participant.session import Enrolment
from ..participant.waiting import EnrolmentWatch
from ..sdk.client import TaskApi
from .turn import Turn

_LONG_POLL_S = 20.0
_FIRST_POLL_S = 5.0
_PAUSE_S = 1.0
# Members poll by themselves if the watcher has been silent for this long.
_LONGEST_SILENCE_S = 2 * _LONG_POLL_S


@dataclass(kw_only=True)
class Member:
    """One participant of the fleet, and its state."""

    enrolment: Enrolment
    reconnect: ReconnectPolicy
    delivery: DeliveryPolicy = IMMEDIATE_DELIVERY
    participant: TaskParticipant | None = None
    end: Announcement | None = None
    failure: Exception | None = None
    busy: bool = False
    # News came while the member was busy: it is stepped again as soon as it is free.
    behind: bool = False

    @property
    def done(self) -> bool:
        return self.end is not None or self.failure is not None

    def step(self) -> float | None:
        """Do the next steps. Returns the seconds until the next try, or None to wait for news."""
        try:
            if self.participant is None:
                # A testbed has no time to hide: updates leave as soon as they are ready.
                self.participant = TaskParticipant(
                    self.enrolment.context, self.enrolment.join(), delivery=self.delivery, slots=False
                )
                self.reconnect.connected()
            self.end = self.participant.step(wait_s=0)
            self.reconnect.connected()
        except RetryLater as pause:
            self.reconnect.connected()
            return pause.seconds
        except (Unreachable, Unavailable) as error:
            return self.reconnect.pause_s(error)
        return None


@dataclass(order=True)
class _Due:
    at: float
    order: int
    member: Member = field(compare=False)


class Fleet:
    """Runs its members until the task has ended for all of them. A thread steps a member while it holds the `turn`."""

    def __init__(
        self,
        members: Sequence[Member],
        *,
        workers: int,
        watch: TaskApi,
        turn: Turn,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._members = members
        self._workers = workers
        self._watch = watch
        self._turn = turn
        self._report = report
        self._awaited: EnrolmentWatch | None = None
        # Guards what follows, and the fields `busy` and `behind` of the members.
        self._changed = threading.Condition()
        self._ready: queue.SimpleQueue[Member | None] = queue.SimpleQueue()
        self._due: list[_Due] = []
        self._left = len(members)
        self._failure: BaseException | None = None
        self._watcher: threading.Thread | None = None
        self._stopping = threading.Event()

    def run(self) -> None:
        """Step the members until all are done. Each one then has its result in `end` or `failure`."""
        workers = [threading.Thread(target=self._work, name=f"member_{number}") for number in range(self._workers)]
        try:
            self._step_all()
            for worker in workers:
                worker.start()
            with self._changed:
                while self._left and self._failure is None:
                    self._wait()
        finally:
            self._stopping.set()
            for _ in workers:
                self._ready.put(None)
            for worker in workers:
                if worker.ident is not None:
                    worker.join()
        if self._failure is not None:
            raise self._failure

    def _wait(self) -> None:
        """Wait for a member that is due, for the end, or for news that the watcher has missed."""
        due_in = self._due[0].at - time.monotonic() if self._due else _LONGEST_SILENCE_S
        if due_in > 0 and self._changed.wait(due_in):
            return
        if self._due:
            if self._due[0].at <= time.monotonic():
                self._submit(heapq.heappop(self._due).member)
        else:
            self._submit_all()

    def _step_all(self) -> None:
        """Step all members: there is news."""
        with self._changed:
            self._due.clear()
            self._submit_all()
            self._changed.notify_all()

    def _submit_all(self) -> None:
        for member in self._members:
            self._submit(member)

    def _submit(self, member: Member) -> None:
        if member.done:
            return
        if member.busy:
            member.behind = True
            return
        member.busy = True
        self._ready.put(member)

    def _work(self) -> None:
        """Step members until the fleet stops."""
        while (member := self._ready.get()) is not None and not self._stopping.is_set():
            pause: float | None = None
            try:
                with self._turn:
                    pause = member.step()
            except Exception as error:
                member.failure = error
                member.enrolment.context.report(f"gives up: {error}")
            except BaseException as error:
                self._failure = error
            with self._changed:
                self._finished(member, pause)

    def _finished(self, member: Member, pause: float | None) -> None:
        behind, member.busy, member.behind = member.behind, False, False
        if member.done or self._failure is not None:
            self._left -= 1
            if not self._left or self._failure is not None:
                self._changed.notify_all()
        elif behind:
            self._submit(member)
        elif pause is not None:
            heapq.heappush(self._due, _Due(time.monotonic() + pause, id(member), member))
            self._changed.notify_all()
        if self._watcher is None and _has_joined(member):
            self._watcher = threading.Thread(target=self._watch_for_news, name="watcher", daemon=True)
            self._watcher.start()

    def _any_token(self) -> str | None:
        """The token of a member that has joined and not failed."""
        return next((member.enrolment.context.api.token for member in self._members if _has_joined(member)), None)

    def _watch_for_news(self) -> None:
        seen, pace = (0, 0), PollPace()
        while not self._stopping.wait(pace.wait_s()):
            try:
                self._watch.token = self._any_token()
                # Short polls before the first round: the others are counted in between.
                news = self._watch.announcement(after=seen, wait_s=_LONG_POLL_S if seen != (0, 0) else _FIRST_POLL_S)
            except ClientError:
                self._stopping.wait(_PAUSE_S)
                continue
            except RuntimeError:
                if self._stopping.is_set():
                    # The fleet has ended and closed the connection during this poll.
                    return
                raise
            if news is None or news.task_state is TaskState.ENROLLING:
                if seen == (0, 0):
                    self._note_awaited()
                continue
            if news.round is None:
                self._step_all()
                self._stopping.wait(_PAUSE_S)
                continue
            latest = (news.round.round_number, news.round.attempt)
            if latest != seen:
                # The same round again is no news: a hostile coordinator could wake all members with every answer.
                self._step_all()
                seen = latest

    def _note_awaited(self) -> None:
        """Say once for all members how many clients the task waits for."""
        if self._awaited is None:
            specs = [member.participant.spec for member in self._members if member.participant is not None]
            if not specs:
                return
            self._awaited = EnrolmentWatch(self._watch, specs[0], self._report)
        self._awaited.note()


def _has_joined(member: Member) -> bool:
    return member.participant is not None and member.failure is None
