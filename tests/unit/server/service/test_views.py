"""Views: what each caller sees of a task, of a round and of a ledger."""

import pytest

from qidpfl_server.errors import RequestRefused
from qidpfl_server.service.views import as_seen_by, ledger, selection_verdict, task_summary, task_view
from qidpfl_shared.protocol.errors import ErrorCode
from support.use_cases import SKEWED, UseCases


def test_the_summary_of_a_task_counts_clients_rounds_and_money(cases: UseCases) -> None:
    task, clients = cases.training(game={"horizon": 2})
    task.play(clients)
    summary = cases.read(lambda tx: task_summary(tx, task.now))
    assert (summary.clients, summary.settled_rounds, summary.horizon) == (3, 1, 2)
    assert summary.paid_micro == task.result().reward_micro
    view = cases.read(lambda tx: task_view(tx, task.now))
    assert view.spec_digest == view.spec.digest


def test_no_budget_of_a_client_is_shown_while_its_round_is_open(cases: UseCases) -> None:
    task, (first, *others) = cases.training()
    first.play()
    assert task.result().clients is None
    for client in others:
        client.play()
    task.settle()
    shown = task.result()
    assert [part.rho for part in shown.clients or ()] == [0.05] * 3
    own = as_seen_by(shown, first.client_id)
    assert own.clients is None and own.own is not None and own.own.client_id == first.client_id


def test_a_round_that_was_not_announced_is_not_found(cases: UseCases) -> None:
    task, _ = cases.training()
    with pytest.raises(RequestRefused, match=ErrorCode.NOT_FOUND.value):
        task.result(2)


def test_a_client_sees_its_own_distance_once_the_selection_is_made(cases: UseCases) -> None:
    task = cases.task(rounds={"expected_clients": 4})
    clients = [task.client() for _ in range(3)]
    before = cases.read(lambda tx: selection_verdict(tx, clients[0].client_id))
    assert (before.selected, before.profiles) == (None, 3)
    refused = task.client(labels=SKEWED)
    after = cases.read(lambda tx: selection_verdict(tx, refused.client_id))
    assert (after.selected, after.selected_clients, after.profiles) == (False, 3, 4)
    assert after.label_distance is not None and after.label_distance > (after.distance_threshold or 0)


def test_where_too_few_pass_the_verdict_is_open_and_the_reason_says_why(cases: UseCases) -> None:
    task = cases.task(rounds={"expected_clients": 3, "min_clients": 3})
    clients = [task.client(), task.client(), task.client(labels=SKEWED)]
    near, _, far = cases.read(lambda tx: [selection_verdict(tx, one.client_id) for one in clients])
    assert (near.selected, far.selected, near.selected_clients) == (None, None, 0)
    assert near.label_distance is not None and near.label_distance <= (near.distance_threshold or 0)
    assert task.now.reason == "too_few_clients: too few pass the selection"


def test_a_ledger_reserves_spends_and_adds_up(cases: UseCases) -> None:
    task, (first, *others) = cases.training(game={"horizon": 1})
    first.declare()
    assert first.entry().state == "reserved"
    first.upload()
    assert (first.entry().state, first.entry().payment_micro) == ("spent", None)
    task.play(others)
    account = cases.read(lambda tx: ledger(tx, first.client_id))
    assert [entry.release for entry in account.entries] == ["histogram", "round/1"]
    assert account.spent_rho == pytest.approx(0.1 + (first.entry().proven_rho or 0))
    assert account.earned_micro == task.payments()[first.client_id]


def test_an_ended_task_announces_its_reason_and_no_round(cases: UseCases) -> None:
    task, (client, *_) = cases.training()
    task.stop()
    seen = client.announcement()
    assert (seen.task_state, seen.reason, seen.round) == ("stopped", "stopped", None)


def test_an_announcement_counts_the_seconds_to_its_deadlines(cases: UseCases) -> None:
    _, (client, *_) = cases.training(rounds={"declare_s": 10.0, "deliver_s": 20.0})
    cases.clock.advance(4)
    assert (client.offer().declare_in_s, client.offer().deliver_in_s) == (6.0, 26.0)
    cases.clock.advance(100)
    assert (client.offer().declare_in_s, client.offer().deliver_in_s) == (0.0, 0.0)
