"""Rounds of every market, planned as the server plans them: truth, statuses, and what the reward may depend on."""

import math
from dataclasses import replace

import numpy as np
import pytest

from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.custom_rules import RewardQuestion
from qidpfl_shared.core.markets.design import MarketKind, Terms
from qidpfl_shared.core.markets.menu import MenuPrior
from qidpfl_shared.core.markets.schedules import RewardSchedule, ScheduleKind
from qidpfl_shared.core.money import MICRO
from qidpfl_shared.core.planning import PlanStatus, RoundPlan, Standing, plan_round
from qidpfl_shared.core.reward import RewardPolicy, RewardRange, Weighting
from qidpfl_shared.core.round_rules import Participant, RoundRules
from support.round_rules import RULES

LOW, HIGH = 0.5, 2.0
AUCTION = replace(RULES, market=MarketKind.AUCTION, value_min=LOW, value_max=HIGH)
MENU = replace(RULES, market=MarketKind.MENU, value_min=LOW, value_max=HIGH)
FIXED = {"policy": RewardPolicy.FIXED, "fixed_reward": 20.0}


def planned(
    rules: RoundRules, values: list[float], *, caps: list[float] | None = None, sizes: list[int] | None = None
) -> RoundPlan:
    limits, counts = caps or [math.inf] * len(values), sizes or [100] * len(values)
    participants = [
        Participant(privacy_value=value, size=size, rho_cap=cap)
        for value, cap, size in zip(values, limits, counts, strict=True)
    ]
    return plan_round(rules=rules, round_number=1, participants=participants, reward_left_micro=10**15)


def utility(rules: RoundRules, plan: RoundPlan, place: int, value: float, reported: float) -> float:
    """What a client with this value gains if it answers as one with the reported value, and all others as planned."""
    if plan.standings[place] is not Standing.INVITED:
        return 0.0
    offered = Terms(
        reward_micro=plan.reward_micro, total=plan.total, limit=plan.limits[place], base=plan.budgets[place]
    )
    rho = rules.design.answer(offered, privacy_value=reported, cap=math.inf).rho
    paid = rules.design.earned(
        reward_micro=plan.reward_micro,
        total=plan.total,
        budgets=np.array([plan.budgets[place]]),
        sold=np.array([rho]),
    )
    return float(paid[0]) - rules.privacy_weight * value * rho


@pytest.mark.parametrize("weighting", [Weighting.SIZE, Weighting.INVERSE_VARIANCE])
@pytest.mark.parametrize("rules", [AUCTION, replace(AUCTION, winners=3), MENU], ids=["auction", "three", "menu"])
@pytest.mark.parametrize("policy", [{}, FIXED], ids=["optimal", "fixed"])
def test_no_report_but_the_truth_pays_also_through_the_reward(
    rules: RoundRules, weighting: Weighting, policy: dict[str, object]
) -> None:
    rules = replace(rules, weighting=weighting, rho_max=math.inf, **policy)  # type: ignore[arg-type]
    source = np.random.default_rng(7)
    for _ in range(3):
        values = source.uniform(0.9, 1.1, 5).tolist()
        sizes = [int(size) for size in source.integers(50, 200, 5)]
        caps = source.uniform(0.02, 0.4, 5).tolist()
        truth = planned(rules, values, caps=caps, sizes=sizes)
        for place, value in enumerate(values):
            honest = utility(rules, truth, place, value, value)
            assert honest >= -1e-12
            for factor in np.linspace(0.5, 2.0, 31):
                reports = [*values[:place], value * factor, *values[place + 1 :]]
                plan = planned(rules, reports, caps=caps, sizes=sizes)
                # One micro-unit of the reward can move where it is rounded.
                assert utility(rules, plan, place, value, value * factor) <= honest + 1e-9


def test_the_reward_of_an_auction_does_not_depend_on_the_reports_of_winners() -> None:
    first = planned(AUCTION, [1.0, 1.1, 1.2, 1.3])
    second = planned(AUCTION, [0.6, 0.7, 1.25, 1.3])
    assert first.reward_micro == second.reward_micro
    assert first.total == second.total
    assert first.standings == (*(Standing.INVITED,) * 3, Standing.PRICED_OUT)
    assert planned(AUCTION, [1.0, 1.1, 1.2, 1.4]).reward_micro != first.reward_micro


def test_the_winners_of_an_auction_share_the_reward() -> None:
    plan = planned(replace(AUCTION, winners=2, **FIXED), [1.0, 1.2, 1.1, 1.5], caps=[0.1, 0.5, math.inf, 0.5])  # type: ignore[arg-type]
    assert plan.reward_micro == 20 * MICRO
    assert plan.total == pytest.approx(20 / (30 * 1.2))
    assert plan.budgets == pytest.approx((0.1, 0, 10 / 36, 0))
    assert plan.budgets == plan.limits
    assert plan.min_updates == 2


def test_a_custom_policy_sees_no_report_of_a_seller() -> None:
    asked: list[RewardQuestion] = []

    def reward(question: RewardQuestion) -> float:
        asked.append(question)
        return question.optimal_reward()

    for rules in (AUCTION, MENU):
        own = replace(rules, policy=RewardPolicy.OWN)
        participants = [Participant(privacy_value=value, size=100) for value in (1.0, 1.1, 1.2, 1.3)]
        plan = plan_round(
            rules=own, round_number=1, participants=participants, reward_left_micro=10**15, custom_reward=reward
        )
        expected = plan_round(rules=rules, round_number=1, participants=participants, reward_left_micro=10**15)
        assert plan.reward_micro == expected.reward_micro
    assert [question.privacy_values.tolist() for question in asked] == [[1.3] * 3, [HIGH] * 4]


def test_an_auction_invites_the_least_number_of_clients_at_the_largest_value() -> None:
    plan = planned(AUCTION, [1.0, 1.1, 1.2])
    assert plan.invited == 3
    assert plan.reward_micro / MICRO / (30 * plan.total) == pytest.approx(HIGH)


def test_a_menu_invites_all_clients_and_knows_no_value() -> None:
    first, second = planned(MENU, [1.0, 1.1, 1.2]), planned(MENU, [0.5, 2.0, 2.0])
    assert first == second
    assert first.standings == (Standing.INVITED,) * 3
    assert first.limits == pytest.approx([2 * base for base in first.budgets])


def test_a_client_that_could_sell_too_little_is_not_invited() -> None:
    rules = replace(MENU, rho_min=1e-3, **FIXED)  # type: ignore[arg-type]
    plan = planned(rules, [1.0] * 4, sizes=[100, 100, 100, 1], caps=[0.5] * 4)
    assert plan.standings[:3] == (Standing.INVITED,) * 3
    uniform = planned(replace(rules, rho_min=0.2, rho_max=0.5, fixed_reward=1.0), [1.0] * 4)
    assert uniform.status is PlanStatus.NO_REWARD


@pytest.mark.parametrize("rules", [AUCTION, MENU])
def test_statuses_are_those_of_the_contest(rules: RoundRules) -> None:
    assert planned(rules, [1.0]).status is PlanStatus.TOO_FEW_CLIENTS
    assert planned(rules, [1.0, 1.0], caps=[0.0, 0.1]).status is PlanStatus.TOO_FEW_CLIENTS
    nothing = replace(rules, policy=RewardPolicy.FIXED, fixed_reward=0.0)
    assert planned(nothing, [1.0] * 4).status is PlanStatus.NO_REWARD


def test_schedules_change_the_rewards_of_every_policy() -> None:
    def rewards(rules: RoundRules, kind: ScheduleKind | None) -> list[float]:
        model = rules.cost_model
        schedule = None if kind is None else RewardSchedule(kind=kind, horizon=model.horizon, discount=model.discount)
        participants = [Participant(privacy_value=value, size=100) for value in (1.0, 1.02, 1.04)]
        plans = [
            plan_round(
                rules=replace(rules, schedule=schedule),
                round_number=number,
                participants=participants,
                reward_left_micro=10**15,
                custom_reward=lambda _: 5.0,
            )
            for number in (1, 2, 20)
        ]
        return [plan.reward_micro / MICRO for plan in plans]

    loose = replace(RULES, rho_max=math.inf, reward_max_micro=10**12)
    for rules in (loose, *(replace(one, rho_max=math.inf, reward_max_micro=10**12) for one in (AUCTION, MENU))):
        paper, flat = rewards(rules, None), rewards(rules, ScheduleKind.FLAT)
        assert rewards(rules, ScheduleKind.GROWTH) == pytest.approx(paper, rel=1e-6)
        assert flat[0] == flat[2]
        assert paper[0] < flat[0] < paper[2]
    fixed = replace(loose, policy=RewardPolicy.FIXED, fixed_reward=5.0)
    assert rewards(fixed, ScheduleKind.FLAT) == [5.0] * 3
    growing = rewards(fixed, ScheduleKind.GROWTH)
    assert growing[1] / growing[0] == pytest.approx(0.93**-0.5, rel=1e-6)
    assert rewards(replace(loose, policy=RewardPolicy.OWN), ScheduleKind.GROWTH) == growing
    largest = replace(loose, policy=RewardPolicy.MAX, reward_range=RewardRange(maximum=5.0))
    assert rewards(largest, ScheduleKind.GROWTH) == [growing[0], growing[1], 5.0]


def test_impossible_rules_are_refused() -> None:
    for wrong, said in (
        ({"winners": 1}, "winners"),
        ({"value_min": 3.0, "value_max": 2.0}, "value_min"),
        ({"market": "bazaar"}, "market"),
        ({"prior": "normal"}, "prior"),
    ):
        with pytest.raises(ImpossibleArgument, match=said):
            replace(RULES, **wrong)
    menu = replace(MENU, prior=MenuPrior.UNIFORM)
    assert planned(menu, [1.0] * 3).status is PlanStatus.PLANNED
