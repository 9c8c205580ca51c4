"""Selection: when it is due, whom it keeps, and how it ends a task."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qidpfl_server.domain import ClientState
from qidpfl_server.errors import RequestRefused
from qidpfl_server.service.selection import open_window, selection_is_due
from qidpfl_shared.core.planning import Standing
from qidpfl_shared.protocol.messages import TaskState
from support.use_cases import SKEWED, ServedTask, UseCases


def is_due(task: ServedTask) -> bool:
    now = task.cases.clock.now()
    return task.cases.read(lambda tx: selection_is_due(tx, task.now, now))


def test_the_expected_number_of_profiles_selects_at_once(cases: UseCases) -> None:
    task = cases.task(rounds={"expected_clients": 3})
    for state in (TaskState.ENROLLING, TaskState.ENROLLING, TaskState.TRAINING):
        task.client()
        assert task.now.state is state
    assert task.round().state == "open"


def test_selection_is_due_when_no_new_client_comes_for_the_quiet_time(cases: UseCases) -> None:
    task = cases.task(rounds={"quiet_s": 30.0})
    for _ in range(2):
        task.client()
    cases.clock.advance(100)
    assert not is_due(task)
    task.client()
    cases.clock.advance(29.9)
    assert not is_due(task)
    cases.clock.advance(0.1)
    assert is_due(task)


def test_selection_is_due_when_the_window_is_over(cases: UseCases) -> None:
    task = cases.task(rounds={"quiet_s": 100.0, "enrolment_window_s": 200.0})
    for _ in range(3):
        task.client()
        cases.clock.advance(60)
    assert not is_due(task)
    cases.clock.advance(20)
    assert is_due(task)


def test_clients_with_skewed_labels_are_refused(cases: UseCases) -> None:
    task = cases.task(rounds={"expected_clients": 5, "min_clients": 3})
    clients = [*(task.client() for _ in range(4)), task.client(labels=SKEWED)]
    assert [client.now.state for client in clients] == [ClientState.SELECTED] * 4 + [ClientState.REFUSED]
    assert "task.selected" in task.events()
    assert cases.violations() == []


def test_a_task_fails_where_too_few_clients_pass(cases: UseCases) -> None:
    task = cases.task(rounds={"expected_clients": 3, "min_clients": 3})
    for labels in ((11,) * 10, (11,) * 10, SKEWED):
        task.client(labels=labels)
    assert task.now.state is TaskState.FAILED
    assert task.now.reason == "too_few_clients: too few pass the selection"
    assert cases.violations() == []


def test_a_schedule_is_paid_to_clients_that_were_chosen_at_random(cases: UseCases) -> None:
    task, clients = cases.training(
        6,
        game={
            "policy": "fixed",
            "horizon": 3,
            "reward_schedule_micro": [3_000_000, 500_000, 9_000_000],
            "reward_range": {"minimum_micro": 1_000_000, "maximum_micro": 8_000_000},
        },
        selection={"rule": "random", "random_clients": 3, "seed": 5},
        rounds={"min_clients": 2, "min_updates": 2},
        # The clients of this test declare the same budget at every reward.
        defence=None,
    )
    kept = [client for client in clients if client.now.state is ClientState.SELECTED]
    assert {client.now.ordinal for client in kept} == set(np.random.RandomState(5).permutation(6)[:3].tolist())
    for number in (1, 2, 3):
        task.play(kept, number)
    assert [task.result(number).reward_micro for number in (1, 2, 3)] == [3_000_000, 1_000_000, 8_000_000]
    assert all(sum(task.payments(number).values()) == task.result(number).reward_micro for number in (1, 2, 3))
    assert cases.violations() == []


@pytest.mark.parametrize("clients", [1, 2])
def test_selection_is_never_due_below_the_minimum(cases: UseCases, clients: int) -> None:
    task = cases.task(rounds={"min_clients": 3})
    for _ in range(clients):
        task.client()
    cases.clock.advance(1e6)
    assert not is_due(task)


def test_the_window_begins_with_the_first_stored_profile(cases: UseCases) -> None:
    task = cases.task(rounds={"quiet_s": 10_000.0, "enrolment_window_s": 200.0})
    cases.clock.advance(5000)
    for _ in range(3):
        task.client()
    assert not is_due(task)
    cases.clock.advance(199.9)
    assert not is_due(task)
    cases.clock.advance(0.1)
    assert is_due(task)


def test_an_admin_begins_the_window_once_before_the_first_profile(cases: UseCases) -> None:
    task = cases.task(rounds={"quiet_s": 10_000.0, "enrolment_window_s": 200.0})
    for _ in range(2):
        cases.write(lambda tx: open_window(tx, task.task_id, cases.clock.now()))
        cases.clock.advance(100)
    for _ in range(3):
        task.client()
    assert task.now.state is TaskState.TRAINING
    assert task.events().count("enrolment.opened") == 1
    task.stop()
    with pytest.raises(RequestRefused, match="the task is stopped"):
        cases.write(lambda tx: open_window(tx, task.task_id, cases.clock.now()))


def test_the_window_of_a_task_of_an_earlier_release_begins_at_its_creation(cases: UseCases) -> None:
    task = cases.task(rounds={"quiet_s": 10_000.0, "enrolment_window_s": 200.0})
    old = replace(task.now, spec=task.now.spec.model_copy(update={"protocol_version": None, "requires": None}))
    cases.clock.advance(200)
    for _ in range(3):
        task.client()
    now = cases.clock.now()
    assert cases.read(lambda tx: selection_is_due(tx, old, now))
    assert not is_due(task)


def test_a_refused_client_reads_that_it_is_refused(cases: UseCases) -> None:
    task = cases.task(rounds={"expected_clients": 4, "min_clients": 3})
    *_, refused = [*(task.client() for _ in range(3)), task.client(labels=SKEWED)]
    assert refused.offer().standing is Standing.REFUSED
    with pytest.raises(RequestRefused, match="standing in this round: refused"):
        refused.declare()


OWN: dict[str, Any] = {
    "workload": {"dataset": "mine", "labels": 3, "partition": None, "convex": True},
    "layout": {"tensors": [{"name": "weight", "shape": [3, 1]}, {"name": "bias", "shape": [3]}]},
    "data": {"columns": [{"name": "a", "low": 0, "high": 1}], "label": {"names": ["one", "two", "three"]}},
    "selection": {"rule": "all"},
}


def test_a_label_that_no_owner_has_is_an_event(cases: UseCases) -> None:
    task = cases.task(rounds={"expected_clients": 3, "min_clients": 3}, **OWN)
    for labels in ((100, 0, 90), (80, 2, 100), (50, 1, 60)):
        task.client(labels=labels)
    assert "labels.absent" in task.events()
    there = cases.task(rounds={"expected_clients": 3, "min_clients": 3}, **OWN)
    for labels in ((100, 0, 90), (80, 200, 100), (50, 1, 60)):
        there.client(labels=labels)
    assert "labels.absent" not in there.events()
    assert cases.violations() == []
