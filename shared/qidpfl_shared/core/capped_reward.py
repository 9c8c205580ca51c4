"""Stage I for clients with caps: the reward with the least cost, found numerically."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from . import arguments
from .arguments import Numbers, Vector
from .equilibrium import MarketSolver, saturation_reward, uncapped_shares
from .reward import Market, optimal_reward

_GRID_POINTS = 33
# The relative step that tells whether the cost falls or rises at a point.
_STEP = 1e-6
# With more clients the kinks lie so close together that the grid alone is as good.
_KINKS_UP_TO = 1000
# A budget with a smaller relative distance to its cap counts as at its cap.
_BINDING = 1e-9
# Rewards are left out of the search only if they cost more than the best one by this part, far more than rounding.
_SURELY_MORE = 1e-8
# A client with a smaller share has a budget whose relative rounding error is not small.
_EXACT_SHARE = 1e-7


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
    price = market.price(round_number)
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

    @cached_property
    def _solver(self) -> MarketSolver:
        return MarketSolver.of(
            values=self.values, weight=self.weight, limits=self.limits, max_share=self.market.max_share
        )

    def budgets(self, reward: float) -> Vector:
        return self._solver.solve(arguments.positive("reward", reward))[2]

    def noise(self, reward: float) -> float:
        return self.market.noise_cost_of(self.budgets(reward))

    def cost(self, reward: float) -> float:
        return self.noise(reward) + self.price * reward

    def cheapest_reward(self, closed_form: float) -> float:
        """Return the global minimiser, searched between two bounds that enclose it."""
        known = self.cost(closed_form)
        highest = known / self.price
        if (self.budgets(highest) < self.limits * (1 - _BINDING)).all():
            return closed_form
        # No budget exceeds R/(4c). Below this reward the noise alone costs more than the known cost.
        lowest = self.market.without_labels().noise_cost_of(1 / (4 * self.weight * self.values)) / known
        saturated = saturation_reward(privacy_values=self.values, privacy_weight=self.weight, caps=self.limits)
        if self.market.max_share < 1:
            # A client at the largest share may never reach its cap.
            saturated = math.inf
        if saturated <= lowest:
            return saturated
        highest = min(highest, saturated)
        kinks = [kink for kink in (closed_form, *self._kinks(highest)) if lowest < kink < highest]
        return self._minimiser(np.unique([*np.geomspace(lowest, highest, _GRID_POINTS), *kinks, highest]).tolist())

    def _kinks(self, highest: float) -> list[float]:
        """Return the rewards at which the caps start to bind, one after the other. They bind at all higher rewards too.

        With bound caps of sum k and a free clients of marginal costs summing to b, R = b·S²/((a-1)·S + k), and client
        i reaches its cap at S = (cap_i + c_i·k/b)/(1 - c_i·(a-1)/b). The run time is quadratic in the clients. Kinks
        above `highest` may be missing.
        """
        if self.values.size > _KINKS_UP_TO:
            return []
        kinks: list[float] = []
        # The arrays hold the free clients, in their order.
        costs, limits, bound = self.weight * self.values, self.limits.copy(), 0.0
        ascending = None
        while (others := costs.size - 1) > 0:
            spread = float(costs.sum())
            slope = 1 - costs * others / spread
            if ascending is None:
                # The kinks ascend if these are the clients of an equilibrium. With a largest share they may be more.
                ascending = bool((slope > 0).all())
            with np.errstate(divide="ignore", invalid="ignore"):
                totals = np.where(slope > 0, (limits + costs * bound / spread) / slope, np.inf)
            client = int(totals.argmin())
            total = float(totals[client])
            if not math.isfinite(total):
                break
            kinks.append(float(spread * total**2 / (others * total + bound)))
            if ascending and kinks[-1] > highest * (1 + _SURELY_MORE):
                break
            bound += float(limits[client])
            for array in (costs, limits):
                array[client:-1] = array[client + 1 :]
            costs, limits = costs[:-1], limits[:-1]
        return kinks

    def _minimiser(self, points: list[float]) -> float:
        """Return the minimiser between the first and the last point. The kinks are among the points.

        The cost has a kink where a cap starts to bind, so it may have several local minima. There is one between two
        neighbouring points if the cost falls after the first and rises before the second. A kink may be a minimum
        itself.
        """
        costs, gaps = self._worth_a_look(points)
        best = min((cost, points[index]) for index, cost in costs.items())
        for left in gaps:
            low, high = points[left], points[left + 1]
            falls = self.cost(low * (1 + _STEP)) < costs[left]
            if falls and self.cost(high * (1 - _STEP)) < costs[left + 1]:
                best = min(best, _bottom(self.cost, low, high))
        return best[1]

    def _worth_a_look(self, points: list[float]) -> tuple[dict[int, float], list[int]]:
        """Return the costs of some points, and the gaps after points, outside which no reward has the least cost.

        Budgets never fall if the reward rises, so the noise between two points costs at least as much as at the second,
        and the reward at least as much as at the first. A range of points for which this is more than the least known
        cost is left out; any other is halved.
        """
        falling, last = self._noise_falls(points[0]), len(points) - 1
        noises: dict[int, float] = {}
        costs: dict[int, float] = {}

        def look_at(index: int) -> None:
            noises[index] = self.noise(points[index])
            costs[index] = noises[index] + self.price * points[index]

        def costs_more(left: int, right: int) -> bool:
            least = noises[right] + self.price * points[left]
            return falling and least > min(costs.values()) * (1 + _SURELY_MORE)

        for end in {0, last}:
            look_at(end)
        gaps: list[int] = []
        ranges = [(0, last)] if last else []
        while ranges:
            kept = [(left, right) for left, right in ranges if not costs_more(left, right)]
            gaps += [left for left, right in kept if right == left + 1]
            ranges = []
            for left, right in kept:
                if right > left + 1:
                    middle = (left + right) // 2
                    look_at(middle)
                    ranges += [(left, middle), (middle, right)]
        return costs, sorted(left for left in gaps if not costs_more(left, left + 1))

    def _noise_falls(self, lowest: float) -> bool:
        """Whether the noise never grows with the reward from the lowest one on, and rounding does not hide this.

        Not so if a client may start to bid at a higher reward, or if every client is at the largest share: then many
        totals are equilibria.
        """
        solver = self._solver
        total = solver.solve(lowest)[0]
        bids = 1 - solver.costs / lowest * total > _EXACT_SHARE
        return bool(bids.all()) and solver.max_share * bids.size > 1 + _SURELY_MORE


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
