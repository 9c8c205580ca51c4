"""Stage I where a client's cap may bind: the cheapest reward, found numerically."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from . import arguments
from .arguments import Numbers, Vector
from .equilibrium import active_set, equilibrium, saturation_reward
from .reward import CostModel, Weighting, aggregation_weights, noise_variance, optimal_reward

_GRID_POINTS = 33


def optimal_reward_capped(
    *,
    round_number: int,
    cost_model: CostModel,
    weighting: Weighting,
    privacy_values: Numbers,
    privacy_weight: float,
    sizes: Numbers,
    noise_scales: Numbers,
    caps: Numbers,
) -> float:
    """The reward that minimises the cost of this round over the able clients that are active without caps.

    It never exceeds the reward at which all caps bind, and equals Theorem 2 where no cap could bind. 0 when there is
    no market.
    """
    values = arguments.positive_vector("privacy_values", privacy_values)
    limits = arguments.limit_vector("caps", caps, length=values.size)
    records = arguments.size_vector("sizes", sizes, length=values.size)
    scales = arguments.positive_vector("noise_scales", noise_scales, length=values.size)
    able = np.flatnonzero(limits > 0)
    frozen = able[active_set(privacy_values=values[able])]
    closed_form = optimal_reward(
        round_number=round_number,
        cost_model=cost_model,
        weighting=weighting,
        privacy_values=values[frozen],
        privacy_weight=privacy_weight,
        sizes=records[frozen],
        noise_scales=scales[frozen],
    )
    if closed_form == 0:
        return 0.0
    market = _CappedMarket(
        noise_factor=cost_model.noise_factor,
        price=cost_model.price(round_number),
        weighting=weighting,
        values=values[frozen],
        weight=privacy_weight,
        sizes=records[frozen],
        scales=scales[frozen],
        limits=limits[frozen],
    )
    return market.cheapest_reward(closed_form)


@dataclass(frozen=True, kw_only=True)
class _CappedMarket:
    """The clients of one round, and what a reward costs the server there."""

    noise_factor: float
    price: float
    weighting: Weighting
    values: Vector
    weight: float
    sizes: Vector
    scales: Vector
    limits: Vector

    def budgets(self, reward: float) -> Vector:
        market = equilibrium(reward=reward, privacy_values=self.values, privacy_weight=self.weight, caps=self.limits)
        return market.budgets

    def noise(self, budgets: Vector) -> float:
        weights = aggregation_weights(
            weighting=self.weighting, budgets=budgets, sizes=self.sizes, noise_scales=self.scales
        )
        return self.noise_factor * noise_variance(weights=weights, budgets=budgets, noise_scales=self.scales)

    def cost(self, reward: float) -> float:
        return self.noise(self.budgets(reward)) + self.price * reward

    def cheapest_reward(self, closed_form: float) -> float:
        """The global minimiser, searched between two bounds that enclose it."""
        known = self.cost(closed_form)
        highest = known / self.price
        if (self.budgets(highest) < self.limits).all():
            return closed_form
        # No budget exceeds R/(4c): at a reward below this one, noise alone costs more than the known cost.
        lowest = self.noise(1 / (4 * self.weight * self.values)) / known
        saturated = saturation_reward(privacy_values=self.values, privacy_weight=self.weight, caps=self.limits)
        if saturated <= lowest:
            return saturated
        return _minimiser(self.cost, lowest, min(highest, saturated), guess=closed_form)


def _minimiser(cost: Callable[[float], float], lowest: float, highest: float, *, guess: float) -> float:
    """The minimiser in [lowest, highest]: a grid finds the valley, a bounded search its bottom.

    The cost has a kink wherever a cap starts to bind, so that a local search alone might stop in the wrong valley.
    """
    grid = np.geomspace(lowest, highest, _GRID_POINTS)
    grid[-1] = highest
    costs = [cost(float(reward)) for reward in grid]
    best = int(np.argmin(costs))
    candidates = [(costs[best], float(grid[best]))]
    if guess <= highest:
        candidates.append((cost(guess), guess))
    valley = np.log(grid[[max(best - 1, 0), min(best + 1, grid.size - 1)]])
    found = minimize_scalar(
        lambda logarithm: cost(math.exp(logarithm)), bounds=tuple(valley), method="bounded", options={"xatol": 1e-10}
    )
    candidates.append((float(found.fun), min(math.exp(float(found.x)), highest)))
    return min(candidates)[1]
