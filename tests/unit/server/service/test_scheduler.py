"""The scheduler: when each task is due, what it runs, and how it handles a step that fails."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest
import structlog

from qidpfl_server.clock import SECOND
from qidpfl_server.domain import Task
from qidpfl_server.errors import DiskFailure, StorageFull, StoreBusy, SuspectedDamage
from qidpfl_server.service import scheduler
from qidpfl_server.service.rounds import settlement
from qidpfl_server.service.rounds.settlement_timer import Timing
from qidpfl_server.service.scheduler import RetryPolicy, Scheduler
from qidpfl_server.store.store import Store
from qidpfl_shared.protocol.messages import TaskState
from support.fakes import FakeClock
from support.use_cases import ServedTask, UseCases

pytestmark = pytest.mark.slow


class UnexpectedError(Exception):
    """An error that is not transient."""


@pytest.fixture
def served(store: Store, clock: FakeClock) -> Scheduler:
    return Scheduler(store, clock, lambda task: None)


def due_in(served: Scheduler, cases: UseCases) -> list[float]:
    """The seconds until each task is due."""
    return [(due - cases.clock.now()) / SECOND for _, due in served._due_tasks()]


def run_due(served: Scheduler, cases: UseCases) -> list[float]:
    """Run what is due now; the pauses after failures."""
    pauses = []
    for task, due in served._due_tasks():
        if due <= cases.clock.now():
            try:
                served._advance_blocking(task)
            except Exception as error:
                pauses.append(served._after_failure(task.task_id, error))
    return pauses


def test_an_enrolling_task_is_due_when_its_quiet_time_is_over(served: Scheduler, cases: UseCases) -> None:
    task = cases.task(rounds={"quiet_s": 30.0})
    for _ in range(3):
        task.client()
    assert due_in(served, cases) == [30.0]
    run_due(served, cases)
    assert task.now.state == "enrolling"
    cases.clock.advance(30)
    assert due_in(served, cases) == [0.0]
    run_due(served, cases)
    assert task.now.state is TaskState.TRAINING


def test_an_enrolling_task_with_too_few_clients_is_checked_every_second(served: Scheduler, cases: UseCases) -> None:
    cases.task(rounds={"quiet_s": 30.0})
    cases.clock.advance(100)
    assert due_in(served, cases) == [1.0]


def test_a_round_is_due_after_its_deadlines_or_when_it_is_complete(served: Scheduler, cases: UseCases) -> None:
    task, clients = cases.training(rounds={"declare_s": 10.0, "deliver_s": 20.0})
    just_after = 1 / SECOND
    assert due_in(served, cases) == [pytest.approx(10.0 + just_after)]
    for client in clients:
        client.declare()
    cases.clock.advance(11)
    assert due_in(served, cases) == [pytest.approx(19.0 + just_after)]
    for client in clients:
        client.upload()
    assert due_in(served, cases) == [0.0]
    run_due(served, cases)
    assert task.result().state == "settled"


def test_a_task_that_has_ended_is_never_due(served: Scheduler, cases: UseCases) -> None:
    task, _ = cases.training()
    task.stop()
    assert served._due_tasks() == []


def test_a_void_round_is_due_again_after_its_new_deadline(served: Scheduler, cases: UseCases) -> None:
    task, (first, *_) = cases.training(rounds={"declare_s": 10.0, "deliver_s": 20.0, "max_attempts": 2})
    first.play()
    cases.clock.advance(31)
    run_due(served, cases)
    assert task.round().attempt == 2
    assert due_in(served, cases) == [pytest.approx(10.0, abs=1)]
    cases.clock.advance(40)
    run_due(served, cases)
    assert task.now.state is TaskState.FAILED


def test_an_unexpected_error_is_retried_with_growing_pauses_then_fails_the_task(
    served: Scheduler, cases: UseCases, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, clients = cases.training()
    for client in clients:
        client.play()
    monkeypatch.setattr(settlement, "round_payments", _fail)
    pauses: list[float] = []
    with structlog.testing.capture_logs() as logged:
        while not task.now.ended:
            pauses += run_due(served, cases)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 0.0]
    assert task.now.reason == "step_failed: round 1 failed 6 times with UnexpectedError"
    assert (task.result().state, task.payments()) == ("void", {})
    entry = clients[0].entry()
    assert (entry.state, entry.payment_micro) == ("spent_unpaid", None)
    assert [line["task"] for line in logged if line["event"] == "task_failed"] == [task.task_id]
    assert sum(line["event"] == "step_failed" for line in logged) == 6
    assert cases.violations() == []


def hide_an_update(cases: UseCases) -> tuple[ServedTask, Path]:
    """A task with a complete round, one of whose updates is not in the folder; where it is."""
    task, clients = cases.training(game={"horizon": 1})
    for client in clients[1:]:
        client.play()
    clients[0].declare()
    blob = Path(cases.store.blobs.place) / "objects" / clients[0].upload().digest
    return task, blob.rename(blob.parent.parent / "hidden")


def test_a_missing_blob_is_looked_for_again_before_the_task_ends(served: Scheduler, cases: UseCases) -> None:
    task, hidden = hide_an_update(cases)
    for pause in (1.0, 2.0, 4.0, 8.0, 16.0):
        assert run_due(served, cases) == [pause]
    assert task.now.state is TaskState.TRAINING
    hidden.rename(hidden.parent / "objects" / hashlib.sha256(hidden.read_bytes()).hexdigest())
    assert run_due(served, cases) == []
    assert task.now.reason == "horizon_reached"
    assert cases.violations() == []


def test_a_blob_that_stays_missing_ends_the_task_as_damaged(served: Scheduler, cases: UseCases) -> None:
    task, hidden = hide_an_update(cases)
    digest = hashlib.sha256(hidden.read_bytes()).hexdigest()
    with structlog.testing.capture_logs() as logged:
        for _ in range(6):
            run_due(served, cases)
    assert task.now.reason == f"state_damaged: blob {digest} is missing from the blob folder"
    assert not any("exc_info" in line for line in logged)


def test_a_selection_that_fails_every_time_fails_the_task(
    served: Scheduler, cases: UseCases, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = cases.task(rounds={"quiet_s": 1.0})
    for _ in range(3):
        task.client()
    cases.clock.advance(1)
    monkeypatch.setattr(scheduler, "select_clients", _fail)
    for _ in range(6):
        run_due(served, cases)
    assert task.now.reason == "step_failed: the selection failed 6 times with UnexpectedError"
    assert cases.violations() == []


TRANSIENT = [
    *(OSError(5, "Input/output error"), StoreBusy(""), StorageFull(""), MemoryError()),
    *(DiskFailure(""), SuspectedDamage("")),
]


@pytest.mark.parametrize("error", TRANSIENT, ids=lambda error: type(error).__name__)
def test_a_transient_error_is_retried_without_limit(
    served: Scheduler, cases: UseCases, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    task, clients = cases.training(game={"horizon": 1})
    for client in clients:
        client.play()
    audit_updates = settlement.audit_updates

    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(settlement, "audit_updates", fail)
    for _ in range(20):
        assert run_due(served, cases) == [0.5]
    monkeypatch.setattr(settlement, "audit_updates", audit_updates)
    run_due(served, cases)
    assert task.now.reason == "horizon_reached"


def test_damage_that_a_check_of_the_whole_file_confirms_ends_the_task(
    served: Scheduler, cases: UseCases, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, _ = cases.training()
    monkeypatch.setattr(cases.store, "is_damaged", lambda: True)
    pauses = [served._after_failure(task.task_id, SuspectedDamage("it looks damaged")) for _ in range(6)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 0.0]
    assert task.now.reason == "state_damaged: it looks damaged"


def test_an_error_that_may_pass_is_logged_once_a_second(served: Scheduler, cases: UseCases) -> None:
    task, _ = cases.training()
    with structlog.testing.capture_logs() as logged:
        for _ in range(50):
            served._after_failure(task.task_id, DiskFailure("the disk reports an error"))
    assert 1 <= len(logged) <= 3


def test_an_error_that_another_process_got_past_does_not_fail_the_task(
    served: Scheduler, cases: UseCases, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, clients = cases.training(game={"horizon": 2})
    for client in clients:
        client.play()
    (due,) = served._due_tasks()
    for _ in range(5):
        served._after_failure(due[0].task_id, UnexpectedError())
    assert task.settle()
    # The sixth failure belongs to a step that is over: the next round counts from one again.
    assert served._after_failure(task.task_id, UnexpectedError()) == 1.0
    assert task.now.state is TaskState.TRAINING


def test_failures_are_counted_for_each_task_and_step() -> None:
    policy = RetryPolicy()
    assert [policy.pause_after("one", (1, 1)) for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, 16.0, None]
    assert policy.pause_after("two", (1, 1)) == 1.0
    # About ten minutes for an object store that may be repaired.
    pauses = [policy.pause_after("three", (1, 1), 40) for _ in range(40)]
    assert pauses[:6] == [1.0, 2.0, 4.0, 8.0, 16.0, 16.0] and pauses[-1] is None
    assert 550 < sum(filter(None, pauses)) < 650
    assert policy.pause_after("one", (1, 2)) == 1.0


def test_the_scheduler_runs_a_task_to_its_end_when_it_is_woken(store: Store, clock: FakeClock) -> None:
    cases = UseCases(store, clock)
    task, clients = cases.training(game={"horizon": 2})

    async def played() -> None:
        served, settled = Scheduler(store, clock, lambda task: None), asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_settlement(_: Timing) -> None:
            loop.call_soon_threadsafe(settled.set)

        def on_commit(ids: set[str]) -> None:
            loop.call_soon_threadsafe(served.wake, ids)

        served.on_settlement(on_settlement)
        store.on_commit(on_commit)
        running = asyncio.create_task(served.run())
        for number in (1, 2):
            settled.clear()
            for client in clients:
                await asyncio.to_thread(client.play, number)
            await asyncio.wait_for(settled.wait(), timeout=60)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert served.ended

    asyncio.run(played())
    assert task.now.reason == "horizon_reached"
    assert cases.violations() == []


def test_an_evaluator_is_made_once_for_each_task(store: Store, clock: FakeClock) -> None:
    made: list[Task] = []
    served, task = Scheduler(store, clock, lambda task: made.append(task)), UseCases(store, clock).task()
    for _ in range(2):
        assert served.evaluator(task.now) is None
    assert len(made) == 1


def _fail(*_: Any) -> Any:
    raise UnexpectedError("a detail for the log only")
