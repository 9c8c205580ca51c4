"""Planning: whom a round invites, and what limits each client."""

import pytest

from qidpfl_server.service.rounds.accounts import privacy_accounts
from qidpfl_server.service.rounds.planning import round_is_complete
from support.use_cases import UseCases


def test_the_account_of_a_client_holds_its_histogram_and_every_update(cases: UseCases) -> None:
    task, clients = cases.training(game={"horizon": 2})
    task.play(clients)
    account = cases.read(lambda tx: privacy_accounts(tx, task.now, [clients[0].now]))[clients[0].client_id]
    assert [release.name for release in account.releases] == ["histogram", "round/1"]
    assert account.releases[1].rho == 0.05


def test_a_round_is_complete_when_each_client_has_answered_or_missed_a_deadline(cases: UseCases) -> None:
    task, (first, second, third) = cases.training()

    def complete() -> bool:
        now = cases.clock.now()
        return cases.read(lambda tx: round_is_complete(tx.rounds, task.round(), now))

    first.play()
    second.decline()
    assert not complete()
    cases.clock.move_past(task.round().declare_by)
    assert complete()
    assert third.offer().round_number == 1


def test_a_round_waits_for_a_declared_budget_until_the_deadline_for_updates(cases: UseCases) -> None:
    task, clients = cases.training()
    for client in clients:
        client.declare()
    cases.clock.move_past(task.round().declare_by)
    assert not task.settle()
    cases.clock.move_past(task.round().deliver_by)
    assert task.settle()
    assert task.round().attempt == 2


@pytest.mark.parametrize("missing", [1, 2])
def test_the_reward_of_a_round_is_fixed_before_its_answers(cases: UseCases, missing: int) -> None:
    task, clients = cases.training(5, rounds={"min_clients": 3}, game={"horizon": 1})
    reward = clients[0].offer().reward_micro
    for client in clients[:missing]:
        client.decline()
    task.play(clients[missing:])
    assert task.result().reward_micro == reward
    assert sum(task.payments().values()) == reward
