"""Bidding: the best response within every limit, or a decline with its reason."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qidpfl_client.owner import LIFETIME_RHO, RHO_CAP, Owner
from qidpfl_client.participant.bidding import Bid, NoBid, decide
from qidpfl_shared.core.equilibrium import best_response
from qidpfl_shared.core.money import to_micro
from qidpfl_shared.core.planning import Standing
from qidpfl_shared.core.utility import training_cost
from qidpfl_shared.protocol.messages import RoundOffer
from qidpfl_shared.protocol.presets import preset

SPEC = preset("digits")
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def offer(**changes: Any) -> RoundOffer:
    fields: dict[str, Any] = {
        "round_number": 1,
        "attempt": 1,
        "reward_micro": to_micro(30),
        "total": 0.5,
        "standing": Standing.INVITED,
        "model_version": 0,
        "model_digest": "0" * 64,
        "mechanism": "gradient_once",
        "clip_norm": 1.0,
        "dimension": 650,
        "rho_max": SPEC.bounds.rho_max,
        "noise": True,
        "declare_by": MOMENT,
        "deliver_by": MOMENT,
        "declare_in_s": 1.0,
        "deliver_in_s": 1.0,
    }
    return RoundOffer(**fields | changes)


limits = st.floats(min_value=1e-4, max_value=2)


@given(
    reward=st.floats(min_value=0, max_value=300),
    total=st.floats(min_value=0, max_value=5),
    privacy_value=st.floats(min_value=0.01, max_value=100),
    rho_cap=limits,
    remaining=limits,
    fixed_cost=st.floats(min_value=0, max_value=5),
    min_utility=st.floats(min_value=-1, max_value=5),
)
def test_a_bid_is_the_best_response_within_every_limit_and_worth_its_cost(
    reward: float,
    total: float,
    privacy_value: float,
    rho_cap: float,
    remaining: float,
    fixed_cost: float,
    min_utility: float,
) -> None:
    announced = offer(reward_micro=to_micro(reward), total=total)
    owner = Owner(privacy_value=privacy_value, rho_cap=rho_cap, min_utility=min_utility)
    decision = decide(offer=announced, spec=SPEC, owner=owner, remaining_rho=remaining, fixed_cost=fixed_cost)
    cap = min(SPEC.bounds.rho_max, remaining, rho_cap)
    weight = SPEC.game.privacy_weight
    reward = announced.reward_micro / 1e6
    best = best_response(reward=reward, total=total, privacy_value=privacy_value, privacy_weight=weight, cap=cap)
    cost = training_cost(rho=best, privacy_value=privacy_value, privacy_weight=weight, fixed=fixed_cost)
    utility = best / max(total, best) * reward - cost if best else 0.0
    if isinstance(decision, Bid):
        assert decision.rho == best <= cap
        assert SPEC.bounds.rho_min <= decision.rho
        assert decision.utility == utility >= min_utility
        assert decision.payment <= reward
    else:
        assert decision.code is not None and (best < SPEC.bounds.rho_min or utility < min_utility)


def test_the_reason_of_a_decline_is_the_right_one() -> None:
    def declined(remaining_rho: float = 1.0, fixed_cost: float = 0.0, **owner: Any) -> tuple[str, str]:
        decision = decide(
            offer=offer(), spec=SPEC, owner=Owner(**owner), remaining_rho=remaining_rho, fixed_cost=fixed_cost
        )
        assert isinstance(decision, NoBid) and decision.code is not None
        return decision.code.value, decision.reason

    code, reason = declined(remaining_rho=0.0)
    assert code == "owner_limit" and reason.startswith("lifetime budget exhausted: ") and "ledger raise" in reason
    assert declined(privacy_value=50.0) == (
        "priced_out",
        "priced out: the reward does not pay for this privacy",
    )
    code, reason = declined(rho_cap=SPEC.bounds.rho_min / 2)
    assert code == "owner_limit" and reason.startswith("the best budget 0.00025 is below")
    for options in ({"fixed_cost": 100.0}, {"min_utility": 100.0}):
        code, reason = declined(**options)
        assert code == "not_worth_it" and reason.startswith("not worth it: utility")


def test_no_reward_and_no_task_buys_more_than_the_ceiling_of_an_owner_who_sets_none() -> None:
    rich = {"reward_max_micro": to_micro(1e9), "reward_total_micro": to_micro(1e9)}
    greedy = preset("digits", {"bounds": {"rho_max": 50.0, **rich}})
    announced = offer(rho_max=50.0, reward_micro=to_micro(1e9), total=1e6)
    decision = decide(offer=announced, spec=greedy, owner=Owner(), remaining_rho=LIFETIME_RHO)
    assert isinstance(decision, Bid) and decision.rho == RHO_CAP


@pytest.mark.parametrize("standing", [standing for standing in Standing if standing is not Standing.INVITED])
def test_a_client_that_is_not_invited_does_not_decline(standing: Standing) -> None:
    decision = decide(offer=offer(standing=standing), spec=SPEC, owner=Owner(), remaining_rho=1.0)
    assert decision == NoBid(f"not invited: {standing}", code=None)


def test_without_a_game_a_client_joins_without_a_budget() -> None:
    spec = preset("digits", {"game": {"policy": "none"}, "privacy": {"noise": False}})
    assert decide(offer=offer(noise=False), spec=spec, owner=Owner(), remaining_rho=0.0) == Bid(rho=0.0)


@pytest.mark.parametrize(
    ("min_utility", "fixed_cost", "joins"), [(0.0, 0.0, True), (0.0, 1.0, False), (5.0, 0.0, False)]
)
def test_without_a_game_costs_and_the_minimum_utility_still_apply(
    min_utility: float, fixed_cost: float, joins: bool
) -> None:
    spec = preset("digits", {"game": {"policy": "none"}, "privacy": {"noise": False}})
    announced = offer(noise=False, reward_micro=0, total=0.0)
    owner = Owner(min_utility=min_utility)
    decision = decide(offer=announced, spec=spec, owner=owner, remaining_rho=1.0, fixed_cost=fixed_cost)
    assert isinstance(decision, Bid) == joins


def spec_of(market: str) -> Any:
    bounds = {"privacy_value_min": 0.9, "privacy_value_max": 1.2}
    return preset("digits", {"game": {"market": market}, "bounds": bounds})


@given(value=st.floats(0.9, 1.2), rho_cap=limits, remaining=limits, fixed_cost=st.floats(0, 2))
@pytest.mark.parametrize("market", ["auction", "menu"])
def test_in_every_market_a_client_sells_no_more_than_its_limits_and_nothing_at_a_loss(
    market: str, value: float, rho_cap: float, remaining: float, fixed_cost: float
) -> None:
    base = {"base_rho": 0.15} if market == "menu" else {}
    announced = offer(total=0.85, rho_max=0.17, **base)
    owner = Owner(privacy_value=value, rho_cap=rho_cap)
    decision = decide(
        offer=announced, spec=spec_of(market), owner=owner, remaining_rho=remaining, fixed_cost=fixed_cost
    )
    if isinstance(decision, Bid):
        assert decision.rho <= min(rho_cap, remaining, 0.17)
        cost = training_cost(rho=decision.rho, privacy_value=value, privacy_weight=30, fixed=fixed_cost)
        assert decision.payment >= cost - 1e-6
        assert decision.utility == pytest.approx(decision.payment - cost)


def test_a_winner_sells_at_a_price_that_equals_its_value() -> None:
    # Reward 30 and weight 30: the price is 1/S.
    decision = decide(
        offer=offer(total=1 / 1.1, rho_max=0.1),
        spec=spec_of("auction"),
        owner=Owner(privacy_value=1.1, rho_cap=1.0),
        remaining_rho=1.0,
    )
    assert isinstance(decision, Bid) and decision.rho == 0.1
    assert decision.utility == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("base", [0.01, 0.0234567, 0.1, 0.15])
def test_a_client_with_the_largest_value_sells_its_base_of_a_menu(base: float) -> None:
    """It gains nothing, and rounding to micro-units costs it up to one of them."""
    decision = decide(
        offer=offer(total=0.85, rho_max=base * 1.2, base_rho=base),
        spec=spec_of("menu"),
        owner=Owner(privacy_value=1.2, rho_cap=1.0),
        remaining_rho=1.0,
    )
    assert isinstance(decision, Bid) and decision.rho == pytest.approx(base)
    assert decision.utility == pytest.approx(0, abs=1.1e-6)
