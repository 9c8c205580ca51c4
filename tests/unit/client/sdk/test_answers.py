"""Answers within limits of values: what is too much is refused before it is parsed or validated."""

import json
from typing import Any

import pytest

from qidpfl_client.sdk.answers import LARGE, SMALL, SPEC, NotValid, ledger_limit, parse, parse_list, problem_members
from qidpfl_shared.protocol.ledger import Ledger
from qidpfl_shared.protocol.messages import ModelInfo, TaskSummary, TaskView
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.task_spec import TaskSpec

ENTRY = {
    "release": "round/25000",
    "mechanism": "m" * 60,
    "state": "spent_unpaid",
    "rho": 0.12345678901234567,
    "proven_rho": 0.12345678901234567,
    "digest": "f" * 64,
    "payment_micro": 10**15,
}


def ledger(entries: int) -> bytes:
    totals = {"client_id": "c" * 32, "spent_rho": 1.0, "epsilon": 1.0, "delta": 1e-5, "earned_micro": 0}
    return json.dumps(totals | {"entries": [ENTRY] * entries}).encode()


def view(spec: TaskSpec) -> bytes:
    counts = {"settled_rounds": 0, "horizon": 1, "clients": 0, "paid_micro": 0}
    names = {"task_id": "t", "name": "n", "preset": None, "state": "enrolling", "spec_digest": spec.digest}
    return json.dumps(counts | names | {"spec": spec.model_dump(mode="json")}).encode()


@pytest.mark.parametrize("horizon", [1, 20, 2000, 25_000])
def test_the_ledger_of_every_round_fits(horizon: int) -> None:
    limit = ledger_limit(horizon)
    body = ledger(horizon + 1)
    assert len(body) <= limit
    assert len(parse(body, Ledger, limit=limit).entries) == horizon + 1


def test_the_limit_of_a_ledger_does_not_grow_without_end() -> None:
    assert ledger_limit(10**6) == ledger_limit(25_000) < LARGE


@pytest.mark.parametrize(
    "overrides",
    [
        {
            "workload": {"labels": 100_000},
            "layout": {"tensors": [{"name": "w", "shape": [100_000, 64]}]},
            "selection": {"reference": "given", "reference_weights": [0.1234567890123456] * 100_000},
        },
        {"layout": {"tensors": [{"name": f"block.{n}.{'x' * 150}", "shape": [3, 3, 3, 3]} for n in range(10_000)]}},
    ],
    ids=["reference weights", "tensors"],
)
def test_the_largest_specs_fit(overrides: dict[str, Any]) -> None:
    spec = preset("digits", overrides | {"workload": {"network": "own", **overrides.get("workload", {})}})
    body = view(spec)
    assert len(body) <= SPEC
    assert parse(body, TaskView, limit=SPEC).spec == spec


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"[" * 6000, "more than 5461 values"),
        (b"{" * 6000, "more than 5461 values"),
        (b'{"a":' * 3000, "more than 5461 values"),
        (b"[" + b"1," * 6000, "more than 5461 values"),
        (b"[" * 5000, "not JSON"),
        (json.dumps({str(n): n for n in range(101)}).encode(), "more than 100 members"),
        (json.dumps([[{"x": {str(n): n for n in range(101)}}]]).encode(), "more than 100 members"),
        (b"[NaN]", "Input should be"),
    ],
)
def test_too_many_values_are_refused(body: bytes, said: str) -> None:
    with pytest.raises(NotValid, match=said):
        parse(body, Ledger, limit=SMALL)


@pytest.mark.parametrize("item", [{}, 1, [], None, {"version": 0, "a": 1}])
def test_a_list_stops_at_its_first_wrong_item(item: object) -> None:
    body = json.dumps([item] * 800).encode()
    with pytest.raises(NotValid, match=r"^/0"):
        parse_list(body, ModelInfo, limit=SMALL)
    with pytest.raises(NotValid, match=r"^/entries/0"):
        entries = json.loads(ledger(0)) | {"entries": [item] * 800}
        parse(json.dumps(entries).encode(), Ledger, limit=LARGE)


def test_a_list_of_messages_is_read() -> None:
    assert parse_list(b"[]", TaskSummary, limit=SMALL) == []


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>", b"[" * 60_000, b'{"a":1,' * 20_000])
def test_a_body_that_is_no_problem_document_has_no_members(body: bytes) -> None:
    assert problem_members(body) == {}
