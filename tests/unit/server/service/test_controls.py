"""Pause, deadlines of later rounds, and enrolment codes. Every test ends with the audit."""

from collections.abc import Iterator

import pytest

from qidpfl_server.clock import seconds
from qidpfl_server.errors import RequestRefused
from qidpfl_server.service.controls import create_codes, enrolment_codes, pause_task, revoke_code, set_deadlines
from qidpfl_server.service.tasks import resume_task
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import RoundState, TaskState
from qidpfl_shared.protocol.operators import CreateCodes, Deadlines
from support.use_cases import ServedTask, UseCases


@pytest.fixture(autouse=True)
def audited(cases: UseCases) -> Iterator[None]:
    yield
    assert cases.violations() == []


def pause(task: ServedTask) -> None:
    now = task.cases.clock.now()
    task.cases.write(lambda tx: pause_task(tx, task.task_id, now))


def resume(task: ServedTask) -> None:
    now = task.cases.clock.now()
    task.cases.write(lambda tx: resume_task(tx, task.task_id, now))


def windows(task: ServedTask, number: int) -> tuple[int, int]:
    """How long after the opening of a round its two deadlines are."""
    round_ = task.round(number)
    assert round_.opened_at is not None
    return round_.declare_by - round_.opened_at, round_.deliver_by - round_.opened_at


def test_a_paused_task_closes_its_open_round_and_opens_no_other(cases: UseCases) -> None:
    task, clients = cases.training()
    pause(task)
    task.play(clients)
    assert task.round(1).state is RoundState.SETTLED and sum(task.payments(1).values()) > 0
    assert cases.read(lambda tx: tx.rounds.get(task.task_id, 2)) is None
    assert task.now.paused and task.now.state is TaskState.TRAINING
    # A poll has nothing new: an earlier client asks again.
    assert clients[0].announcement().round is None
    assert cases.violations() == []
    resume(task)
    assert task.round(2).state is RoundState.OPEN and not task.now.paused
    task.play(clients, 2)
    assert task.events().count("task.paused") == task.events().count("task.resumed") == 1


def test_a_pause_and_its_end_may_be_repeated(cases: UseCases) -> None:
    task, _ = cases.training()
    for change in (pause, pause, resume, resume):
        change(task)
    assert not task.now.paused and task.round(1).state is RoundState.OPEN
    assert task.events().count("task.paused") == task.events().count("task.resumed") == 1


def test_a_task_that_is_paused_while_it_enrols_selects_no_clients(cases: UseCases) -> None:
    task = cases.task(rounds={"expected_clients": 3})
    pause(task)
    clients = [task.client() for _ in range(3)]
    assert task.now.state is TaskState.ENROLLING
    with pytest.raises(RequestRefused, match=ErrorCode.TASK_PAUSED.value):
        task.start()
    resume(task)
    task.start()
    assert clients[0].offer().round_number == 1


def test_a_task_that_is_paused_between_two_rounds_can_be_stopped(cases: UseCases) -> None:
    task, clients = cases.training()
    pause(task)
    task.play(clients)
    task.stop()
    assert task.now.state is TaskState.STOPPED
    with pytest.raises(RequestRefused, match=ErrorCode.TASK_ENDED.value):
        pause(task)


def test_new_deadlines_hold_from_the_next_round_on(cases: UseCases) -> None:
    task, clients = cases.training(defence=None)
    announced = task.round(1).declare_by, task.round(1).deliver_by
    now = cases.clock.now()
    cases.write(lambda tx: set_deadlines(tx, task.task_id, Deadlines(declare_s=7.0, deliver_s=11.0), now))
    assert (task.round(1).declare_by, task.round(1).deliver_by) == announced
    task.play(clients)
    assert windows(task, 2) == (seconds(7.0), seconds(18.0))
    cases.write(lambda tx: set_deadlines(tx, task.task_id, Deadlines(), now))
    task.play(clients, 2)
    assert windows(task, 3) == windows(task, 1)


def test_a_revoked_code_lets_no_further_client_in(cases: UseCases) -> None:
    task, now = cases.task(), cases.clock.now()
    made = cases.write(lambda tx: create_codes(tx, task.task_id, CreateCodes(count=2), now)).enrolment_codes
    first = task.stranger()
    first.enrol(code=made[0])
    known = cases.read(lambda tx: enrolment_codes(tx, task.task_id))
    assert len(known) == 3 and sorted(code.single_use for code in known) == [False, True, True]
    for code in known:
        for _ in range(2):
            cases.write(lambda tx, code_id=code.code_id: revoke_code(tx, task.task_id, code_id, now))  # type: ignore[misc]
    for secret in (*task.codes, *made):
        with pytest.raises(RequestRefused, match=ErrorCode.UNAUTHENTICATED.value):
            task.stranger().enrol(code=secret)
    assert all(code.revoked_at for code in cases.read(lambda tx: enrolment_codes(tx, task.task_id)))
    first.send_profile()
    with pytest.raises(RequestRefused, match=ErrorCode.NOT_FOUND.value):
        cases.write(lambda tx: revoke_code(tx, task.task_id, "0" * 24, now))


@pytest.mark.parametrize("count", [0, 1001, 3_482_292])
def test_a_request_makes_a_bounded_number_of_codes(count: int) -> None:
    """Catches a limit that is not applied: millions of codes would hold up the writer of the store for minutes."""
    with pytest.raises(ValueError, match="count"):
        CreateCodes(count=count)
