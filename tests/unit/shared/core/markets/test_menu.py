"""The menu: the best choice is the true one, no client loses, and the reward covers every choice."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qidpfl_shared.core.markets.design import Terms
from qidpfl_shared.core.markets.menu import Menu, MenuPrior
from qidpfl_shared.core.money import MICRO
from qidpfl_shared.core.reward import Market, Weighting
from support.round_rules import COST_MODEL

WEIGHT, LOW, HIGH = 30.0, 0.8, 1.6
FACTORS = np.linspace(0.5, 2.0, 81)
PRIORS = (None, MenuPrior.UNIFORM)


def menu(prior: MenuPrior | None = None, max_share: float | None = None) -> Menu:
    return Menu(
        privacy_weight=WEIGHT,
        smallest_value=LOW,
        largest_value=HIGH,
        smallest_rho=1e-6,
        max_share=max_share,
        prior=prior,
    )


def market(sizes: list[int], weighting: Weighting = Weighting.SIZE) -> Market:
    counted = np.array(sizes, dtype=np.float64)
    return Market(
        cost_model=COST_MODEL,
        weighting=weighting,
        privacy_weight=WEIGHT,
        privacy_values=np.full(len(sizes), HIGH),
        sizes=counted,
        noise_scales=2 / counted**2,
    )


def utility(design: Menu, offered: Terms, rho: float, value: float) -> float:
    paid = float(
        design.earned(
            reward_micro=offered.reward_micro,
            total=offered.total,
            budgets=np.array([offered.base]),
            sold=np.array([rho]),
        )[0]
    )
    return paid - WEIGHT * value * rho


def terms(design: Menu, base: float = 0.05, limit: float = math.inf) -> Terms:
    return Terms(reward_micro=100 * MICRO, total=1.0, limit=limit, base=base)


@pytest.mark.parametrize("prior", PRIORS)
@given(value=st.floats(LOW, HIGH), base=st.floats(1e-3, 1.0))
def test_the_answer_is_the_best_of_all_budgets(prior: MenuPrior | None, value: float, base: float) -> None:
    design, offered = menu(prior), terms(menu(prior), base)
    best = utility(design, offered, design.answer(offered, privacy_value=value, cap=math.inf).rho, value)
    assert best >= -1e-12 * WEIGHT * base
    grid = base * np.geomspace(0.1, 10, 801)
    assert max(utility(design, offered, rho, value) for rho in grid.tolist()) <= best + 1e-12 * WEIGHT * base


@pytest.mark.parametrize("prior", PRIORS)
def test_no_lie_pays(prior: MenuPrior | None) -> None:
    """A lie is a choice that is best for another value."""
    source = np.random.default_rng(18)
    for _ in range(300):
        value, base = float(source.uniform(LOW, HIGH)), float(source.uniform(0.001, 0.2))
        design, offered = menu(prior), terms(menu(prior), base)
        truth = utility(design, offered, design.answer(offered, privacy_value=value, cap=math.inf).rho, value)
        lies = [design.answer(offered, privacy_value=value * factor, cap=math.inf).rho for factor in FACTORS]
        assert max(utility(design, offered, rho, value) for rho in lies) <= truth + 1e-14


@pytest.mark.parametrize("prior", PRIORS)
def test_a_client_with_the_largest_value_gains_nothing(prior: MenuPrior | None) -> None:
    design, offered = menu(prior), terms(menu(prior))
    answer = design.answer(offered, privacy_value=HIGH, cap=math.inf)
    assert answer.rho == pytest.approx(0.05)
    assert utility(design, offered, answer.rho, HIGH) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("weighting", [Weighting.SIZE, Weighting.UNIFORM, Weighting.INVERSE_VARIANCE])
def test_the_reward_covers_all_choices(prior: MenuPrior | None, weighting: Weighting) -> None:
    design, reward_micro = menu(prior), 20 * MICRO
    caps = np.array([0.4, math.inf, 0.003, math.inf])
    cleared = design.clear(reward=20.0, market=market([100, 50, 80, 400], weighting), caps=caps)
    assert cleared.total > 0
    assert (cleared.budgets <= caps).all() and (cleared.limits <= caps).all()
    most = design.split(
        reward_micro=reward_micro,
        total=cleared.total,
        declared=cleared.limits.tolist(),
        planned=cleared.budgets.tolist(),
        delivered=[True] * 4,
    )
    assert sum(most.payments) + most.kept == reward_micro
    assert most.kept >= 0
    uncapped = design.clear(reward=20.0, market=market([100, 50, 80, 400], weighting), caps=np.full(4, np.inf))
    spent = design.split(
        reward_micro=reward_micro,
        total=uncapped.total,
        declared=uncapped.limits.tolist(),
        planned=uncapped.budgets.tolist(),
        delivered=[True] * 4,
    )
    assert 0 <= spent.kept <= 10


def test_a_capped_client_gains_at_its_cap_whatever_its_value() -> None:
    design = menu()
    cleared = design.clear(reward=20.0, market=market([100, 100]), caps=np.array([0.01, math.inf]))
    assert cleared.budgets[0] == 0.01
    offered = Terms(reward_micro=20 * MICRO, total=cleared.total, limit=0.01, base=0.01)
    for value in np.linspace(LOW, HIGH, 30).tolist():
        assert utility(design, offered, 0.01, value) >= -1e-15


def test_a_payment_is_never_below_nothing() -> None:
    assert menu().payment(terms(menu()), 0.01) == 0
    assert menu(MenuPrior.UNIFORM).payment(terms(menu()), 0.001) == 0


def test_the_base_is_what_the_noise_of_the_weight_costs() -> None:
    """With the optimal reward, c_i/ρ_i is the server's cost of the noise of client i in units of reward."""
    sizes, design = [100, 300, 50], menu()
    known = market(sizes)
    reward = design.optimal_reward(market=known, round_number=2, caps=np.full(3, np.inf))
    cleared = design.clear(reward=reward, market=known, caps=np.full(3, np.inf))
    weights = np.array(sizes) / sum(sizes)
    costs = COST_MODEL.noise_factor * weights**2 * known.noise_scales / COST_MODEL.price(2)
    assert pytest.approx(costs, rel=1e-6) == WEIGHT * HIGH * cleared.budgets**2


def test_the_optimal_reward_is_the_cheapest_one() -> None:
    design, known = menu(), market([100, 300, 50])
    best = design.optimal_reward(market=known, round_number=1, caps=np.full(3, np.inf))

    def cost(reward: float) -> float:
        bases = design.clear(reward=reward, market=known, caps=np.full(3, np.inf)).budgets
        return known.noise_cost_of(bases) + COST_MODEL.price(1) * WEIGHT * HIGH * float(bases.sum())

    assert cost(best) <= min(cost(best * factor) for factor in (0.9, 0.99, 1.01, 1.1)) + 1e-12


def test_with_a_prior_the_same_reward_buys_a_larger_base() -> None:
    """The cheapest menu for a uniform prior: less is paid beyond the cost of a client."""
    known, caps = market([100, 100, 100]), np.full(3, np.inf)
    source, spent = np.random.default_rng(3), {}
    for prior in PRIORS:
        design = menu(prior)
        cleared = design.clear(reward=20.0, market=known, caps=caps)
        values = source.uniform(LOW, HIGH, 3000)
        bases = np.full(values.size, cleared.budgets[0])
        sold = design.sold(budgets=bases, limits=np.full(values.size, np.inf), values=values)
        paid = design.earned(reward_micro=1, total=1.0, budgets=bases, sold=sold)
        # Money for the same noise: the noise of an average of many such clients goes with the mean of 1/ρ.
        spent[prior] = float(paid.mean() * (1 / sold).mean())
    assert spent[MenuPrior.UNIFORM] < spent[None]


def test_no_share_exceeds_that_of_the_defence() -> None:
    design = menu(max_share=1.5)
    cleared = design.clear(reward=20.0, market=market([100, 100, 10_000]), caps=np.full(3, np.inf))
    assert cleared.budgets[0] > 0
    assert float(cleared.budgets.max()) <= 0.5 * cleared.total


@pytest.mark.parametrize(
    ("offered", "said"),
    [
        (Terms(reward_micro=100 * MICRO, total=1.0, limit=0.1), "no base"),
        (Terms(reward_micro=100 * MICRO, total=1.0, limit=0.3, base=0.1), "does not fit the base"),
        (Terms(reward_micro=100 * MICRO, total=1.0, limit=1.3, base=1.1), "more than the 1 that the reward buys"),
        (Terms(reward_micro=10 * MICRO, total=1.0, limit=0.1, base=0.1), "does not cover its menu"),
    ],
)
def test_a_client_refuses_a_menu_that_cannot_be(offered: Terms, said: str) -> None:
    refusal = menu().refusal(offered, privacy_value=None)
    assert refusal is not None and said in refusal


def test_a_clearing_is_what_a_client_accepts() -> None:
    for prior in PRIORS:
        design = menu(prior)
        cleared = design.clear(reward=20.0, market=market([100, 50]), caps=np.array([0.1, 0.5]))
        for base, limit in zip(cleared.budgets.tolist(), cleared.limits.tolist(), strict=True):
            offered = Terms(reward_micro=20 * MICRO, total=cleared.total, limit=limit, base=base)
            assert design.refusal(offered, privacy_value=None) is None
