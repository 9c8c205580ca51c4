"""What a task waits for: missing clients, or the answers to its open round; and the time that is left."""

from dataclasses import dataclass

from qidpfl_shared.protocol.messages import RoundState, SelectionVerdict, TaskState
from qidpfl_shared.protocol.operators import AnswerState

from ...clock import Micros, seconds_left
from ...domain import ClientState, Task
from ...store.transaction import Transaction
from ..lifecycle import get_task, known_client
from ..overview import round_progress
from ..selection import selection_time, window_start
from ..views import selection_verdict

# More ordinals than these do not fit into a line.
_MOST_NAMED = 6


@dataclass(frozen=True, kw_only=True)
class AwaitedClients:
    """A task that waits for clients. `left_s` is None before the first client has come: then nothing is running out."""

    ready: int
    enrolled: int
    needed: int
    expected: int | None
    left_s: float | None

    def in_words(self) -> str:
        """One line for a terminal."""
        of = "" if self.expected is None else f" of {self.expected}"
        line = f"{self.ready}{of} clients are ready, at least {self.needed} are needed"
        if self.enrolled > self.ready:
            line += f", {self.enrolled - self.ready} more have enrolled"
        if self.left_s is None:
            return f"{line}; the enrolment window begins with the first client"
        if self.ready < self.needed:
            return f"{line}; it begins when they are here"
        return f"{line}; it begins in {self.left_s:.0f} s at the latest"


@dataclass(frozen=True, kw_only=True)
class AwaitedAnswers:
    """An open round, and the ordinals of the clients that it waits for."""

    round_number: int
    attempt: int
    delivered: int
    invited: int
    awaited: tuple[int, ...]
    left_s: float

    def in_words(self) -> str:
        """One line for a terminal."""
        attempt = f", attempt {self.attempt}" if self.attempt > 1 else ""
        named = ", ".join(map(str, self.awaited[:_MOST_NAMED]))
        more = len(self.awaited) - _MOST_NAMED
        whom = f"; waits for client{'s' if len(self.awaited) > 1 else ''} {named}" if self.awaited else ""
        others = f" and {more} more" if more > 0 else ""
        done = f"{self.delivered} of {self.invited} have delivered"
        return f"round {self.round_number}{attempt}: {done}{whom}{others}; {self.left_s:.0f} s left"


Waiting = AwaitedClients | AwaitedAnswers
_AWAITED = (AnswerState.AWAITED, AnswerState.DECLARED, AnswerState.JOINED)


def waiting_for(tx: Transaction, task: Task, now: Micros) -> Waiting | None:
    """What a task waits for now; None if it has ended, is paused, or is between two rounds."""
    if task.ended or task.paused:
        return None
    return awaited_clients(tx, task, now) if task.state is TaskState.ENROLLING else _awaited_answers(tx, task, now)


def awaited_clients(tx: Transaction, task: Task, now: Micros) -> AwaitedClients:
    """How many clients are there, how many are needed, and how long the task waits for more."""
    counts = tx.clients.counts(task.task_id)
    begun = window_start(tx, task) is not None
    return AwaitedClients(
        ready=counts.of(ClientState.PROFILED),
        enrolled=counts.of(ClientState.ENROLLED, ClientState.PROFILED),
        needed=task.spec.rounds.min_clients,
        expected=task.spec.rounds.expected_clients,
        left_s=seconds_left(selection_time(tx, task), now) if begun else None,
    )


def _awaited_answers(tx: Transaction, task: Task, now: Micros) -> AwaitedAnswers | None:
    latest = tx.rounds.latest(task.task_id)
    if latest is None or latest.state is not RoundState.OPEN:
        return None
    round_ = round_progress(tx, task.task_id, now).round
    if round_ is None:
        return None
    answers = [client.answer for client in round_.clients]
    return AwaitedAnswers(
        round_number=round_.round_number,
        attempt=round_.attempt,
        delivered=answers.count(AnswerState.DELIVERED),
        invited=sum(answer is not AnswerState.NOT_INVITED for answer in answers),
        awaited=tuple(client.ordinal for client in round_.clients if client.answer in _AWAITED),
        left_s=round_.deliver_in_s,
    )


def current_verdict(tx: Transaction, client_id: str, now: Micros) -> SelectionVerdict:
    """The verdict of a client; before the selection also the time that the task waits for more clients."""
    verdict = selection_verdict(tx, client_id)
    task = get_task(tx, known_client(tx, client_id).task_id)
    if task.state is not TaskState.ENROLLING or task.paused:
        return verdict
    return verdict.model_copy(update={"begins_in_s": awaited_clients(tx, task, now).left_s})
