"""Bounds on a client's share of the reward and on its bid, inside the plan of a round."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.equilibrium import equilibrium, uncapped_shares
from qidpfl_shared.core.money import MICRO
from qidpfl_shared.core.participation import invite, share_bound
from qidpfl_shared.core.planning import PlanStatus, RoundPlan, Standing, plan_round
from qidpfl_shared.core.round_rules import Participant
from qidpfl_shared.protocol.presets import preset

# The bounds of a profile in a task of its own; the presets take values near 1 only.
WIDE = {"bounds": {"privacy_value_min": 0.01, "privacy_value_max": 100.0}}


def planned(
    values: list[float], *, defended: bool = True, sizes: list[int] | None = None, **changes: float
) -> RoundPlan:
    overrides: dict[str, object] = dict(WIDE) | ({"defence": changes} if defended else {"defence": None})
    return plan_round(
        rules=preset("digits", overrides).round_rules(),
        round_number=1,
        participants=[
            Participant(privacy_value=value, size=size)
            for value, size in zip(values, sizes or [110] * len(values), strict=True)
        ],
        reward_left_micro=10**10,
    )


def shares(plan: RoundPlan) -> list[float]:
    return [budget / plan.total for budget in plan.budgets]


def test_one_privacy_value_of_a_hundredth_took_most_of_the_reward() -> None:
    values = [0.01, *[1.0] * 9]
    assert shares(planned(values, defended=False))[0] > 0.6
    assert shares(planned(values))[0] == pytest.approx(0.2)


def test_two_such_values_priced_out_all_others() -> None:
    values = [0.01, 0.01, *[1.0] * 8]
    before, now = planned(values, defended=False), planned(values)
    assert before.standings.count(Standing.PRICED_OUT) == 8
    assert now.invited == 10
    assert sum(shares(now)[:2]) == pytest.approx(0.4)


def test_an_honest_market_is_not_changed() -> None:
    values = np.random.default_rng(0).uniform(0.95, 1.05, 10).tolist()
    before, now = planned(values, defended=False), planned(values)
    assert (before.reward_micro, before.total, before.budgets) == (now.reward_micro, now.total, now.budgets)


def test_a_bid_is_bounded_by_a_multiple_of_the_plan() -> None:
    plan = planned([0.95, 1.0, 1.05, 1.0], max_bid=1.25)
    assert [limit / budget for limit, budget in zip(plan.limits, plan.budgets, strict=True)] == pytest.approx(
        [1.25] * 4
    )


def test_a_client_at_the_largest_share_may_not_bid_more() -> None:
    plan = planned([0.01, *[1.0] * 9], max_bid=10.0)
    assert plan.limits[0] == pytest.approx(plan.budgets[0]) == pytest.approx(0.2 * plan.total)


def test_an_absurd_size_does_not_end_the_task() -> None:
    values, sizes = [1.0] * 10, [110] * 9 + [10**7]
    honest, now = planned(values), planned(values, sizes=sizes)
    assert now.status is PlanStatus.PLANNED
    assert now.reward_micro == honest.reward_micro


def test_the_announced_total_is_an_equilibrium_of_the_bounded_game() -> None:
    """No client gains by another bid within its limit, given the bids of the others."""
    values = [0.3, 0.9, 1.0, 1.1, 1.0, 0.95]
    plan = planned(values)
    reward, weight = plan.reward_micro / MICRO, preset("digits").game.privacy_weight
    for own, value in enumerate(values):
        others = plan.total - plan.budgets[own]
        top = min(plan.limits[own], share_bound(max_share=2.0, clients=6) * plan.total)

        def utility(rho: float, value: float = value, others: float = others) -> float:
            return rho / (rho + others) * reward - weight * value * rho

        best = max(utility(rho) for rho in np.linspace(0, top, 2001))
        assert utility(plan.budgets[own]) >= best - 1e-9 * reward


@given(
    st.lists(st.floats(0.01, 100), min_size=2, max_size=20),
    st.floats(1.01, 10),
    st.lists(st.floats(1e-3, 10), min_size=20, max_size=20),
)
@settings(max_examples=200)
def test_shares_add_up_to_one_and_stay_below_the_bound(values: list[float], factor: float, caps: list[float]) -> None:
    bound = share_bound(max_share=factor, clients=len(values))
    for limits in (None, caps[: len(values)]):
        market = equilibrium(reward=10.0, privacy_values=values, privacy_weight=1.0, caps=limits, max_share=bound)
        assert math.isclose(market.shares.sum(), 1.0, rel_tol=1e-6)
        assert market.shares.max() <= bound * (1 + 1e-6)
        assert (np.sort(market.budgets) >= 0).all()


def test_shares_without_a_bound_are_those_of_the_paper() -> None:
    values = [0.5, 1.0, 1.2, 3.0]
    assert (
        uncapped_shares(privacy_values=values).tolist()
        == uncapped_shares(privacy_values=values, max_share=1.0).tolist()
    )


def test_a_bound_below_an_equal_share_is_refused() -> None:
    with pytest.raises(ImpossibleArgument, match="max_share"):
        equilibrium(reward=1.0, privacy_values=[1.0, 1.0], privacy_weight=1.0, max_share=0.4)


def test_dear_clients_are_still_left_out() -> None:
    invitation = invite(privacy_values=[1.0, 1.0, 1.0, 9.0], min_share=0.3, min_clients=3, max_share=2.0)
    assert invitation.invited.tolist() == [True, True, True, False]
