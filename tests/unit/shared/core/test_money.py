"""Micro-units and their split: exact for all floats."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.money import MAX_MICRO, from_micro, split_reward, to_micro

budgets = st.lists(st.one_of(st.floats(0, 1e300), st.floats(0, 1e-300), st.floats(0, 1)), max_size=30)
rewards = st.integers(0, MAX_MICRO)


@given(rewards, budgets, st.data())
def test_payments_and_what_is_kept_are_exactly_the_reward(
    reward: int, declared: list[float], data: st.DataObject
) -> None:
    delivered = data.draw(st.lists(st.booleans(), min_size=len(declared), max_size=len(declared)))
    split = split_reward(reward_micro=reward, declared=declared, delivered=delivered)
    assert sum(split.payments) + split.kept == reward
    assert all(payment >= 0 for payment in split.payments)
    assert all(payment == 0 for payment, there in zip(split.payments, delivered, strict=True) if not there)


@given(rewards, budgets)
def test_every_payment_is_within_one_micro_unit_of_its_exact_share(reward: int, declared: list[float]) -> None:
    split = split_reward(reward_micro=reward, declared=declared, delivered=[True] * len(declared))
    total = sum(map(Fraction, declared))
    if total == 0:
        assert split.kept == reward
        return
    assert split.kept == 0
    for rho, payment in zip(declared, split.payments, strict=True):
        assert abs(payment - reward * Fraction(rho) / total) < 1


@given(rewards, budgets, st.data())
def test_no_client_gains_when_others_do_not_deliver(reward: int, declared: list[float], data: st.DataObject) -> None:
    delivered = data.draw(st.lists(st.booleans(), min_size=len(declared), max_size=len(declared)))
    complete = split_reward(reward_micro=reward, declared=declared, delivered=[True] * len(declared))
    some = split_reward(reward_micro=reward, declared=declared, delivered=delivered)
    for full, now, there in zip(complete.payments, some.payments, delivered, strict=True):
        assert now == (full if there else 0)


def test_ties_go_to_the_earlier_client() -> None:
    split = split_reward(reward_micro=11, declared=[0.1, 0.1, 0.1], delivered=[True] * 3)
    assert split.payments == (4, 4, 3)


def test_the_largest_remainder_gets_the_odd_unit() -> None:
    assert split_reward(reward_micro=10, declared=[1, 1, 4], delivered=[True] * 3).payments == (2, 2, 6)
    assert split_reward(reward_micro=10, declared=[1, 2, 4], delivered=[True] * 3).payments == (1, 3, 6)


def test_without_declarations_the_server_keeps_the_reward() -> None:
    assert split_reward(reward_micro=7, declared=[], delivered=[]).kept == 7
    assert split_reward(reward_micro=7, declared=[0.0, 0.0], delivered=[True, True]).kept == 7


@given(st.floats(0, MAX_MICRO / 2e6))
def test_an_amount_in_micro_units_is_the_nearest_one(amount: float) -> None:
    assert abs(Fraction(amount) * 1_000_000 - to_micro(amount)) <= Fraction(1, 2)


def test_halves_round_to_even() -> None:
    assert to_micro(0.5e-6 * 2**0) in (0, 1)
    assert [to_micro(x / 2**20) for x in (0, 2**20)] == [0, 1_000_000]
    assert from_micro(to_micro(12.345678)) == 12.345678


@pytest.mark.parametrize("amount", [-1.0, float("nan"), float("inf"), 1e300])
def test_an_impossible_amount_is_refused(amount: float) -> None:
    with pytest.raises(ImpossibleArgument):
        to_micro(amount)
