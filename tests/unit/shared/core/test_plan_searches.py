"""The searches inside the plan of a round return the same bits as the slow ones that leave nothing out."""

import math
from dataclasses import replace

import numpy as np
import pytest

from qidpfl_shared.core import capped_reward
from qidpfl_shared.core.arguments import Vector
from qidpfl_shared.core.capped_reward import optimal_reward_capped
from qidpfl_shared.core.equilibrium import MarketSolver, equilibrium
from qidpfl_shared.core.participation import invite, share_bound
from qidpfl_shared.core.reward import Market, Weighting
from support.reference_plans import invited_one_by_one, reward_of_all_points
from support.round_rules import COST_MODEL


def values_of(source: np.random.Generator, clients: int) -> Vector:
    """Privacy values near each other, far from each other, or with many ties."""
    if source.random() < 0.3:
        return source.choice([1.0, 1.2, 1.5, 3.0], clients)
    return np.exp(source.normal(0, source.choice([0, 0.02, 0.3, 1.0, 2.0]), clients))


def caps_of(source: np.random.Generator, clients: int) -> Vector:
    """Caps that bind or not, are equal, missing, or 0 because the lifetime budget is spent."""
    base = 10 ** source.uniform(-4, 1)
    some = base * source.random(clients)
    kinds = [
        np.full(clients, np.inf),
        np.full(clients, base),
        some,
        base * np.exp(source.normal(0, 2, clients)),
        np.where(source.random(clients) < 0.3, 0.0, some),
        np.where(source.random(clients) < 0.5, np.inf, some),
    ]
    return kinds[int(source.integers(len(kinds)))]


def market_of(source: np.random.Generator, clients: int, *, able: int | None = None) -> Market:
    max_share = source.choice([math.inf, 1.0, 1.5, 2.0, 3.0])
    return Market(
        cost_model=replace(COST_MODEL, dimension=int(source.choice([650, 7850, 10**6]))),
        weighting=source.choice(list(Weighting)),
        privacy_weight=float(10 ** source.uniform(-1, 2)),
        privacy_values=values_of(source, clients),
        sizes=source.integers(1, 5000, clients).astype(np.float64),
        noise_scales=10 ** source.uniform(-6, -2, clients),
        max_share=1.0 if math.isinf(max_share) else share_bound(max_share=float(max_share), clients=able or clients),
    )


@pytest.mark.parametrize("block", range(3))
def test_the_reward_is_that_of_a_search_over_all_points(block: int) -> None:
    found = 0
    for case in range(100):
        source = np.random.default_rng([block, case])
        clients = int(source.integers(2, 40))
        caps = caps_of(source, clients)
        market = market_of(source, clients, able=int(np.count_nonzero(caps)))
        # As in a plan: clients that would be priced out are not invited.
        prices = invite(privacy_values=market.privacy_values, min_share=0.0, max_share=clients * market.max_share)
        market, caps = market.only(prices.invited), caps[prices.invited]
        market = replace(market, max_share=min(1.0, max(market.max_share, 1.01 / max(1, int(np.count_nonzero(caps))))))
        expected = reward_of_all_points(market, round_number=3, caps=caps)
        assert optimal_reward_capped(market=market, round_number=3, caps=caps) == expected, (block, case)
        found += expected > 0
    assert found > 50


def test_the_invitation_is_that_of_one_client_after_the_other() -> None:
    for case in range(2000):
        source = np.random.default_rng(case)
        values = values_of(source, int(source.integers(0, 60)))
        min_share = float(source.choice([0.0, 0.1, 0.3, 0.9, 1.0]))
        min_clients, max_share = int(source.integers(2, 6)), float(source.choice([1.0, 1.5, 2.0, 3.0, 10.0]))
        found = invite(privacy_values=values, min_share=min_share, min_clients=min_clients, max_share=max_share)
        invited, priced_out = invited_one_by_one(
            values, min_share=min_share, min_clients=min_clients, max_share=max_share
        )
        assert found.invited.tolist() == invited.tolist(), case
        assert found.priced_out.tolist() == priced_out.tolist(), case


def test_a_solver_solves_every_reward_as_the_equilibrium_does() -> None:
    for case in range(300):
        source = np.random.default_rng([1, case])
        market = market_of(source, int(source.integers(2, 30)))
        caps = np.maximum(caps_of(source, market.sizes.size), 1e-6)
        solver = MarketSolver.of(
            values=market.privacy_values, weight=market.privacy_weight, limits=caps, max_share=market.max_share
        )
        for reward in (0.01, 1.0, 70.0):
            alone = equilibrium(
                reward=reward,
                privacy_values=market.privacy_values,
                privacy_weight=market.privacy_weight,
                caps=caps,
                max_share=market.max_share,
            )
            total, shares, budgets = solver.solve(reward)
            assert (total, shares.tolist(), budgets.tolist()) == (
                alone.total,
                alone.shares.tolist(),
                alone.budgets.tolist(),
            )


def test_the_search_solves_few_equilibria(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 400 clients there are up to 433 points, and three equilibria for each in a search over all points."""
    source = np.random.default_rng(5)
    market = replace(market_of(source, 400), privacy_values=source.uniform(0.95, 1.05, 400), max_share=1.0)
    solved: list[float] = []

    class Counting(MarketSolver):
        def solve(self, reward: float) -> tuple[float, Vector, Vector]:
            solved.append(reward)
            return super().solve(reward)

    monkeypatch.setattr(capped_reward, "MarketSolver", Counting)
    closed_form = optimal_reward_capped(market=market, round_number=1, caps=np.full(400, np.inf))
    free = equilibrium(
        reward=closed_form, privacy_values=market.privacy_values, privacy_weight=market.privacy_weight
    ).budgets
    caps = free * source.uniform(0.5, 1.5, 400)
    solved.clear()
    reward = optimal_reward_capped(market=market, round_number=1, caps=caps)
    assert 20 < len(solved) < 250
    assert reward == reward_of_all_points(market, round_number=1, caps=caps)
