"""A fleet: many participants in one process, for testbeds of hundreds of clients on one machine.

Every member has its own identity, journal and privacy value. One watcher thread waits for announcements for all
members; a pool of workers then steps the members that have something to do. Memory holds one data set and one network
per worker.
"""

import heapq
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from qidpfl_shared.protocol.messages import Announcement, TaskState

from ..errors import ClientError, Unavailable, Unreachable
from ..participant.participant import IMMEDIATE_DELIVERY, DeliveryPolicy, RetryLater, TaskParticipant
from ..participant.runner import PollPace, ReconnectPolicy
from ..participant.session import Enrolment
from ..participant.waiting import EnrolmentWatch
from ..sdk.client import TaskApi

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


@dataclass(frozen=True)
class _Finished:
    member: Member
    future: "Future[float | None]"


@dataclass(frozen=True)
class _News:
    pass


@dataclass(order=True)
class _Due:
    at: float
    order: int
    member: Member = field(compare=False)


class Fleet:
    """Runs its members until the task has ended for all of them."""

    def __init__(
        self,
        members: Sequence[Member],
        *,
        workers: int,
        watch: TaskApi,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._members = members
        self._workers = workers
        self._watch = watch
        self._report = report
        self._awaited: EnrolmentWatch | None = None
        self._inbox: queue.SimpleQueue[_Finished | _News] = queue.SimpleQueue()
        self._due: list[_Due] = []
        self._stopping = threading.Event()

    def run(self) -> None:
        """Step the members until all are done. Each one then has its result in `end` or `failure`."""
        pool = ThreadPoolExecutor(self._workers, thread_name_prefix="member")
        watcher: threading.Thread | None = None
        try:
            for member in self._members:
                self._submit(pool, member)
            while not all(member.done for member in self._members):
                self._handle(pool)
                if watcher is None and self._any_token() is not None:
                    watcher = threading.Thread(target=self._watch_for_news, name="watcher", daemon=True)
                    watcher.start()
        finally:
            self._stopping.set()
            pool.shutdown(cancel_futures=True)

    def _handle(self, pool: ThreadPoolExecutor) -> None:
        due_in = self._due[0].at - time.monotonic() if self._due else _LONGEST_SILENCE_S
        try:
            message = self._inbox.get(timeout=max(0.0, due_in))
        except queue.Empty:
            if self._due:
                self._submit(pool, heapq.heappop(self._due).member)
                return
            message = _News()
        if isinstance(message, _Finished):
            self._finished(pool, message)
        else:
            self._due.clear()
            for member in self._members:
                self._submit(pool, member)

    def _submit(self, pool: ThreadPoolExecutor, member: Member) -> None:
        if member.done:
            return
        if member.busy:
            member.behind = True
            return
        member.busy = True
        pool.submit(member.step).add_done_callback(lambda future: self._inbox.put(_Finished(member, future)))

    def _finished(self, pool: ThreadPoolExecutor, message: _Finished) -> None:
        member, member.busy = message.member, False
        behind, member.behind = member.behind, False
        try:
            pause = message.future.result()
        except Exception as error:
            member.failure = error
            member.enrolment.context.report(f"gives up: {error}")
            return
        if behind:
            self._submit(pool, member)
        elif pause is not None:
            heapq.heappush(self._due, _Due(time.monotonic() + pause, id(member), member))

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
                self._inbox.put(_News())
                self._stopping.wait(_PAUSE_S)
                continue
            latest = (news.round.round_number, news.round.attempt)
            if latest != seen:
                # The same round again is no news: a hostile coordinator could wake all members with every answer.
                self._inbox.put(_News())
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
