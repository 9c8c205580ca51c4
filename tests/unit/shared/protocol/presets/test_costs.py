"""What the presets pay, and how much privacy they buy."""

import math
from functools import cache
from typing import Any

import numpy as np
import pytest

from qidpfl_shared.core.money import MICRO
from qidpfl_shared.core.planning import PlanStatus, RewardBound, RoundPlan, plan_round
from qidpfl_shared.core.round_rules import Participant
from qidpfl_shared.protocol.presets import preset
from support.protocol.task_texts import every_preset

pytestmark = pytest.mark.slow

# How many are selected at the threshold (of Dirichlet clients about two in three), and how many records each holds.
COHORTS = {
    "digits": (7, 110),
    "mnist": (12, 3000),
    "mnist-bad-clients": (14, 3000),
    "mnist-paper": (12, 3000),
    "mnist-paper-heuristic": (12, 3000),
    "emnist": (12, 5226),
    "emnist-small": (7, 1000),
    "cifar10": (7, 5000),
    "cifar10-paper": (7, 5000),
}
REWARDS = {"digits": (15, 30), "mnist": (18, 43), "emnist": (15, 66), "emnist-small": (24, 110), "cifar10": (11, 43)}
TOTALS = {"digits": 2.3, "mnist": 0.11, "emnist": 0.39, "emnist-small": 8.5, "cifar10": 2.9, "cifar10-paper": 11.8}


def plan(name: str, round_number: int, privacy_values: np.ndarray[Any, np.dtype[np.float64]]) -> RoundPlan:
    spec, size = preset(name), COHORTS[name][1]
    return plan_round(
        rules=spec.round_rules(),
        round_number=round_number,
        participants=[Participant(privacy_value=value, size=size) for value in privacy_values.tolist()],
        reward_left_micro=spec.bounds.reward_total_micro,
    )


def mean_reward(name: str, round_number: int) -> float:
    """Over twenty draws of privacy values, as in the description."""
    draws = (np.random.default_rng(seed).uniform(0.95, 1.05, COHORTS[name][0]) for seed in range(20))
    return math.fsum(plan(name, round_number, values).reward_micro / MICRO for values in draws) / 20


@cache
def plans(name: str) -> tuple[RoundPlan, ...]:
    values = np.linspace(0.95, 1.05, COHORTS[name][0])
    return tuple(plan(name, round_number, values) for round_number in range(1, preset(name).game.horizon + 1))


def total_rho(name: str) -> float:
    """Of the client that sells most, with its histogram."""
    histogram_rho = preset(name).privacy.histogram_rho
    assert histogram_rho is not None
    return histogram_rho + float(np.sum([round_plan.budgets for round_plan in plans(name)], axis=0).max())


@pytest.mark.parametrize(("name", "rewards"), REWARDS.items())
def test_the_first_reward_is_that_of_part_e(name: str, rewards: tuple[int, int]) -> None:
    assert mean_reward(name, 1) == pytest.approx(rewards[0], rel=0.15)


@pytest.mark.parametrize(("name", "rewards"), REWARDS.items())
def test_the_last_reward_is_that_of_part_e(name: str, rewards: tuple[int, int]) -> None:
    assert mean_reward(name, preset(name).game.horizon) == pytest.approx(rewards[1], rel=0.15)


@every_preset
def test_every_round_of_a_preset_can_be_held(name: str) -> None:
    assert {round_plan.status for round_plan in plans(name)} == {PlanStatus.PLANNED}


@every_preset
def test_no_bound_changes_the_reward_of_a_preset(name: str) -> None:
    assert {round_plan.bound for round_plan in plans(name)} == {RewardBound.NONE}


@every_preset
def test_no_budget_of_a_preset_reaches_its_cap(name: str) -> None:
    assert max(max(round_plan.budgets) for round_plan in plans(name)) < preset(name).bounds.rho_max


@every_preset
def test_no_budget_of_a_preset_is_too_small_to_be_declared(name: str) -> None:
    assert min(min(round_plan.budgets) for round_plan in plans(name)) > preset(name).bounds.rho_min


@pytest.mark.parametrize(("name", "total"), TOTALS.items())
def test_the_privacy_sold_in_a_whole_task_is_that_of_part_e(name: str, total: float) -> None:
    assert total_rho(name) == pytest.approx(total, rel=0.15)


@every_preset
def test_a_whole_task_fits_into_the_suggested_lifetime_budget(name: str) -> None:
    assert total_rho(name) < (preset(name).privacy.lifetime_rho or 0.0)
