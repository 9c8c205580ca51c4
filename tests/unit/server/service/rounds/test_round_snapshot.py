"""The rows of an open round that the writer keeps: the same answers as the store, and none that was rolled back."""

from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from qidpfl_server.errors import RequestRefused
from qidpfl_server.service.enrolment import revoke_client
from qidpfl_server.service.rounds.round_snapshot import RoundSnapshot, keep_snapshot, take_snapshot
from qidpfl_server.service.rounds.submissions import BudgetAnswer, declare_budgets, void_update
from qidpfl_server.store.transaction import Transaction
from qidpfl_shared.protocol.messages import Declaration
from support.use_cases import RHO, ServedClient, ServedTask, UseCases


def kept(task: ServedTask, number: int = 1) -> RoundSnapshot:
    """The snapshot of the writer, kept for the next transaction."""

    def work(tx: Transaction) -> RoundSnapshot:
        snapshot = take_snapshot(tx, task.task_id, number)
        snapshot.read(tx, ["any"])
        keep_snapshot(tx, snapshot)
        return snapshot

    return task.cases.write(work)


def act(random: Random, client: ServedClient) -> None:
    """One random step of a client; the server may refuse it."""
    steps: list[Callable[[], object]] = [client.declare, client.decline, client.upload, client.leave]
    (step,) = random.choices(steps, weights=[2, 1, 2, 1])
    with suppress(RequestRefused):
        step()


@pytest.mark.parametrize("seed", range(12))
def test_a_kept_snapshot_equals_the_rows_of_the_store(cases: UseCases, seed: int) -> None:
    random = Random(seed)
    task, clients = cases.training(5)
    for _ in range(20):
        act(random, random.choice(clients))
        assert_equals_store(task, kept(task))


def assert_equals_store(task: ServedTask, snapshot: RoundSnapshot) -> None:
    cases, round_ = task.cases, task.round()
    assert snapshot.round_ == round_
    assert snapshot.budgets == cases.read(lambda tx: tx.rounds.budgets(task.task_id, 1))
    assert snapshot.updates == cases.read(lambda tx: tx.rounds.updates(task.task_id, 1))
    assert snapshot.update_count(task.task_id, 1) == task.updates()
    assert snapshot.has_declines(round_) == cases.read(lambda tx: tx.rounds.has_declines(round_))
    awaited = [snapshot.awaits(round_, silent=silent) for silent in (False, True)]
    assert awaited == cases.read(lambda tx: [tx.rounds.awaits(round_, silent=silent) for silent in (False, True)])


def test_the_next_answers_use_the_kept_rows(cases: UseCases) -> None:
    task, (first, second, _) = cases.training(3)
    first.declare()
    snapshot = kept(task)
    second.declare()
    second.upload()
    assert kept(task) is snapshot
    assert set(snapshot.updates) == {second.client_id}


def test_answers_that_were_rolled_back_are_not_kept(cases: UseCases) -> None:
    task, (first, second, _) = cases.training(3)
    first.declare()

    def fails(tx: Transaction) -> None:
        answer = BudgetAnswer(client_id=second.client_id, request=Declaration(rho=RHO), at=cases.clock.now())
        (receipt,) = declare_budgets(tx, task.task_id, 1, [answer])
        assert not isinstance(receipt, Exception)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        cases.write(fails)
    with pytest.raises(RequestRefused, match="no budget is declared"):
        second.deliver(second.update())
    assert set(kept(task).budgets) == {first.client_id}


def test_changes_by_other_use_cases_are_noticed(cases: UseCases) -> None:
    task, (first, second, third) = cases.training(3)
    for client in (first, second, third):
        client.declare()
    first.upload()
    now = cases.clock.now()
    cases.write(lambda tx: void_update(tx, task.task_id, 1, first.client_id, now))
    assert kept(task).updates[first.client_id].voided_at == now
    cases.write(lambda tx: revoke_client(tx, task.task_id, second.client_id, now))
    with pytest.raises(RequestRefused):
        second.deliver(second.update())
    third.upload()
    assert set(kept(task).updates) == {first.client_id, third.client_id}


def test_the_snapshot_of_one_round_does_not_serve_another(cases: UseCases) -> None:
    task, clients = cases.training(3)
    task.play(clients)
    clients[0].declare(2)
    with pytest.raises(RequestRefused, match="settled"):
        clients[1].declare(1, rho=RHO / 2)
    assert set(kept(task, 2).budgets) == {clients[0].client_id}
