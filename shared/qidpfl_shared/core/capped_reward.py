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
# How far, relatively, to look whether the cost falls or rises.
_STEP = 1e-6
# With more clients than this the kinks lie so close that the grid alone is as good.
_KINKS_UP_TO = 1000
# A budget this close to its cap, relatively, is at it.
_BINDING = 1e-9


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
        if (self.budgets(highest) < self.limits * (1 - _BINDING)).all():
            return closed_form
        # No budget exceeds R/(4c): at a reward below this one, noise alone costs more than the known cost.
        lowest = self.noise(1 / (4 * self.weight * self.values)) / known
        saturated = saturation_reward(privacy_values=self.values, privacy_weight=self.weight, caps=self.limits)
        if saturated <= lowest:
            return saturated
        highest = min(highest, saturated)
        kinks = [kink for kink in (closed_form, *self._kinks()) if lowest < kink < highest]
        return _minimiser(self.cost, np.unique([*np.geomspace(lowest, highest, _GRID_POINTS), *kinks, highest]))

    def _kinks(self) -> list[float]:
        """The rewards at which one cap after the other starts to bind; a bound cap stays bound at higher rewards.

        With bound caps of sum k and a free clients of marginal costs summing to b, R = b·S²/((a-1)·S + k), and client
        i reaches its cap at S = (cap_i + c_i·k/b)/(1 - c_i·(a-1)/b). Quadratic in the number of clients.
        """
        if self.values.size > _KINKS_UP_TO:
            return []
        costs = self.weight * self.values
        kinks: list[float] = []
        free, bound = np.ones(costs.size, dtype=np.bool_), 0.0
        while free.sum() > 1:
            spread = float(costs[free].sum())
            slope = 1 - costs * (np.count_nonzero(free) - 1) / spread
            with np.errstate(divide="ignore", invalid="ignore"):
                totals = np.where(free & (slope > 0), (self.limits + costs * bound / spread) / slope, np.inf)
            client = int(np.argmin(totals))
            total = float(totals[client])
            if not math.isfinite(total):
                break
            kinks.append(float(spread * total**2 / ((np.count_nonzero(free) - 1) * total + bound)))
            free[client] = False
            bound += float(self.limits[client])
        return kinks


def _minimiser(cost: Callable[[float], float], points: Vector) -> float:
    """The minimiser between the first and the last of some points, with the kinks among them.

    The cost bends wherever a cap starts to bind, so it may have several valleys. One lies wherever it falls behind a
    point and rises before the next; it is searched there. A kink may be a minimum itself.
    """
    costs = np.array([cost(float(point)) for point in points])
    falls = np.array([cost(float(point) * (1 + _STEP)) for point in points]) < costs
    rises = np.array([cost(float(point) * (1 - _STEP)) for point in points]) < costs
    lowest = int(np.argmin(costs))
    best = (float(costs[lowest]), float(points[lowest]))
    for left in np.flatnonzero(falls[:-1] & rises[1:]):
        best = min(best, _bottom(cost, float(points[left]), float(points[left + 1])))
    return best[1]


def _bottom(cost: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    found = minimize_scalar(
        lambda logarithm: cost(math.exp(logarithm)),
        bounds=(math.log(low), math.log(high)),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return float(found.fun), min(math.exp(float(found.x)), high)
