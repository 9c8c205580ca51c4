"""Numbers and money in messages: their types and their bounds."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qidpfl_shared.core.money import MAX_MICRO
from qidpfl_shared.protocol.ledger import Ledger, LedgerEntry
from qidpfl_shared.protocol.messages import (
    BudgetReceipt,
    ClientResult,
    Declaration,
    EnrolRequest,
    Event,
    Profile,
    RoundOffer,
    RoundResult,
    SelectionVerdict,
    TaskSummary,
    TaskView,
    UpdateReceipt,
)
from qidpfl_shared.protocol.operators import AccountSummary, ClientRound, OpenRound, RoundOutcomes, RoundSummary, WhatIf
from support.protocol.message_examples import (
    BOUNDED,
    EXAMPLES,
    Place,
    Reader,
    body_of,
    changed,
    codes_by_place,
    every_bounded_number,
    place_id,
    read_objects,
)
from support.protocol.refusals import codes_of

FLOATS: list[Place] = [
    (Declaration, "rho"),
    (Profile, "privacy_value"),
    (Profile, "histogram_rho"),
    (Profile, "rho_cap"),
    (Profile, "lifetime_rho"),
    (SelectionVerdict, "label_distance"),
    (RoundOffer, "total"),
    (RoundOffer, "clip_norm"),
    (RoundOffer, "rho_max"),
    (RoundOffer, "declare_in_s"),
    (BudgetReceipt, "rho"),
    (ClientResult, "rho"),
    (ClientResult, "regret"),
    (RoundResult, "accuracy"),
    (RoundResult, "declared_total"),
    (LedgerEntry, "proven_rho"),
    (Ledger, "spent_rho"),
    (Ledger, "epsilon"),
    (Ledger, "delta"),
]
INTEGERS: list[Place] = [
    (EnrolRequest, "ordinal"),
    (Profile, "size"),
    (SelectionVerdict, "profiles"),
    (RoundOffer, "round_number"),
    (RoundOffer, "attempt"),
    (RoundOffer, "reward_micro"),
    (RoundOffer, "model_version"),
    (RoundOffer, "dimension"),
    (UpdateReceipt, "byte_length"),
    (ClientResult, "payment_micro"),
    (Ledger, "earned_micro"),
    (Event, "id"),
    (TaskSummary, "paid_micro"),
]
MONEY: list[Place] = [
    *((RoundSummary, f"{name}_micro") for name in ("reward", "paid", "escrow", "kept")),
    *((WhatIf, f"{name}_micro") for name in ("money", "first_reward", "last_reward")),
    (OpenRound, "reward_micro"),
    (ClientRound, "payment_micro"),
    (ClientRound, "escrow_micro"),
    (AccountSummary, "earned_micro"),
    (AccountSummary, "escrow_micro"),
    (TaskSummary, "paid_micro"),
    (RoundOffer, "reward_micro"),
    (ClientResult, "payment_micro"),
    (RoundResult, "reward_micro"),
    (RoundResult, "paid_micro"),
    (RoundResult, "kept_micro"),
    (LedgerEntry, "payment_micro"),
    (Ledger, "earned_micro"),
    (BudgetReceipt, "payment_micro"),
    (ClientResult, "escrow_micro"),
    (RoundResult, "escrow_micro"),
    (LedgerEntry, "escrow_micro"),
    (Ledger, "escrow_micro"),
    (Ledger, "released_micro"),
]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_must_be_finite(read: Reader, value: float) -> None:
    assert codes_by_place(read, FLOATS, value) == {key: ["finite_number"] for key in FLOATS}


@pytest.mark.parametrize("digits", ["1e999", "-1e999", "1" + "0" * 400], ids=["1e999", "-1e999", "10**400"])
def test_a_number_too_large_for_a_float_is_refused_in_text(digits: str) -> None:
    texts = {place: json.dumps(changed(place, "HERE")).replace('"HERE"', digits) for place in FLOATS}
    codes = {(kind, field): codes_of(kind.model_validate_json, text) for (kind, field), text in texts.items()}
    assert codes == {key: ["finite_number"] for key in FLOATS}


def test_a_whole_number_too_large_for_a_float_is_refused_among_objects() -> None:
    assert codes_by_place(read_objects, FLOATS, 10**400) == {key: ["float_type"] for key in FLOATS}


@pytest.mark.parametrize("value", [True, False, "0.5", [0.5], {}], ids=repr)
def test_a_number_is_nothing_else(read: Reader, value: object) -> None:
    assert codes_by_place(read, FLOATS, value) == {key: ["float_type"] for key in FLOATS}


@pytest.mark.parametrize("place", FLOATS, ids=place_id)
def test_a_number_may_not_be_negative(read: Reader, place: Place) -> None:
    assert codes_of(read, place[0], changed(place, -1e-9))[0] in {"greater_than", "greater_than_equal"}


@pytest.mark.parametrize("value", [1e30, 10**30], ids=["1e30", "10**30"])
def test_values_that_a_client_states_have_an_upper_bound(read: Reader, value: float) -> None:
    stated = [place for place in FLOATS if place[0] in (Declaration, Profile)]
    assert codes_by_place(read, stated, value) == {key: ["less_than_equal"] for key in stated}


@pytest.mark.parametrize("value", [True, 3.0, 3.5, "3", math.nan, math.inf, [3]], ids=repr)
def test_a_whole_number_is_nothing_else(read: Reader, value: object) -> None:
    assert codes_by_place(read, INTEGERS, value) == {key: ["int_type"] for key in INTEGERS}


@pytest.mark.parametrize("value", [2**53, 10**30], ids=["2**53", "10**30"])
def test_a_whole_number_fits_into_every_json_reader(read: Reader, value: int) -> None:
    assert codes_by_place(read, INTEGERS, value) == {key: ["less_than_equal"] for key in INTEGERS}


def test_a_whole_number_may_not_be_negative(read: Reader) -> None:
    assert codes_by_place(read, INTEGERS, -1) == {key: ["greater_than_equal"] for key in INTEGERS}


@given(rho=st.floats(1e-12, 1e9))
def test_a_budget_keeps_its_last_bit(rho: float) -> None:
    assert Declaration.model_validate_json(Declaration(rho=rho).model_dump_json()).rho == rho


@every_bounded_number
def test_a_budget_and_a_privacy_value_reach_to_their_bounds(
    read: Reader, place: Place, bounds: tuple[float, float]
) -> None:
    assert [getattr(read(place[0], changed(place, bound)), place[1]) for bound in bounds] == list(bounds)


@every_bounded_number
def test_a_budget_or_a_privacy_value_just_below_its_bound_is_refused(
    read: Reader, place: Place, bounds: tuple[float, float]
) -> None:
    below = math.nextafter(bounds[0], 0)
    assert codes_of(read, place[0], changed(place, below)) == ["greater_than_equal"]


@every_bounded_number
def test_a_budget_or_a_privacy_value_just_above_its_bound_is_refused(
    read: Reader, place: Place, bounds: tuple[float, float]
) -> None:
    above = math.nextafter(bounds[1], math.inf)
    assert codes_of(read, place[0], changed(place, above)) == ["less_than_equal"]


@pytest.mark.parametrize("value", [5e-324, 1e-300, 1e-13], ids=repr)
def test_a_budget_that_drowns_in_rounding_is_refused(read: Reader, value: float) -> None:
    assert codes_by_place(read, list(BOUNDED), value) == {key: ["greater_than_equal"] for key in BOUNDED}


@pytest.mark.parametrize("micro", [0, 1, MAX_MICRO - 1, MAX_MICRO])
def test_money_keeps_its_last_unit(read: Reader, micro: int) -> None:
    kept = {place: body_of(read(place[0], changed(place, micro)))[place[1]] for place in MONEY}
    assert kept == {key: micro for key in MONEY}


@pytest.mark.parametrize("micro", [MAX_MICRO + 1, 2**53 - 1], ids=["one too many", "2**53 - 1"])
def test_money_ends_at_a_billion_units(read: Reader, micro: int) -> None:
    assert codes_by_place(read, MONEY, micro) == {key: ["less_than_equal"] for key in MONEY}


def test_every_field_for_money_is_tested() -> None:
    fields = {(type(message), name) for message in EXAMPLES for name in type(message).model_fields}
    left_out = (TaskView, RoundOutcomes)
    money = {(kind, name) for kind, name in fields if name.endswith("_micro") and kind not in left_out}
    assert money == set(MONEY)
