"""Stage I for clients with caps: the reward with the least cost, found numerically."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from . import arguments
from .arguments import Numbers, Vector
from .equilibrium import equilibrium, saturation_reward, uncapped_shares
from .reward import Market, aggregation_weights, noise_variance, optimal_reward

_GRID_POINTS = 33
# The relative step that tells whether the cost falls or rises at a point.
_STEP = 1e-6
# With more clients the kinks lie so close together that the grid alone is as good.
_KINKS_UP_TO = 1000
# A budget with a smaller relative distance to its cap counts as at its cap.
_BINDING = 1e-9


def optimal_reward_capped(*, market: Market, round_number: int, caps: Numbers) -> float:
    """Return the reward with the least cost of this round, if clients have caps.

    The cost counts the clients that have a cap above 0 and that would be active without caps. The reward never exceeds
    the one at which all caps bind. It equals Theorem 2 if no cap can bind, and 0 if there is no market.

    Raises `ImpossibleArgument` for a negative cap, a wrong number of caps, or a round after the horizon.

    >>> from qidpfl_shared.core.reward import CostModel, Weighting
    >>> model = CostModel(
    ...     dimension=650, horizon=20, accuracy_weight=0.5, smoothness=10.0, convexity=0.03, gradient_bound=1.0,
    ...     discount=0.93,
    ... )
    >>> market = Market(
    ...     cost_model=model, weighting=Weighting.SIZE, privacy_weight=30.0, privacy_values=np.array([1.0, 1.1]),
    ...     sizes=np.array([100, 120]), noise_scales=np.array([2e-4, 1.4e-4]),
    ... )
    >>> round(optimal_reward_capped(market=market, round_number=1, caps=[0.05, 0.05]), 3)
    6.6
    """
    limits = arguments.limit_vector("caps", caps, length=market.privacy_values.size)
    able = np.flatnonzero(limits > 0)
    counted = able[uncapped_shares(privacy_values=market.privacy_values[able], max_share=market.max_share) > 0]
    clients = market.only(counted)
    closed_form = optimal_reward(market=clients, round_number=round_number)
    if closed_form == 0:
        return 0.0
    price = market.cost_model.price(round_number)
    return _CappedMarket(market=clients, price=price, limits=limits[counted]).cheapest_reward(closed_form)


@dataclass(frozen=True, kw_only=True)
class _CappedMarket:
    """The clients of one round with their caps, and what a reward costs the server."""

    market: Market
    price: float
    limits: Vector

    @property
    def values(self) -> Vector:
        return self.market.privacy_values

    @property
    def weight(self) -> float:
        return self.market.privacy_weight

    def budgets(self, reward: float) -> Vector:
        return equilibrium(
            reward=reward,
            privacy_values=self.values,
            privacy_weight=self.weight,
            caps=self.limits,
            max_share=self.market.max_share,
        ).budgets

    def noise(self, budgets: Vector) -> float:
        scales = self.market.noise_scales
        weights = aggregation_weights(
            weighting=self.market.weighting, budgets=budgets, sizes=self.market.sizes, noise_scales=scales
        )
        variance = noise_variance(weights=weights, budgets=budgets, noise_scales=scales)
        return self.market.cost_model.noise_factor * variance

    def cost(self, reward: float) -> float:
        return self.noise(self.budgets(reward)) + self.price * reward

    def cheapest_reward(self, closed_form: float) -> float:
        """Return the global minimiser, searched between two bounds that enclose it."""
        known = self.cost(closed_form)
        highest = known / self.price
        if (self.budgets(highest) < self.limits * (1 - _BINDING)).all():
            return closed_form
        # No budget exceeds R/(4c). Below this reward the noise alone costs more than the known cost.
        lowest = self.noise(1 / (4 * self.weight * self.values)) / known
        saturated = saturation_reward(privacy_values=self.values, privacy_weight=self.weight, caps=self.limits)
        if self.market.max_share < 1:
            # A client at the largest share may never reach its cap.
            saturated = math.inf
        if saturated <= lowest:
            return saturated
        highest = min(highest, saturated)
        kinks = [kink for kink in (closed_form, *self._kinks()) if lowest < kink < highest]
        return _minimiser(self.cost, np.unique([*np.geomspace(lowest, highest, _GRID_POINTS), *kinks, highest]))

    def _kinks(self) -> list[float]:
        """Return the rewards at which the caps start to bind, one after the other. They bind at all higher rewards too.

        With bound caps of sum k and a free clients of marginal costs summing to b, R = b·S²/((a-1)·S + k), and client
        i reaches its cap at S = (cap_i + c_i·k/b)/(1 - c_i·(a-1)/b). The run time is quadratic in the clients.
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
    """Return the minimiser between the first and the last point. The kinks are among the points.

    The cost has a kink where a cap starts to bind, so it may have several local minima. There is one between two
    neighbouring points if the cost falls after the first and rises before the second. A kink may be a minimum itself.
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
    # scipy.optimize takes longer to import than this package.
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(
        lambda logarithm: cost(math.exp(logarithm)),
        bounds=(math.log(low), math.log(high)),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return float(found.fun), min(math.exp(float(found.x)), high)
