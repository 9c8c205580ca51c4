"""`plan_round`: the order of its steps, its statuses, and agreement with the parts it is made of."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.equilibrium import best_response, equilibrium
from qidpfl_shared.core.money import MICRO, to_micro
from qidpfl_shared.core.planning import PlanStatus, RewardBound, RoundPlan, Standing, plan_round
from qidpfl_shared.core.reward import Market, RewardPolicy, RewardRange, Weighting, optimal_reward
from qidpfl_shared.core.round_rules import Participant
from support.round_rules import RULES

PLENTY = 10**12


def crowd(*privacy_values: float, **common: Any) -> list[Participant]:
    return [Participant(privacy_value=value, size=100, **common) for value in privacy_values]


def plan(participants: list[Participant], round_number: int = 1, left: int = PLENTY, **changes: Any) -> RoundPlan:
    rules = dataclasses.replace(RULES, **changes)
    return plan_round(rules=rules, round_number=round_number, participants=participants, reward_left_micro=left)


def test_an_ordinary_round_offers_the_optimal_reward_and_its_equilibrium() -> None:
    values = [0.95, 0.98, 1.0, 1.02, 1.05]
    result = plan(crowd(*values), round_number=4)
    market = Market(
        cost_model=RULES.cost_model,
        weighting=Weighting.SIZE,
        privacy_weight=30,
        privacy_values=np.array(values),
        sizes=np.full(5, 100.0),
        noise_scales=np.full(5, 2 / 100**2),
    )
    expected = optimal_reward(market=market, round_number=4)
    assert result.status is PlanStatus.PLANNED
    assert result.reward_micro == to_micro(expected)
    assert result.standings == (Standing.INVITED,) * 5
    assert result.bound is RewardBound.NONE
    played = equilibrium(reward=result.reward_micro / MICRO, privacy_values=values, privacy_weight=30)
    assert result.total == played.total
    assert result.budgets == pytest.approx(played.budgets.tolist())


def test_each_client_can_check_its_budget_against_the_announcement() -> None:
    participants = [
        Participant(privacy_value=value, size=100, rho_cap=cap)
        for value, cap in ((0.9, 0.02), (1.0, math.inf), (1.1, 1))
    ]
    result = plan(participants)
    for participant, budget in zip(participants, result.budgets, strict=True):
        own = best_response(
            reward=result.reward_micro / MICRO,
            total=result.total,
            privacy_value=participant.privacy_value,
            privacy_weight=30,
            cap=RULES.cap(participant),
        )
        assert own == pytest.approx(budget, rel=1e-9)


def test_every_standing_has_its_reason() -> None:
    participants = [
        *crowd(0.98, 1.0, 1.0, 1.02),
        *crowd(1.0, set_aside=True),
        *crowd(1.0, remaining_rho=0.0),
        *crowd(1.32),
        *crowd(5.0),
    ]
    assert plan(participants).standings == (
        *(Standing.INVITED,) * 4,
        Standing.SET_ASIDE,
        Standing.NO_BUDGET,
        Standing.MIN_SHARE,
        Standing.PRICED_OUT,
    )


def test_budgets_stay_below_the_task_the_declared_and_the_lifetime_cap() -> None:
    participants = [
        *crowd(0.9, rho_cap=0.01),
        *crowd(0.9, remaining_rho=0.02),
        *crowd(0.9),
        *crowd(0.9),
    ]
    result = plan(participants, rho_max=0.015)
    assert result.budgets == pytest.approx((0.01, 0.015, 0.015, 0.015))


def test_the_reward_is_clamped_to_the_range_and_says_so() -> None:
    participants = crowd(0.95, 1.0, 1.05)
    wished = plan(participants).wished_reward
    low = plan(participants, reward_range=RewardRange(minimum=2 * wished))
    high = plan(participants, reward_range=RewardRange(maximum=wished / 2))
    assert (low.reward_micro, low.bound) == (to_micro(2 * wished), RewardBound.RANGE_MINIMUM)
    assert (high.reward_micro, high.bound) == (to_micro(wished / 2), RewardBound.RANGE_MAXIMUM)
    assert low.wished_reward == wished


def test_no_reward_exceeds_the_ceiling_of_the_task() -> None:
    result = plan(crowd(0.95, 1.0, 1.05), reward_max_micro=3 * MICRO)
    assert (result.reward_micro, result.bound) == (3 * MICRO, RewardBound.CEILING)


def test_a_reward_that_does_not_fit_ends_the_task() -> None:
    participants = crowd(0.95, 1.0, 1.05)
    reward = plan(participants).reward_micro
    assert plan(participants, left=reward).status is PlanStatus.PLANNED
    over = plan(participants, left=reward - 1)
    assert over.status is PlanStatus.BUDGET_EXHAUSTED
    assert (over.reward_micro, over.total) == (0, 0.0)


@pytest.mark.parametrize(
    "participants", [[], crowd(1.0), crowd(1.0, 1.0, set_aside=True), crowd(1.0, 1.0, rho_cap=0.0)]
)
def test_fewer_than_two_able_clients_are_a_status(participants: list[Participant]) -> None:
    result = plan(participants)
    assert result.status is PlanStatus.TOO_FEW_CLIENTS
    assert (result.reward_micro, result.total) == (0, 0.0)


def test_a_reward_of_nothing_is_a_status() -> None:
    result = plan(crowd(1.0, 1.0, 1.0), policy=RewardPolicy.FIXED, fixed_reward=0.0)
    assert result.status is PlanStatus.NO_REWARD


def test_two_able_clients_settle_with_two_updates() -> None:
    result = plan([*crowd(1.0, 1.0), *crowd(1.0, set_aside=True)])
    assert result.status is PlanStatus.PLANNED
    assert (result.invited, result.min_updates) == (2, 2)


def test_the_smallest_share_rule_does_not_go_below_min_clients() -> None:
    participants = crowd(1.0, 1.0, 1.9)
    assert plan(participants, min_share=1.0).invited == 3
    assert plan(participants, min_share=1.0, min_clients=2).invited == 2


def test_policies_offer_what_they_say() -> None:
    participants = crowd(0.95, 1.0, 1.05)
    admissible = RewardRange(minimum=2, maximum=9)
    assert plan(participants, policy=RewardPolicy.MAX, reward_range=admissible).reward_micro == 9 * MICRO
    assert plan(participants, policy=RewardPolicy.FIXED, fixed_reward=7.5).reward_micro == to_micro(7.5)
    draws = {
        plan(participants, t, policy=RewardPolicy.RANDOM, reward_range=admissible, seed=3).reward_micro
        for t in range(1, 11)
    }
    assert len(draws) == 10
    assert all(2 * MICRO <= draw <= 9 * MICRO for draw in draws)


def test_a_schedule_offers_each_round_its_own_reward_within_the_bounds_of_every_policy() -> None:
    schedule = (3.0, 0.5, 9.0, *[4.0] * 17)
    admissible = RewardRange(minimum=1.0, maximum=6.0)
    rules: dict[str, Any] = {"policy": RewardPolicy.FIXED, "reward_schedule": schedule, "reward_range": admissible}
    plans = [plan(crowd(0.95, 1.0, 1.05), t, **rules) for t in (1, 2, 3, 20)]
    assert [planned.wished_reward for planned in plans] == [3.0, 0.5, 9.0, 4.0]
    assert [planned.reward_micro for planned in plans] == [3 * MICRO, 1 * MICRO, 6 * MICRO, 4 * MICRO]
    assert [planned.bound for planned in plans[1:3]] == [RewardBound.RANGE_MINIMUM, RewardBound.RANGE_MAXIMUM]


def test_without_a_game_every_able_client_trains_without_reward() -> None:
    participants = [*crowd(1.0, 50.0), *crowd(1.0, set_aside=True)]
    result = plan(participants, policy=RewardPolicy.NONE)
    assert result.status is PlanStatus.PLANNED
    assert (result.reward_micro, result.total) == (0, 0.0)
    assert result.standings == (Standing.INVITED, Standing.INVITED, Standing.SET_ASIDE)


@given(
    st.lists(st.tuples(st.floats(0.5, 2), st.integers(10, 1000), st.floats(0.001, 1)), max_size=12),
    st.integers(1, 20),
    st.integers(0, 100 * MICRO),
)
def test_a_plan_keeps_its_guarantees_for_all_participants(
    crowd_data: list[tuple[float, int, float]], round_number: int, left: int
) -> None:
    participants = [Participant(privacy_value=v, size=s, rho_cap=c) for v, s, c in crowd_data]
    result = plan(participants, round_number, left)
    assert len(result.standings) == len(result.budgets) == len(participants)
    assert 0 <= result.reward_micro <= min(left, RULES.reward_max_micro)
    assert result.min_updates <= result.invited
    if result.status is PlanStatus.PLANNED:
        assert math.fsum(result.budgets) == pytest.approx(result.total, rel=1e-9)
        for participant, standing, budget in zip(participants, result.standings, result.budgets, strict=True):
            assert (budget > 0) == (standing is Standing.INVITED)
            assert budget <= RULES.cap(participant)
    else:
        assert not any(result.budgets)


def test_planning_is_a_pure_function_of_its_arguments() -> None:
    participants = [
        Participant(privacy_value=float(value), size=100) for value in np.random.default_rng(0).uniform(0.9, 1.1, 20)
    ]
    assert plan(participants) == plan(list(participants))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"policy": RewardPolicy.MAX}, "reward_range"),
        ({"policy": RewardPolicy.RANDOM}, "reward_range"),
        ({"policy": RewardPolicy.FIXED}, "fixed_reward"),
        ({"fixed_reward": 1.0}, "fixed_reward"),
        ({"min_clients": 1}, "min_clients"),
        ({"privacy_weight": 0.0}, "privacy_weight"),
        ({"policy": "bogus"}, "policy"),
        ({"weighting": "bogus"}, "weighting"),
        ({"min_share": 7.0}, "min_share"),
        ({"rho_min": 0.6}, "rho_min"),
        ({"policy": RewardPolicy.FIXED, "fixed_reward": -5.0}, "fixed_reward"),
        ({"policy": RewardPolicy.FIXED, "fixed_reward": 1.0, "reward_schedule": (1.0,) * 20}, "fixed_reward"),
        ({"reward_schedule": (1.0,) * 20}, "fixed_reward"),
        ({"policy": RewardPolicy.FIXED, "reward_schedule": (1.0,) * 19}, "reward_schedule"),
        ({"policy": RewardPolicy.FIXED, "reward_schedule": (*[1.0] * 19, -1.0)}, "reward_schedule"),
        ({"policy": RewardPolicy.OWN}, "custom_reward"),
    ],
)
def test_contradictory_rules_are_refused(changes: dict[str, Any], name: str) -> None:
    with pytest.raises(ImpossibleArgument, match=name):
        plan(crowd(1.0, 1.0), **changes)


def test_a_round_outside_the_horizon_is_refused() -> None:
    for round_number in (0, 21):
        with pytest.raises(ImpossibleArgument, match="round_number"):
            plan(crowd(1.0, 1.0), round_number)


def test_a_cap_below_the_smallest_admissible_budget_leaves_no_budget() -> None:
    participants = [*crowd(1.0, 1.0, 1.0), *crowd(1.0, rho_cap=1e-7)]
    assert plan(participants, rho_min=1e-6).standings[3] is Standing.NO_BUDGET


def test_a_lifetime_limit_that_was_switched_off_caps_nothing() -> None:
    assert RULES.cap(Participant(privacy_value=1.0, size=1, remaining_rho=math.inf)) == RULES.rho_max
