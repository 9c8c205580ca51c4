"""Places that are freed, clients that are revoked, updates that are voided, and codes of one client each."""

from typing import Any

import numpy as np
import pytest

from qidpfl_server.domain import ClientState
from qidpfl_server.errors import RequestRefused
from qidpfl_server.service.enrolment import revoke_client
from qidpfl_server.service.rounds.aggregation import load_model
from qidpfl_server.service.rounds.submissions import void_update
from qidpfl_shared.protocol.errors import ErrorCode
from support.use_cases import ServedTask, UseCases

HORIZON: dict[str, Any] = {"game": {"horizon": 12}}


def refusal(refused: pytest.ExceptionInfo[RequestRefused]) -> ErrorCode:
    return refused.value.code


def model(task: ServedTask, version: int) -> np.ndarray[Any, Any]:
    found = task.cases.read(lambda tx: tx.tasks.model(task.task_id, version))
    assert found is not None
    return load_model(task.cases.store.blobs, found, task.now.spec.dimension).parameters


def test_places_without_a_profile_are_given_away(cases: UseCases) -> None:
    task = cases.task()
    squatters = [task.stranger() for _ in range(10)]
    for squatter in squatters:
        squatter.enrol()
    with pytest.raises(RequestRefused) as refused:
        task.client()
    assert refusal(refused) is ErrorCode.TASK_FULL
    cases.clock.advance(61)
    honest = [task.client() for _ in range(10)]
    assert sorted(client.now.ordinal for client in honest) == list(range(10))
    assert all(squatter.now.state is ClientState.LEFT for squatter in squatters)
    assert cases.violations() == []


def test_the_place_of_a_client_that_left_is_given_away(cases: UseCases) -> None:
    task = cases.task()
    clients = [task.client() for _ in range(9)]
    last = task.stranger()
    last.enrol()
    clients[4].leave()
    assert task.client().now.ordinal == 4
    assert cases.violations() == []


def test_an_upload_of_a_revoked_client_is_not_accepted(cases: UseCases) -> None:
    task, clients = cases.training(4)
    clients[0].declare()
    data = clients[0].update()
    assert clients[0].look_up(data) is None
    cases.write(lambda tx: revoke_client(tx, task.task_id, clients[0].client_id, cases.clock.now()))
    with pytest.raises(RequestRefused) as refused:
        clients[0].deliver(data)
    assert refusal(refused) is ErrorCode.UNAUTHENTICATED
    assert task.updates() == 0


def test_a_void_update_does_not_count_and_is_not_paid(cases: UseCases) -> None:
    task, clients = cases.training(4, **HORIZON)
    for client in clients[:3]:
        client.play()
    clients[3].declare()
    bad = clients[0]

    def void() -> None:
        cases.write(lambda tx: void_update(tx, task.task_id, 1, bad.client_id, cases.clock.now()))

    void()
    void()
    clients[3].upload()
    task.settle()
    assert bad.client_id not in task.payments()
    assert task.events().count("update.voided") == 1
    own = next(part for part in task.result().clients or () if part.client_id == bad.client_id)
    assert (own.voided, own.accepted, own.delivered) == (True, False, True)
    assert bad.entry().state == "spent_unpaid"
    assert cases.violations() == []
    void()
    with pytest.raises(RequestRefused) as refused:
        cases.write(lambda tx: void_update(tx, task.task_id, 1, clients[1].client_id, cases.clock.now()))
    assert refusal(refused) is ErrorCode.ROUND_CLOSED


def test_a_new_task_has_one_code_for_each_expected_client(cases: UseCases) -> None:
    task = cases.task(single_use_codes=None)
    assert len(task.codes) == 10
    task.client()
    with pytest.raises(RequestRefused) as refused:
        task.client()
    assert refusal(refused) is ErrorCode.CODE_USED
