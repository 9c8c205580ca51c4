"""Clients that release no histogram: taken under rule `all`, refused under every rule that looks at the labels."""

from typing import Any

import pytest

from qidpfl_server.domain import ClientState
from qidpfl_server.errors import RequestRefused
from qidpfl_server.plugins.rules import NO_RULES
from qidpfl_server.service.enrolment import client_summaries
from qidpfl_server.service.selection import selection_of
from qidpfl_server.service.views import ledger, selection_verdict
from qidpfl_shared.core.selection import SelectionStatus
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import TaskState
from support.use_cases import ServedClient, ServedTask, UseCases

ALL: dict[str, Any] = {"selection": {"rule": "all"}}


def silent(task: ServedTask) -> ServedClient:
    """A client with a profile without label counts."""
    client = task.stranger()
    client.enrol()
    client.send_profile(label_counts=None, histogram_rho=None)
    return client


@pytest.mark.parametrize(
    "selection",
    [{"rule": "threshold"}, {"rule": "union"}, {"rule": "random", "random_clients": 3, "seed": 1}],
    ids=lambda selection: selection["rule"],
)
def test_every_other_rule_needs_a_histogram(cases: UseCases, selection: dict[str, Any]) -> None:
    client = cases.task(selection=selection).stranger()
    client.enrol()
    with pytest.raises(RequestRefused) as caught:
        client.send_profile(label_counts=None, histogram_rho=None)
    assert caught.value.code is ErrorCode.HISTOGRAM_REQUIRED
    assert client.now.state is ClientState.ENROLLED and not client.now.has_profile


@pytest.mark.parametrize("reference", ["uniform", "pooled"])
@pytest.mark.parametrize("quiet", [1, 4], ids=["one", "all"])
def test_a_task_is_played_without_some_histograms(cases: UseCases, reference: str, quiet: int) -> None:
    task = cases.task(
        game={"horizon": 2}, rounds={"expected_clients": 4}, selection={"rule": "all", "reference": reference}
    )
    clients = [*(task.client() for _ in range(4 - quiet)), *(silent(task) for _ in range(quiet))]
    assert [client.now.state for client in clients] == [ClientState.SELECTED] * 4
    for number in (1, 2):
        task.play(clients, number)
    assert task.now.state is TaskState.FINISHED and task.result(2).updates == 4
    assert cases.violations() == []


def test_a_client_without_a_histogram_has_a_verdict_but_no_distance_and_no_release(cases: UseCases) -> None:
    task = cases.task(rounds={"expected_clients": 3}, **ALL)
    client = silent(task)
    before = cases.read(lambda tx: selection_verdict(tx, client.client_id))
    assert (before.selected, before.profiles) == (None, 1)
    others = [task.client() for _ in range(2)]
    after = cases.read(lambda tx: selection_verdict(tx, client.client_id))
    assert (after.selected, after.label_distance, after.selected_clients) == (True, None, 3)
    assert cases.read(lambda tx: ledger(tx, client.client_id)).entries == ()
    listed = cases.read(lambda tx: client_summaries(tx, task.task_id))
    assert [one.label_counts is None for one in listed] == [True, False, False]
    task.play([client, *others])
    assert [entry.release for entry in cases.read(lambda tx: ledger(tx, client.client_id)).entries] == ["round/1"]
    assert cases.violations() == []


def test_a_profile_without_a_histogram_is_stored_once_and_frozen(cases: UseCases) -> None:
    client = silent(cases.task(**ALL))
    client.send_profile(label_counts=None, histogram_rho=None)
    with pytest.raises(RequestRefused) as caught:
        client.send_profile()
    assert caught.value.code is ErrorCode.PROFILE_FROZEN


def test_the_minimum_of_clients_counts_those_without_a_histogram(cases: UseCases) -> None:
    task = cases.task(rounds={"min_clients": 3}, **ALL)
    clients = [silent(task).now for _ in range(3)]
    few, enough = (selection_of(task.now.spec, clients[:count], NO_RULES) for count in (2, 3))
    assert few.status is SelectionStatus.TOO_FEW_CLIENTS and not few.selected.any()
    assert enough.status is SelectionStatus.SELECTED and enough.selected.all()


def test_a_late_joiner_and_a_leaver_need_no_histogram(cases: UseCases) -> None:
    task = cases.task(rounds={"expected_clients": 3, "late_joiners": True}, **ALL)
    three = [silent(task) for _ in range(3)]
    late = silent(task)
    assert late.now.state is ClientState.SELECTED and late.now.label_distance is None
    task.play(three)
    three[0].leave()
    task.play([*three[1:], late], 2)
    assert task.result(2).updates == 3
    assert cases.violations() == []


def test_the_audit_allows_a_client_that_left_without_a_histogram(cases: UseCases) -> None:
    task = cases.task(rounds={"expected_clients": 4, "min_clients": 3}, **ALL)
    clients = [silent(task) for _ in range(4)]
    task.play(clients)
    for leaving in clients[:2]:
        leaving.leave()
    assert cases.violations() == []


def test_the_audit_finds_a_distance_without_a_histogram(cases: UseCases) -> None:
    task = cases.task(rounds={"expected_clients": 3}, **ALL)
    client, *_ = [silent(task) for _ in range(3)]
    cases.write(
        lambda tx: tx.clients.set_selection(client.client_id, selected=True, label_distance=0.5, filled_up=False)
    )
    assert any("a label distance without a histogram" in violation for violation in cases.violations())
