"""Enrolment: codes, keys, ordinals, profiles; clients that leave or are revoked."""

from dataclasses import replace
from typing import Any

import pytest

from qidpfl_server.domain import ClientState
from qidpfl_server.errors import RequestRefused
from qidpfl_server.identifiers import hash_secret
from qidpfl_server.service.enrolment import client_summaries, revoke_client, use_token
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import TaskState
from support.use_cases import SKEWED, UseCases


def refused(code: ErrorCode) -> Any:
    return pytest.raises(RequestRefused, match=f"^{code.value}")


def test_a_known_key_gets_the_same_client_and_a_new_token(cases: UseCases) -> None:
    client = cases.task().stranger()
    first, second = client.enrol(), client.enrol()
    assert (first.client_id, first.ordinal) == (second.client_id, second.ordinal)
    assert first.token != second.token
    known = cases.read(lambda tx: [tx.clients.by_token(hash_secret(token)) for token in (first.token, second.token)])
    assert known[0] is None
    assert known[1] is not None and known[1].client_id == first.client_id
    client.send_profile()
    with refused(ErrorCode.ALREADY_ENROLLED):
        client.enrol()


def test_a_used_token_is_not_replaced_by_a_late_duplicate(cases: UseCases) -> None:
    client = cases.task().stranger()
    old, token = client.enrol().token, client.enrol().token
    assert not used(cases, client.client_id, old)
    assert used(cases, client.client_id, token) and used(cases, client.client_id, token)
    with refused(ErrorCode.ALREADY_ENROLLED):
        client.enrol()
    known = cases.read(lambda tx: tx.clients.by_token(hash_secret(token)))
    assert known is not None and known.token_used


def used(cases: UseCases, client_id: str, token: str) -> bool:
    """Use a token that was valid when it was looked up."""
    found = cases.read(lambda tx: tx.clients.get(client_id))
    assert found is not None
    before = replace(found, token_used=False)
    return cases.write(lambda tx: use_token(tx, before, hash_secret(token)))


def test_a_single_use_code_serves_one_client(cases: UseCases) -> None:
    task = cases.task(single_use_codes=2)
    one, two = task.codes
    first, second = task.stranger(), task.stranger()
    assert first.enrol(code=one).client_id == first.enrol(code=one).client_id
    with refused(ErrorCode.CODE_USED):
        second.enrol(code=one)
    assert second.enrol(code=two).ordinal == 1


def test_a_full_task_accepts_no_client_and_an_ordinal_belongs_to_one_client(cases: UseCases) -> None:
    task = cases.task(bounds={"clients_max": 3}, rounds={"expected_clients": 3})
    first, second, third, fourth = (task.stranger() for _ in range(4))
    assert first.enrol(ordinal=1).ordinal == 1
    with refused(ErrorCode.ORDINAL_TAKEN):
        second.enrol(ordinal=1)
    with refused(ErrorCode.OUT_OF_BOUNDS):
        second.enrol(ordinal=3)
    assert [second.enrol().ordinal, third.enrol().ordinal] == [0, 2]
    with refused(ErrorCode.TASK_FULL):
        fourth.enrol()
    assert third.enrol().ordinal == 2


def test_a_wrong_code_or_the_code_of_another_task_enrols_no_client(cases: UseCases) -> None:
    task, other = cases.task(), cases.task()
    client = task.stranger()
    for code in (other.codes[0], f"{task.task_id}.{'x' * 43}", f"{task.task_id}.x"):
        with refused(ErrorCode.UNAUTHENTICATED):
            client.enrol(code=code)
    assert cases.read(lambda tx: tx.clients.count(task.task_id)) == 0


def test_no_client_enrols_in_a_task_that_trains_or_has_ended(cases: UseCases) -> None:
    task, _ = cases.training()
    late = task.stranger()
    with refused(ErrorCode.TASK_NOT_ENROLLING):
        late.enrol()
    task.stop()
    with refused(ErrorCode.TASK_ENDED):
        late.enrol()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"label_counts": (55, 55)}, ErrorCode.HISTOGRAM_MISMATCH),
        ({"privacy_value": 1000.0}, ErrorCode.OUT_OF_BOUNDS),
        ({"privacy_value": 0.001}, ErrorCode.OUT_OF_BOUNDS),
        ({"label_counts": (0,) * 9 + (10_000_001,), "size": 10_000_001}, ErrorCode.OUT_OF_BOUNDS),
    ],
)
def test_a_profile_must_fit_the_task(cases: UseCases, changes: dict[str, Any], code: ErrorCode) -> None:
    client = cases.task().stranger()
    client.enrol()
    with refused(code):
        client.send_profile(**changes)
    assert client.now.state is ClientState.ENROLLED


def test_a_profile_is_stored_once_and_frozen(cases: UseCases) -> None:
    client = cases.task().client()
    client.send_profile()
    with refused(ErrorCode.PROFILE_FROZEN) as caught:
        client.send_profile(privacy_value=2.0, rho_cap=0.5)
    assert caught.value.detail == "the stored profile has another privacy_value, rho_cap"
    assert client.now.privacy_value == 1.0


def test_a_client_that_left_sends_no_profile(cases: UseCases) -> None:
    client = cases.task().stranger()
    client.enrol()
    client.leave()
    with refused(ErrorCode.PROFILE_FROZEN):
        client.send_profile()


def test_a_round_does_not_wait_for_a_client_that_left_and_its_ledger_stays(cases: UseCases) -> None:
    task, (*three, leaving) = cases.training(4)
    for client in three:
        client.play()
    leaving.leave()
    leaving.leave()
    assert task.events().count("client.left") == 1
    assert task.settle()
    assert task.result().updates == 3
    with refused(ErrorCode.NOT_INVITED):
        leaving.declare(2)
    assert cases.violations() == []


def test_a_revoked_client_has_no_token_and_the_task_continues_without_it(cases: UseCases) -> None:
    task = cases.task(game={"horizon": 2}, rounds={"expected_clients": 5})
    clients = [*(task.client() for _ in range(4)), task.client(labels=(55, 55, *(0,) * 8))]
    listed = cases.read(lambda tx: client_summaries(tx, task.task_id))
    assert [one.state for one in listed] == ["selected"] * 4 + ["refused"]
    assert [one.label_distance for one in listed] == [0.0] * 4 + [1.6]
    assert listed[0].label_counts == (11,) * 10 and listed[0].privacy_value == 1.0

    gone, now = clients[0], cases.clock.now()
    cases.write(lambda tx: revoke_client(tx, task.task_id, gone.client_id, now))
    assert cases.read(lambda tx: tx.clients.by_token(hash_secret(gone.token))) is None
    with refused(ErrorCode.NOT_FOUND):
        cases.write(lambda tx: revoke_client(tx, task.task_id, "no such client", now))
    other = cases.task().client()
    with refused(ErrorCode.NOT_FOUND):
        cases.write(lambda tx: revoke_client(tx, task.task_id, other.client_id, now))
    for number in (1, 2):
        task.play(clients[1:4], number)
    assert [one.ordinal for one in task.result(2).clients or ()] == [1, 2, 3]
    assert task.now.state is TaskState.FINISHED
    assert cases.violations() == []


def test_a_late_joiner_takes_part_from_the_next_round_on(cases: UseCases) -> None:
    task, three = cases.training(rounds={"late_joiners": True})
    late, skewed = task.client(), task.client(labels=SKEWED)
    assert (late.now.state, skewed.now.state) == (ClientState.SELECTED, ClientState.REFUSED)
    assert late.offer().standing == "set_aside"
    with refused(ErrorCode.NOT_INVITED):
        late.declare()
    task.play(three)
    assert late.offer().standing == "invited"
    task.play([*three, late], 2)
    assert task.result(2).updates == 4
    assert cases.violations() == []
