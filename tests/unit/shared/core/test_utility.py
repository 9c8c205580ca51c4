"""Costs, utilities and regrets."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qidpfl_shared.core.equilibrium import equilibrium
from qidpfl_shared.core.utility import best_response_to_others, fixed_cost, regrets, training_cost, utilities

values = st.lists(st.floats(0.2, 5), min_size=2, max_size=8)


@given(values, st.floats(0.01, 100), st.floats(0.01, 100), st.floats(0.05, 2))
def test_no_client_regrets_the_equilibrium(nu: list[float], reward: float, weight: float, tightness: float) -> None:
    caps = np.full(len(nu), tightness * equilibrium(reward=reward, privacy_values=nu, privacy_weight=weight).total)
    game = equilibrium(reward=reward, privacy_values=nu, privacy_weight=weight, caps=caps)
    regret = regrets(reward=reward, budgets=game.budgets, privacy_values=nu, privacy_weight=weight, caps=caps)
    assert regret.max() <= 1e-9 * reward


@given(values, st.data())
def test_regret_is_what_the_best_budget_on_a_fine_grid_would_add(nu: list[float], data: st.DataObject) -> None:
    budgets = data.draw(st.lists(st.floats(0.01, 1), min_size=len(nu), max_size=len(nu)))
    regret = regrets(reward=5, budgets=budgets, privacy_values=nu, privacy_weight=2)
    now = utilities(reward=5, budgets=budgets, privacy_values=nu, privacy_weight=2)
    for i, value in enumerate(nu):
        others = sum(budgets) - budgets[i]
        grid = np.linspace(0, 5 / (2 * value), 20_001)
        best = np.max(grid / (grid + others) * 5 - 2 * value * grid)
        assert regret[i] == pytest.approx(max(0, best - now[i]), abs=1e-6)


def test_a_client_that_bids_alone_regrets_every_unit_it_sold() -> None:
    regret = regrets(reward=10, budgets=[0.5, 0, 0], privacy_values=[1, 1, 1], privacy_weight=2, caps=[1, 1, 0])
    assert regret[0] == pytest.approx(1.0)
    assert regret[1] > 0
    assert regret[2] == 0


def test_without_bids_the_regret_is_the_whole_reward() -> None:
    assert regrets(reward=10, budgets=[0, 0], privacy_values=[1, 1], privacy_weight=1).tolist() == [10, 10]


def test_alone_there_is_no_best_budget() -> None:
    assert best_response_to_others(reward=10, others_total=0, privacy_value=1, privacy_weight=1) == 0


def test_too_dear_a_client_answers_with_nothing() -> None:
    assert best_response_to_others(reward=10, others_total=20, privacy_value=1, privacy_weight=1) == 0
    assert best_response_to_others(reward=10, others_total=1, privacy_value=1, privacy_weight=1, cap=0.5) == 0.5


def test_costs_add_up_as_in_equation_17() -> None:
    fixed = fixed_cost(data=1, computation=2, communication=3, data_weight=10, computation_weight=20)
    assert fixed == 10 + 40 + 3
    assert training_cost(rho=0.5, privacy_value=4, privacy_weight=3, fixed=fixed) == 6 + 53


def test_utility_counts_fixed_costs_only_for_bidders() -> None:
    gains = utilities(
        reward=6, budgets=[1, 2, 0], privacy_values=[1, 1, 1], privacy_weight=1, fixed_costs=[0.5, 0.5, 9]
    )
    assert gains.tolist() == pytest.approx([2 - 1 - 0.5, 4 - 2 - 0.5, 0])


def test_without_bids_there_is_no_utility() -> None:
    assert utilities(reward=6, budgets=[0, 0], privacy_values=[1, 1], privacy_weight=1).tolist() == [0, 0]
    assert utilities(reward=6, budgets=[], privacy_values=[], privacy_weight=1).size == 0
    assert math.isclose(fixed_cost(), 0)
