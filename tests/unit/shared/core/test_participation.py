"""Invitation by smallest share, and withdrawal under fixed costs, against step-by-step twins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qidpfl_shared.core.equilibrium import MarketStatus, equilibrium, uncapped_shares
from qidpfl_shared.core.participation import invite, participation, reward_that_keeps_all

# Distinct values: which of two equals goes first is tested on its own.
values = st.lists(st.floats(0.5, 1.5), min_size=0, max_size=12, unique=True)


def invite_step_by_step(nu: list[float], min_share: float, min_clients: int) -> list[bool]:
    """The rule as it is written: drop the smallest share while it is too small, then solve again."""
    invited = uncapped_shares(privacy_values=nu) > 0
    while invited.sum() > min_clients:
        shares = np.full(len(nu), np.inf)
        shares[invited] = uncapped_shares(privacy_values=np.array(nu)[invited])
        if shares.min() >= min_share / invited.sum() - 1e-12:
            break
        invited[int(np.argmin(shares))] = False
    return [bool(flag) for flag in invited]


def withdraw_step_by_step(reward: float, nu: list[float], fixed: list[float]) -> list[bool]:
    """The rule as it is written: the bidder with the lowest utility leaves while that utility is negative."""
    gone = np.zeros(len(nu), dtype=bool)
    while True:
        game = equilibrium(reward=reward, privacy_values=nu, privacy_weight=1, caps=np.where(gone, 0, np.inf))
        gains = np.where(game.active, game.shares**2 * reward - fixed, np.inf)
        if not game.active.any() or gains.min() >= 0:
            return [bool(flag) for flag in gone]
        gone[int(np.argmin(gains))] = True


@given(values, st.floats(0, 1), st.integers(2, 5))
def test_invitation_follows_the_rule_step_by_step(nu: list[float], min_share: float, min_clients: int) -> None:
    invitation = invite(privacy_values=nu, min_share=min_share, min_clients=min_clients)
    assert invitation.invited.tolist() == invite_step_by_step(nu, min_share, min_clients)


@given(values, st.floats(0, 1))
def test_each_client_is_invited_priced_out_or_below_the_smallest_share(nu: list[float], min_share: float) -> None:
    invitation = invite(privacy_values=nu, min_share=min_share)
    counted = invitation.invited.astype(int) + invitation.priced_out + invitation.below_min_share
    assert (counted == 1).all()


def test_min_share_zero_is_the_paper() -> None:
    nu = [0.95, 1.0, 1.04, 1.3]
    invitation = invite(privacy_values=nu, min_share=0)
    assert invitation.invited.tolist() == (uncapped_shares(privacy_values=nu) > 0).tolist()


def test_of_equals_the_later_one_is_left_out_first() -> None:
    nu = [1.0, 1.0, 1.0, 1.335, 1.335]
    assert invite(privacy_values=nu, min_share=0.3).invited.tolist() == [True, True, True, True, False]


def test_the_rule_never_goes_below_the_minimum() -> None:
    nu = [1.0, 1.0, 1.9]
    assert invite(privacy_values=nu, min_share=1, min_clients=3).invited.all()
    assert invite(privacy_values=nu, min_share=1, min_clients=2).invited.tolist() == [True, True, False]


@given(st.data(), values, st.floats(0.1, 10))
def test_withdrawal_follows_the_rule_step_by_step(data: st.DataObject, nu: list[float], reward: float) -> None:
    fixed = data.draw(st.lists(st.floats(0, 1), min_size=len(nu), max_size=len(nu), unique=True))
    stay = participation(reward=reward, privacy_values=nu, privacy_weight=1, fixed_costs=fixed)
    assert stay.withdrawn.tolist() == withdraw_step_by_step(reward, nu, fixed)
    assert (stay.utilities >= 0).all()


def test_the_remaining_clients_earn_at_least_their_fixed_costs() -> None:
    stay = participation(reward=4, privacy_values=[1] * 4, privacy_weight=1, fixed_costs=[0.3] * 4)
    # R/n² = 0.25 for four, 0.44 for three: the last one leaves and the others stay.
    assert stay.withdrawn.tolist() == [False, False, False, True]
    assert stay.utilities.tolist() == pytest.approx([4 / 9 - 0.3] * 3 + [0])


def test_the_market_is_empty_if_a_round_pays_no_client() -> None:
    stay = participation(reward=1, privacy_values=[1, 1, 1], privacy_weight=1, fixed_costs=[9, 9, 9])
    assert stay.equilibrium.status is MarketStatus.TOO_FEW_CLIENTS
    assert not stay.utilities.any()


def test_without_a_reward_no_client_withdraws() -> None:
    stay = participation(reward=0, privacy_values=[1, 1], privacy_weight=1, fixed_costs=[1, 1])
    assert stay.equilibrium.status is MarketStatus.NO_REWARD
    assert not stay.withdrawn.any()


def test_a_withdrawal_can_let_a_priced_out_client_in() -> None:
    nu, fixed = [1.0, 1.0, 2.1], [0.0, 5.0, 0.0]
    assert not equilibrium(reward=10, privacy_values=nu, privacy_weight=1).active[2]
    stay = participation(reward=10, privacy_values=nu, privacy_weight=1, fixed_costs=fixed)
    assert stay.withdrawn.tolist() == [False, True, False]
    assert stay.equilibrium.active[2]


@pytest.mark.slow
def test_a_hundred_thousand_clients_can_withdraw() -> None:
    rng = np.random.default_rng(0)
    fixed = rng.uniform(0, 1e-3, 100_000)
    stay = participation(reward=10, privacy_values=np.ones(fixed.size), privacy_weight=1, fixed_costs=fixed)
    assert stay.utilities.min() >= 0
    assert stay.withdrawn.sum() > 90_000


@given(st.lists(st.floats(0.9, 1.1), min_size=2, max_size=8), st.floats(0.001, 1))
def test_the_reward_that_keeps_all_is_the_smallest_that_does(nu: list[float], fixed: float) -> None:
    costs = [fixed] * len(nu)
    enough = reward_that_keeps_all(privacy_values=nu, fixed_costs=costs)
    kept = participation(reward=enough * (1 + 1e-9), privacy_values=nu, privacy_weight=1, fixed_costs=costs)
    lost = participation(reward=enough * (1 - 1e-6), privacy_values=nu, privacy_weight=1, fixed_costs=costs)
    assert not kept.withdrawn.any()
    assert lost.withdrawn.any()
