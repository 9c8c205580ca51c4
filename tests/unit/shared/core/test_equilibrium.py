"""Stage II: the equilibrium, checked against best-response dynamics, deviations and the literal theorem."""

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from qidpfl_shared.core.equilibrium import (
    Equilibrium,
    MarketStatus,
    active_set,
    best_response,
    budget_per_reward,
    equilibrium,
    reward_for_total,
    saturation_reward,
    theorem_1_literal,
    uncapped_shares,
)
from qidpfl_shared.core.utility import utilities

values = st.lists(st.floats(0.2, 5), min_size=2, max_size=10)
rewards = st.floats(0.01, 1000)
weights = st.floats(0.01, 1000)


@st.composite
def capped_games(draw: st.DrawFn) -> tuple[float, list[float], float, list[float]]:
    """A game in which some caps bind: they are drawn on the scale of the budgets without caps."""
    privacy_values, reward, weight = draw(values), draw(rewards), draw(weights)
    scale = equilibrium(reward=reward, privacy_values=privacy_values, privacy_weight=weight).total
    factors = draw(
        st.lists(
            st.one_of(st.floats(0.001, 1.5), st.just(math.inf)),
            min_size=len(privacy_values),
            max_size=len(privacy_values),
        )
    )
    return reward, privacy_values, weight, [scale * factor for factor in factors]


def best_response_dynamics(
    reward: float, privacy_values: list[float], weight: float, caps: list[float]
) -> npt.NDArray[np.float64]:
    """Each client moves a little towards its best response until no client moves. It uses no formula of the core.

    The best answer is that of one client's textbook problem, max R·x/(x+X) - c·x; small steps keep it from cycling.
    """
    costs, limits = weight * np.array(privacy_values), np.array(caps)
    budgets: npt.NDArray[np.float64] = np.minimum(limits, reward / (4 * costs))
    for _ in range(20_000):
        others = budgets.sum() - budgets
        answers = np.clip(np.sqrt(reward * others / costs) - others, 0, limits)
        step = 0.1 * (answers - budgets)
        budgets = budgets + step
        if np.abs(step).max() <= 1e-12 * budgets.max():
            break
    return budgets


def assert_no_deviation_pays(game: Equilibrium, privacy_values: list[float], weight: float, caps: list[float]) -> None:
    """Brute force: on a fine grid of budgets no client does better than at the equilibrium."""
    for i, value in enumerate(privacy_values):
        others = game.total - game.budgets[i]
        grid = np.linspace(0, min(caps[i], 4 * game.total), 4001)[1:]
        gains = grid / (grid + others) * game.reward - weight * value * grid
        assert gains.max() <= game.utilities[i] + 1e-9 * game.reward


@given(values, rewards, weights)
def test_best_response_dynamics_reach_the_equilibrium(nu: list[float], reward: float, weight: float) -> None:
    game = equilibrium(reward=reward, privacy_values=nu, privacy_weight=weight)
    reached = best_response_dynamics(reward, nu, weight, [math.inf] * len(nu))
    np.testing.assert_allclose(reached, game.budgets, atol=1e-6 * game.total)


@given(capped_games())
def test_best_response_dynamics_reach_the_equilibrium_under_caps(
    market: tuple[float, list[float], float, list[float]],
) -> None:
    reward, nu, weight, caps = market
    game = equilibrium(reward=reward, privacy_values=nu, privacy_weight=weight, caps=caps)
    np.testing.assert_allclose(best_response_dynamics(reward, nu, weight, caps), game.budgets, atol=1e-6 * game.total)


@given(capped_games())
def test_no_unilateral_deviation_pays(market: tuple[float, list[float], float, list[float]]) -> None:
    reward, nu, weight, caps = market
    game = equilibrium(reward=reward, privacy_values=nu, privacy_weight=weight, caps=caps)
    assert_no_deviation_pays(game, nu, weight, caps)


@given(capped_games())
def test_shares_add_up_and_budgets_respect_their_caps(market: tuple[float, list[float], float, list[float]]) -> None:
    reward, nu, weight, caps = market
    game = equilibrium(reward=reward, privacy_values=nu, privacy_weight=weight, caps=caps)
    assert game.shares.sum() == pytest.approx(1, rel=1e-9)
    assert game.budgets.sum() == pytest.approx(game.total, rel=1e-9)
    assert game.payments.sum() == pytest.approx(reward, rel=1e-9)
    assert (game.budgets <= caps).all()


@given(values, rewards, weights)
def test_utility_is_the_squared_share_of_the_reward(nu: list[float], reward: float, weight: float) -> None:
    game = equilibrium(reward=reward, privacy_values=nu, privacy_weight=weight)
    np.testing.assert_allclose(game.utilities, game.shares**2 * reward, atol=1e-9 * reward)
    by_definition = utilities(reward=reward, budgets=game.budgets, privacy_values=nu, privacy_weight=weight)
    np.testing.assert_allclose(game.utilities, by_definition, atol=1e-9 * reward)


@given(values, rewards, weights)
def test_the_literal_theorem_agrees_exactly_if_all_clients_are_active(
    nu: list[float], reward: float, weight: float
) -> None:
    literal = theorem_1_literal(reward=reward, privacy_values=nu, privacy_weight=weight)
    game = equilibrium(reward=reward, privacy_values=nu, privacy_weight=weight)
    # Shares within rounding of the edge are on neither side of it.
    assume(np.abs(literal / literal.sum()).min() > 1e-9)
    assert game.active.all() == bool((literal > 0).all())
    if game.active.all():
        np.testing.assert_allclose(literal, game.budgets, rtol=1e-6)


@given(values, rewards, weights, st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_shares_do_not_depend_on_units(nu: list[float], reward: float, weight: float, a: float, b: float) -> None:
    shares = equilibrium(reward=reward, privacy_values=nu, privacy_weight=weight).shares
    scaled = equilibrium(reward=a * reward, privacy_values=[b * v for v in nu], privacy_weight=weight).shares
    np.testing.assert_allclose(shares, scaled, atol=1e-9)


@given(capped_games(), st.floats(1, 10))
def test_budgets_never_fall_when_the_reward_rises(
    market: tuple[float, list[float], float, list[float]], factor: float
) -> None:
    reward, nu, weight, caps = market
    low = equilibrium(reward=reward, privacy_values=nu, privacy_weight=weight, caps=caps)
    high = equilibrium(reward=factor * reward, privacy_values=nu, privacy_weight=weight, caps=caps)
    assert (high.budgets >= low.budgets - 1e-9 * low.total).all()


@given(capped_games())
def test_the_announced_total_is_all_a_client_needs(market: tuple[float, list[float], float, list[float]]) -> None:
    reward, nu, weight, caps = market
    game = equilibrium(reward=reward, privacy_values=nu, privacy_weight=weight, caps=caps)
    for value, cap, budget in zip(nu, caps, game.budgets, strict=True):
        own = best_response(reward=reward, total=game.total, privacy_value=value, privacy_weight=weight, cap=cap)
        assert own == pytest.approx(budget, rel=1e-6, abs=1e-9 * game.total)


@given(capped_games())
def test_reward_for_total_inverts_the_equilibrium(market: tuple[float, list[float], float, list[float]]) -> None:
    reward, nu, weight, caps = market
    total = equilibrium(reward=reward, privacy_values=nu, privacy_weight=weight, caps=caps).total
    needed = reward_for_total(total=total, privacy_values=nu, privacy_weight=weight, caps=caps)
    again = equilibrium(reward=needed, privacy_values=nu, privacy_weight=weight, caps=caps).total
    assert needed <= reward * (1 + 1e-9)
    assert again == pytest.approx(total, rel=1e-9)


def test_a_hand_worked_game() -> None:
    game = equilibrium(reward=12, privacy_values=[1, 1, 1], privacy_weight=2)
    # S = (n-1)R/Σc = 24/6, three equal shares, u = R/9.
    assert game.total == pytest.approx(4)
    assert game.budgets == pytest.approx([4 / 3] * 3)
    assert game.payments == pytest.approx([4.0] * 3)
    assert game.utilities == pytest.approx([12 / 9] * 3)


def test_a_client_exactly_at_the_edge_does_not_bid() -> None:
    for nu in ([1, 1, 2], [0.1, 0.2, 0.3], [0.3, 0.6, 0.9], [3, 1, 2]):
        assert active_set(privacy_values=nu).sum() == 2, nu
        assert theorem_1_literal(reward=1, privacy_values=nu, privacy_weight=1).min() == pytest.approx(0, abs=1e-12)


def test_an_expensive_client_gets_no_budget_where_the_literal_theorem_is_negative() -> None:
    nu = [1.0, 1.0, 3.0]
    assert theorem_1_literal(reward=10, privacy_values=nu, privacy_weight=1)[2] < 0
    game = equilibrium(reward=10, privacy_values=nu, privacy_weight=1)
    assert game.budgets.tolist() == [2.5, 2.5, 0.0]
    assert game.active.tolist() == [True, True, False]


def test_equal_privacy_values_have_equal_budgets() -> None:
    rng = np.random.default_rng(0)
    nu = rng.choice(rng.uniform(0.9, 1.1, 5), size=200)
    game = equilibrium(reward=10, privacy_values=nu, privacy_weight=1)
    for value in np.unique(nu):
        assert np.unique(game.budgets[nu == value]).size == 1


def test_a_capped_cheap_client_lets_a_priced_out_one_in() -> None:
    nu = [1.0, 1.0, 2.5]
    assert not equilibrium(reward=10, privacy_values=nu, privacy_weight=1).active[2]
    assert equilibrium(reward=10, privacy_values=nu, privacy_weight=1, caps=[0.5, 0.5, math.inf]).active[2]


def test_beyond_the_saturation_reward_every_cap_binds() -> None:
    nu, caps = [1.0, 1.2, 0.8], [0.3, 0.2, 0.4]
    saturated = saturation_reward(privacy_values=nu, privacy_weight=2, caps=caps)
    below = equilibrium(reward=saturated * 0.99, privacy_values=nu, privacy_weight=2, caps=caps)
    at = equilibrium(reward=saturated, privacy_values=nu, privacy_weight=2, caps=caps)
    above = equilibrium(reward=saturated * 10, privacy_values=nu, privacy_weight=2, caps=caps)
    assert below.total < 0.9 * (1 + 1e-12)
    assert (below.budgets < caps).any()
    assert at.budgets == pytest.approx(caps)
    assert above.budgets == pytest.approx(caps)


def test_the_active_set_of_a_uniform_population_grows_like_a_square_root() -> None:
    rng = np.random.default_rng(1)
    for clients in (100, 10_000):
        sizes = [active_set(privacy_values=rng.uniform(0.8, 1.2, clients)).sum() for _ in range(50)]
        assert np.mean(sizes) == pytest.approx(math.sqrt(2 * clients * 0.8 / 0.4), rel=0.1)


def test_a_hundred_thousand_clients_have_an_equilibrium() -> None:
    rng = np.random.default_rng(2)
    nu = rng.uniform(0.95, 1.05, 100_000)
    free = equilibrium(reward=10, privacy_values=nu, privacy_weight=1)
    caps = free.total * rng.uniform(0, 0.001, nu.size)
    capped = equilibrium(reward=10, privacy_values=nu, privacy_weight=1, caps=caps)
    for game in (free, capped):
        assert game.shares.sum() == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize(
    ("nu", "caps", "reward", "status"),
    [
        ([], None, 1.0, MarketStatus.TOO_FEW_CLIENTS),
        ([1.0], None, 1.0, MarketStatus.TOO_FEW_CLIENTS),
        ([1.0, 1.0], [0.0, 1.0], 1.0, MarketStatus.TOO_FEW_CLIENTS),
        ([1.0, 1.0], None, 0.0, MarketStatus.NO_REWARD),
        ([1.0, 1.0], None, 1.0, MarketStatus.EQUILIBRIUM),
    ],
)
def test_an_impossible_market_is_a_status(
    nu: list[float], caps: list[float] | None, reward: float, status: MarketStatus
) -> None:
    game = equilibrium(reward=reward, privacy_values=nu, privacy_weight=1, caps=caps)
    assert game.status is status
    if status is not MarketStatus.EQUILIBRIUM:
        assert game.total == 0
        assert not game.budgets.any()
        assert not game.payments.any()


@given(values, weights, rewards)
def test_budget_per_reward_is_the_slope_of_every_budget(nu: list[float], weight: float, reward: float) -> None:
    slope = budget_per_reward(privacy_values=nu, privacy_weight=weight)
    game = equilibrium(reward=reward, privacy_values=nu, privacy_weight=weight)
    np.testing.assert_allclose(slope * reward, game.budgets, rtol=1e-9)
    np.testing.assert_allclose(uncapped_shares(privacy_values=nu), game.shares)


def test_no_reward_buys_more_than_the_caps_allow() -> None:
    nu, caps = [1.0, 1.0], [0.1, 0.2]
    assert reward_for_total(total=0.31, privacy_values=nu, privacy_weight=1, caps=caps) == math.inf
    assert reward_for_total(total=0.0, privacy_values=nu, privacy_weight=1, caps=caps) == 0
    assert reward_for_total(total=0.1, privacy_values=[1.0], privacy_weight=1) == math.inf
    assert saturation_reward(privacy_values=nu, privacy_weight=1, caps=[0.1, math.inf]) == math.inf


def test_reporting_a_lower_privacy_value_pays() -> None:
    """Not incentive compatible, and not claimed to be: committing to a lower value makes the others yield."""
    rng = np.random.default_rng(3)
    gains = []
    for _ in range(100):
        nu = rng.uniform(0.95, 1.05, 10)
        honest = equilibrium(reward=10, privacy_values=nu, privacy_weight=1)
        reported = nu.copy()
        reported[0] *= 0.8
        budgets = equilibrium(reward=10, privacy_values=reported, privacy_weight=1).budgets
        lied = utilities(reward=10, budgets=budgets, privacy_values=nu, privacy_weight=1)
        gains.append(lied[0] / max(float(honest.utilities[0]), 1e-12) - 1)
    assert np.median(gains) > 0.5


def test_the_two_clients_with_the_lowest_privacy_values_are_always_active() -> None:
    game = equilibrium(reward=1, privacy_values=[1e-12, 1.0, 5.0], privacy_weight=1)
    assert game.active.tolist() == [True, True, False]
    assert game.total == pytest.approx(1)


def test_a_tiny_cap_is_still_a_budget_and_a_binding_cap_is_met_exactly() -> None:
    caps = [1e-12, math.inf, 0.1]
    game = equilibrium(reward=10, privacy_values=[1.0, 1.0, 1.0], privacy_weight=1, caps=caps)
    assert (game.budgets[0], game.budgets[2]) == (1e-12, 0.1)


def test_without_a_reward_the_best_response_is_not_to_bid() -> None:
    assert best_response(reward=0, total=0.1, privacy_value=1, privacy_weight=1) == 0
    assert best_response(reward=1, total=0, privacy_value=1, privacy_weight=1) == 0


def test_the_smallest_reward_that_buys_a_total_is_returned() -> None:
    """Both bidders are at their caps from R = 0.79 on, and the expensive client enters only at 1.225."""
    nu, caps = [0.5, 2.0, 0.75], [0.375, math.inf, 0.2375]
    total = equilibrium(reward=1, privacy_values=nu, privacy_weight=1, caps=caps).total
    needed = reward_for_total(total=total, privacy_values=nu, privacy_weight=1, caps=caps)
    smallest = max(0.5 * total**2 / 0.2375, 0.75 * total**2 / 0.375)
    assert needed == pytest.approx(smallest, rel=1e-9)
