"""Answers that are not valid, and models: the client trusts neither."""

from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

from qidpfl_client.api import TaskApi
from qidpfl_client.errors import UnsupportedTask, UntrustedCoordinator
from qidpfl_client.sdk.answers import SMALL, SPEC, ledger_limit
from qidpfl_shared.protocol.messages import Declaration, Decline
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.wire import digest_of, encode
from support.peers.scripted_coordinator import (
    CODE,
    KEY,
    TASK,
    TOKEN,
    UPDATE,
    Pieces,
    Scripted,
    budget_receipt,
    enrolled,
    task_view,
    update_receipt,
)
from support.peers.scripted_coordinator import SPEC as SPEC_OF_TASK

# --- answers that are not valid --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, content=b""),
        httpx.Response(200, content=b"<html></html>"),
        httpx.Response(200, content=b"[" * 50_000),
        httpx.Response(200, json={}),
        httpx.Response(200, json={"selected": "yes", "profiles": 2}),
        httpx.Response(200, json={"profiles": 2, **dict.fromkeys(map(str, range(100)))}),
        httpx.Response(200, content=b'{"profiles": 2, "label_distance": NaN}'),
        httpx.Response(200, content=b'{"profiles": ' + b"9" * 5000 + b"}"),
        httpx.Response(200, content=b"\xff"),
        httpx.Response(204),
        httpx.Response(201, json={"profiles": 2}),
        httpx.Response(200, content=b" " * (SMALL + 1)),
        httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=Pieces(b"x", 1)),
    ],
)
def test_a_malformed_answer_is_one_readable_line(answer: httpx.Response) -> None:
    coordinator = Scripted(answer)
    with pytest.raises(UntrustedCoordinator) as caught:
        coordinator.task().selection()
    assert "GET" in str(caught.value) and "\n" not in str(caught.value)
    assert caught.value.__cause__ is None and (caught.value.__suppress_context__ or not caught.value.__context__)
    assert len(coordinator.requests) == 1


def test_fields_of_a_later_version_are_ignored() -> None:
    verdict = Scripted(httpx.Response(200, json={"profiles": 2, "more": 1})).task().selection()
    assert (verdict.profiles, verdict.selected) == (2, None)


def test_a_task_that_requires_something_unknown_is_refused_with_both_versions() -> None:
    spec = preset("digits").model_dump(mode="json") | {"protocol_version": "1.9"}
    spec |= {"requires": ["mechanism.shuffled", "answer.rho"], "privacy": {"mechanism": {"name": "shuffled"}}}
    with pytest.raises(UnsupportedTask, match=r"mechanism\.shuffled of protocol 1\.9.* protocol 1\.2"):
        Scripted(httpx.Response(200, json={"task_id": TASK, "spec": spec})).task().task()


@pytest.mark.parametrize(
    ("call", "limit"),
    [
        (TaskApi.selection, SMALL),
        (TaskApi.task, SPEC),
        (TaskApi.announcement, SMALL),
        (lambda api: api.round(1), SMALL),
        (lambda api: api.answer(1, Declaration(rho=0.05)), SMALL),
    ],
    ids=["selection", "task", "announcement", "round", "answer"],
)
def test_an_endless_answer_is_cut_off_at_its_limit(call: Callable[[TaskApi], object], limit: int) -> None:
    body = Pieces(b" " * 65536, 1_000_000)
    with pytest.raises(UntrustedCoordinator, match="longer than"):
        call(Scripted(httpx.Response(200, stream=body)).task())
    assert body.taken == limit // 65536 + 1
    assert body.closed


def test_an_endless_ledger_is_cut_off_at_the_rounds_of_the_task() -> None:
    body = Pieces(b" " * 1000, 1_000_000)
    with pytest.raises(UntrustedCoordinator, match="longer than"):
        Scripted(task_view(), httpx.Response(200, stream=body)).task().ledger()
    assert body.taken == ledger_limit(SPEC_OF_TASK.game.horizon) // 1000 + 1


def test_the_rounds_of_a_task_are_read_once_for_its_ledger() -> None:
    empty = {"client_id": "c1", "entries": [], "spent_rho": 0.0, "epsilon": 0.0, "delta": 1e-5, "earned_micro": 0}
    coordinator = Scripted(task_view(), httpx.Response(200, json=empty))
    api = coordinator.task()
    for _ in range(2):
        assert api.ledger().entries == ()
    assert len(coordinator.requests) == 3


def test_a_task_that_shows_another_id_or_digest_is_not_trusted() -> None:
    with pytest.raises(UntrustedCoordinator, match="another"):
        Scripted(task_view(task_id="another")).task().task()
    with pytest.raises(UntrustedCoordinator, match="digest"):
        Scripted(task_view(spec_digest="0" * 64)).task().task()


def test_a_task_whose_spec_changes_is_not_trusted() -> None:
    changed = preset("digits", {"game": {"horizon": 3}})
    other = task_view(spec=changed.model_dump(mode="json"), spec_digest=changed.digest)
    api = Scripted(task_view(), task_view(), other).task()
    assert api.task().spec_digest == api.task().spec_digest
    with pytest.raises(UntrustedCoordinator, match="another spec"):
        api.task()


def test_an_enrolment_with_another_spec_than_shown_before_is_not_trusted() -> None:
    api = Scripted(task_view(), enrolled(spec_digest="1" * 64)).task()
    api.task()
    with pytest.raises(UntrustedCoordinator, match="another spec"):
        api.enrol(code=CODE, key=KEY)
    assert api.token == TOKEN


def test_the_result_of_another_round_is_not_trusted() -> None:
    result = {
        "round_number": 2,
        "attempt": 1,
        "state": "open",
        "reward_micro": 1,
        "paid_micro": 0,
        "kept_micro": 0,
        "total": 0.1,
        "updates": 0,
        "model_version": 1,
    }
    answer = httpx.Response(200, json=result)
    assert Scripted(answer).task().round(2).round_number == 2
    with pytest.raises(UntrustedCoordinator):
        Scripted(answer).task().round(1)


@pytest.mark.parametrize("receipt", [update_receipt(b"other"), update_receipt(round_number=2)])
def test_a_receipt_for_another_update_is_not_trusted(receipt: httpx.Response) -> None:
    with pytest.raises(UntrustedCoordinator):
        Scripted(receipt).task().upload(1, UPDATE)


@pytest.mark.parametrize("changes", [{"rho": 0.06}, {"rho": None}, {"round_number": 2}, {"state": "declined"}])
def test_a_receipt_for_another_budget_is_not_trusted(changes: dict[str, Any]) -> None:
    assert Scripted(budget_receipt()).task().answer(1, Declaration(rho=0.05)).rho == 0.05
    with pytest.raises(UntrustedCoordinator):
        Scripted(budget_receipt(**changes)).task().answer(1, Declaration(rho=0.05))


def test_the_receipt_of_a_decline_may_show_the_withdrawn_budget() -> None:
    receipt = Scripted(budget_receipt(state="declined")).task().answer(1, Decline(decline=True, reason="no"))
    assert (receipt.state, receipt.rho) == ("declined", 0.05)


# --- models ----------------------------------------------------------------------------------------------------------


def test_a_model_with_the_right_digest_is_returned_unchanged() -> None:
    vector = np.arange(650, dtype=np.float32)
    data = encode(vector)
    got = Scripted(httpx.Response(200, content=data)).task().model(3, digest=digest_of(data), dimension=650)
    np.testing.assert_array_equal(got, vector)


def test_the_dimension_of_a_model_is_read_once() -> None:
    data = encode(np.zeros(650))
    coordinator = Scripted(task_view(), httpx.Response(200, content=data))
    api = coordinator.task()
    for _ in range(2):
        api.model(3, digest=digest_of(data))
    assert [request.url.path.rpartition("/")[2] for request in coordinator.requests] == [TASK, "3", "3"]


@pytest.mark.parametrize(
    ("data", "digest"),
    [
        (bytes(2600), digest_of(b"another model")),
        (bytes(2596), digest_of(bytes(2600))),
        (bytes(2596), digest_of(bytes(2596))),
        (b"", digest_of(b"")),
        (np.full(650, np.nan, dtype="<f4").tobytes(), digest_of(np.full(650, np.nan, dtype="<f4").tobytes())),
    ],
    ids=["other digest", "truncated", "too short with its digest", "empty", "not finite"],
)
def test_a_wrong_model_is_refused(data: bytes, digest: str) -> None:
    with pytest.raises(UntrustedCoordinator):
        Scripted(httpx.Response(200, content=data)).task().model(3, digest=digest, dimension=650)


def test_a_model_is_read_only_up_to_its_length() -> None:
    body = Pieces(bytes(100), 1_000_000)
    with pytest.raises(UntrustedCoordinator, match="longer than 2600 bytes"):
        Scripted(httpx.Response(200, stream=body)).task().model(3, digest="0" * 64, dimension=650)
    assert body.taken == 27
