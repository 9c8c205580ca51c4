"""Slow and obvious versions of two searches inside the plan of a round; the fast ones must return the same bits.

They solve one equilibrium for each reward and each number of clients that they look at, and leave nothing out.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from qidpfl_shared.core.arguments import Vector
from qidpfl_shared.core.equilibrium import EDGE_SHARE, equilibrium, saturation_reward, uncapped_shares
from qidpfl_shared.core.participation import share_bound
from qidpfl_shared.core.reward import Market, aggregation_weights, noise_variance, optimal_reward


def invited_one_by_one(
    values: Vector, *, min_share: float, min_clients: int, max_share: float
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which clients are invited, and which are priced out: the last client leaves until it may stay."""
    order = np.argsort(values, kind="stable")
    invited, priced_out = np.ones(values.size, dtype=np.bool_), np.zeros(values.size, dtype=np.bool_)
    for kept in range(values.size, 1, -1):
        bound = share_bound(max_share=max_share, clients=kept)
        smallest = float(uncapped_shares(privacy_values=values[order[:kept]], max_share=bound)[-1])
        outside = smallest <= EDGE_SHARE
        if not outside and (kept <= min_clients or smallest * kept >= min_share - EDGE_SHARE):
            break
        invited[order[kept - 1]], priced_out[order[kept - 1]] = False, outside
    return invited, priced_out


def reward_of_all_points(market: Market, *, round_number: int, caps: Vector) -> float:
    """Return the reward with the least cost among all grid points, all kinks, and the bottoms of all valleys."""
    able = np.flatnonzero(caps > 0)
    counted = able[uncapped_shares(privacy_values=market.privacy_values[able], max_share=market.max_share) > 0]
    clients, limits = market.only(counted), caps[counted]
    closed_form = optimal_reward(market=clients, round_number=round_number)
    if closed_form == 0:
        return 0.0
    values, weight, price = clients.privacy_values, clients.privacy_weight, market.cost_model.price(round_number)

    def budgets(reward: float) -> Vector:
        return equilibrium(
            reward=reward, privacy_values=values, privacy_weight=weight, caps=limits, max_share=market.max_share
        ).budgets

    def noise(bids: Vector) -> float:
        scales = clients.noise_scales
        weights = aggregation_weights(
            weighting=market.weighting, budgets=bids, sizes=clients.sizes, noise_scales=scales
        )
        return market.cost_model.noise_factor * noise_variance(weights=weights, budgets=bids, noise_scales=scales)

    def cost(reward: float) -> float:
        return noise(budgets(reward)) + price * reward

    known = cost(closed_form)
    highest = known / price
    if (budgets(highest) < limits * (1 - 1e-9)).all():
        return closed_form
    lowest = noise(1 / (4 * weight * values)) / known
    saturated = saturation_reward(privacy_values=values, privacy_weight=weight, caps=limits)
    if market.max_share < 1:
        saturated = math.inf
    if saturated <= lowest:
        return saturated
    highest = min(highest, saturated)
    kinks = [kink for kink in (closed_form, *_kinks(weight * values, limits)) if lowest < kink < highest]
    return _lowest_point(cost, np.unique([*np.geomspace(lowest, highest, 33), *kinks, highest]))


def _kinks(costs: Vector, limits: Vector) -> list[float]:
    kinks: list[float] = []
    free, bound = np.ones(costs.size, dtype=np.bool_), 0.0
    while free.sum() > 1:
        spread, others = float(costs[free].sum()), np.count_nonzero(free) - 1
        slope = 1 - costs * others / spread
        with np.errstate(divide="ignore", invalid="ignore"):
            totals = np.where(free & (slope > 0), (limits + costs * bound / spread) / slope, np.inf)
        client = int(np.argmin(totals))
        total = float(totals[client])
        if not math.isfinite(total):
            break
        kinks.append(float(spread * total**2 / (others * total + bound)))
        free[client] = False
        bound += float(limits[client])
    return kinks


def _lowest_point(cost: Callable[[float], float], points: Vector) -> float:
    from scipy.optimize import minimize_scalar

    costs = [cost(float(point)) for point in points]
    falls = [cost(float(point) * (1 + 1e-6)) < known for point, known in zip(points, costs, strict=True)]
    rises = [cost(float(point) * (1 - 1e-6)) < known for point, known in zip(points, costs, strict=True)]
    best = min((known, float(point)) for known, point in zip(costs, points, strict=True))
    for left in range(len(points) - 1):
        if falls[left] and rises[left + 1]:
            found = minimize_scalar(
                lambda logarithm: cost(math.exp(logarithm)),
                bounds=(math.log(points[left]), math.log(points[left + 1])),
                method="bounded",
                options={"xatol": 1e-9},
            )
            best = min(best, (float(found.fun), min(math.exp(float(found.x)), float(points[left + 1]))))
    return best[1]
