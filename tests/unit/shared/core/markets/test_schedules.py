"""Schedules: the paper's growth, flat and given rewards, each with the least cost among those of its shape."""

import math

import numpy as np
import pytest

from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.markets.schedules import RewardSchedule, ScheduleKind
from support.round_rules import COST_MODEL

HORIZON, DISCOUNT = COST_MODEL.horizon, COST_MODEL.discount
SHAPE = tuple(float(place) for place in range(HORIZON, 0, -1))


def schedule(kind: ScheduleKind, weights: tuple[float, ...] | None = None) -> RewardSchedule:
    return RewardSchedule(kind=kind, horizon=HORIZON, discount=DISCOUNT, weights=weights)


def test_growth_is_the_papers_discount() -> None:
    growth = schedule(ScheduleKind.GROWTH)
    for number in range(1, HORIZON + 1):
        assert growth.discount_at(number) == pytest.approx(DISCOUNT ** (number - 1), rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "weights"), [(ScheduleKind.GROWTH, None), (ScheduleKind.FLAT, None), (ScheduleKind.GIVEN, SHAPE)]
)
def test_the_rewards_have_the_shape_and_the_least_cost_of_all_with_it(
    kind: ScheduleKind, weights: tuple[float, ...] | None
) -> None:
    known, noise = schedule(kind, weights), 7.0
    numbers = range(1, HORIZON + 1)
    rewards = np.array([math.sqrt(noise / (0.5 * known.discount_at(number))) for number in numbers])
    multiples = np.array([known.multiple(number) for number in numbers])
    assert rewards / rewards.mean() == pytest.approx(multiples)
    assert multiples.mean() == pytest.approx(1)

    def cost(paid: np.ndarray) -> float:
        return float(sum(noise / paid[t - 1] + COST_MODEL.price(t) * paid[t - 1] for t in numbers))

    assert cost(rewards) <= min(cost(rewards * factor) for factor in (0.9, 0.99, 1.01, 1.1))


def test_a_given_shape_has_no_unit() -> None:
    once = schedule(ScheduleKind.GIVEN, SHAPE)
    twice = schedule(ScheduleKind.GIVEN, tuple(2 * part for part in SHAPE))
    assert once.discount_at(3) == twice.discount_at(3)
    assert once.multiple(3) == twice.multiple(3)


def test_impossible_schedules_are_refused() -> None:
    for kind, weights in ((ScheduleKind.GIVEN, None), (ScheduleKind.FLAT, SHAPE), (ScheduleKind.GIVEN, SHAPE[1:])):
        with pytest.raises(ImpossibleArgument, match="weights"):
            schedule(kind, weights)._shape  # noqa: B018
    with pytest.raises(ImpossibleArgument, match="horizon"):
        schedule(ScheduleKind.FLAT).multiple(HORIZON + 1)
