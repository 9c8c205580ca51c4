"""Stage II: the privacy budgets that clients choose once a reward is announced (Theorem 1, completed).

Client i pays c_i = φ1·ν_i per unit of budget and receives the share s_i = ρ_i/S of the reward R, where S is the
sum of all budgets. At the equilibrium s_i = max(0, 1 - c_i·S/R), or cap_i/S where the client's cap binds. The sum of
the shares falls strictly in S, so exactly one S makes it 1: the equilibrium exists and is unique.

Theorem 1 as printed lacks the `max(0, .)`: it turns negative as soon as one client values its privacy more than
Σν/(N-1), which in a heterogeneous population is the rule.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from . import arguments
from .arguments import ImpossibleArgument, Mask, Numbers, Vector

# A share this small is a client exactly at the edge of the active set, seen through rounding: its budget is 0.
EDGE_SHARE = 1e-12


class MarketStatus(StrEnum):
    """Whether there is a market, and if not, why."""

    EQUILIBRIUM = "equilibrium"
    TOO_FEW_CLIENTS = "too_few_clients"
    NO_REWARD = "no_reward"


@dataclass(frozen=True)
class Equilibrium:
    """What every client does at a given reward; all zeros when the status is not `equilibrium`."""

    status: MarketStatus
    reward: float
    total: float
    budgets: Vector
    shares: Vector
    payments: Vector
    utilities: Vector

    @property
    def active(self) -> Mask:
        """The clients that bid; the others are priced out or unable."""
        return self.budgets > 0


def active_set(*, privacy_values: Numbers) -> Mask:
    """The clients with a positive budget in the equilibrium without caps, which no reward changes.

    In ascending order of ν the k-th client is in while (k-1)·ν_k < ν_1 + … + ν_k. Equal values are in or out together.
    """
    values = arguments.positive_vector("privacy_values", privacy_values)
    if values.size < 2:
        return np.zeros(values.size, dtype=np.bool_)
    ascending = np.sort(values / values.max())
    ranks = np.arange(values.size)
    inside = ranks * ascending < np.cumsum(ascending) * (1 - EDGE_SHARE)
    inside[:2] = True
    last = int(np.argmin(inside)) - 1 if not inside.all() else values.size - 1
    active: Mask = values / values.max() <= ascending[last]
    return active


def equilibrium(
    *, reward: float, privacy_values: Numbers, privacy_weight: float, caps: Numbers | None = None
) -> Equilibrium:
    """Budgets that no client wants to change alone once the reward is announced (Theorem 1, completed).

    A client whose privacy is too dear to sell has budget 0; so has one with cap 0, which cannot bid. With fewer than
    two able clients, or without a reward, there is no market: the status says so and everything is 0.
    """
    reward = arguments.non_negative("reward", reward)
    weight = arguments.positive("privacy_weight", privacy_weight)
    values = arguments.positive_vector("privacy_values", privacy_values)
    limits = arguments.cap_vector(caps, length=values.size)

    able = limits > 0
    if np.count_nonzero(able) < 2:
        return _no_market(MarketStatus.TOO_FEW_CLIENTS, reward, values.size)
    if reward == 0:
        return _no_market(MarketStatus.NO_REWARD, reward, values.size)

    shares, budgets = np.zeros(values.size), np.zeros(values.size)
    total, shares[able], budgets[able] = _solve(reward, weight, values[able], limits[able])
    payments = shares * reward
    return Equilibrium(
        status=MarketStatus.EQUILIBRIUM,
        reward=reward,
        total=total,
        budgets=budgets,
        shares=shares,
        payments=payments,
        utilities=payments - weight * values * budgets,
    )


def uncapped_shares(*, privacy_values: Numbers) -> Vector:
    """Everybody's share of the reward in the equilibrium without caps: it depends on the privacy values alone."""
    values = arguments.positive_vector("privacy_values", privacy_values)
    active = active_set(privacy_values=values)
    return _shares_of_active(values, active)


def budget_per_reward(*, privacy_values: Numbers, privacy_weight: float) -> Vector:
    """The paper's constant "C_i": without caps ρ_i = C_i·R for every reward R; 0 outside the active set."""
    values = arguments.positive_vector("privacy_values", privacy_values)
    weight = arguments.positive("privacy_weight", privacy_weight)
    active = active_set(privacy_values=values)
    if not active.any():
        return np.zeros(values.size)
    return _shares_of_active(values, active) * _total_per_reward(values[active], weight)


def theorem_1_literal(*, reward: float, privacy_values: Numbers, privacy_weight: float) -> Vector:
    """Theorem 1 exactly as printed (eq. 20), for comparison and teaching: budgets may come out negative."""
    reward = arguments.non_negative("reward", reward)
    weight = arguments.positive("privacy_weight", privacy_weight)
    values = arguments.positive_vector("privacy_values", privacy_values)
    if values.size == 0:
        return values
    per_value = (values.size - 1) / float(values.sum())
    budgets: Vector = reward * per_value / weight - reward * values / weight * per_value**2
    return budgets


def best_response(
    *, reward: float, total: float, privacy_value: float, privacy_weight: float, cap: float = math.inf
) -> float:
    """A client's own equilibrium budget from the announced reward and total alone (eq. 23).

    This is what the client needs to know, and all it learns: nobody else's privacy value. 0 means: do not bid.
    """
    reward = arguments.non_negative("reward", reward)
    total = arguments.non_negative("total", total)
    cost = arguments.positive("privacy_weight", privacy_weight) * arguments.positive("privacy_value", privacy_value)
    cap = arguments.limit("cap", cap)
    if reward == 0 or total == 0:
        return 0.0
    share = 1 - cost * total / reward
    return min(share * total, cap) if share > EDGE_SHARE else 0.0


def reward_for_total(
    *, total: float, privacy_values: Numbers, privacy_weight: float, caps: Numbers | None = None
) -> float:
    """The reward at which the clients' budgets add up to `total`; infinity when their caps do not allow it."""
    total = arguments.non_negative("total", total)
    weight = arguments.positive("privacy_weight", privacy_weight)
    values = arguments.positive_vector("privacy_values", privacy_values)
    limits = arguments.cap_vector(caps, length=values.size)
    able = limits > 0
    if total == 0:
        return 0.0
    if np.count_nonzero(able) < 2 or total > float(limits.sum()) * (1 + EDGE_SHARE):
        return math.inf

    costs, limits = weight * values[able], limits[able]
    uncapped = total / _total_per_reward(values[able][active_set(privacy_values=values[able])], weight)
    shortfall = _share_sum(uncapped, total, costs, limits) - 1
    if shortfall >= -EDGE_SHARE:
        return uncapped
    if total >= float(limits.sum()) * (1 - EDGE_SHARE):
        return saturation_reward(privacy_values=values[able], privacy_weight=privacy_weight, caps=limits)
    return _reward_by_bisection(uncapped, total, costs, limits)


def saturation_reward(*, privacy_values: Numbers, privacy_weight: float, caps: Numbers) -> float:
    """The reward from which on every cap binds, so that any more is wasted.

    Infinity while somebody has no cap, and where there is no market.
    """
    weight = arguments.positive("privacy_weight", privacy_weight)
    values = arguments.positive_vector("privacy_values", privacy_values)
    limits = arguments.limit_vector("caps", caps, length=values.size)
    able = limits > 0
    total = float(limits.sum())
    if np.count_nonzero(able) < 2 or math.isinf(total):
        return math.inf
    return float(np.max(weight * values[able] * total / sums_of_others(limits[able])) * total)


def sums_of_others(budgets: Vector) -> Vector:
    """Σ_{j≠i} of each i from sums before and after it: total - own would lose a small remainder beside a large own."""
    before = np.concatenate(([0.0], np.cumsum(budgets)[:-1])) if budgets.size else budgets
    after = np.concatenate((np.cumsum(budgets[::-1])[::-1][1:], [0.0])) if budgets.size else budgets
    sums: Vector = before + after
    return sums


def _no_market(status: MarketStatus, reward: float, clients: int) -> Equilibrium:
    return Equilibrium(
        status=status,
        reward=reward,
        total=0.0,
        budgets=np.zeros(clients),
        shares=np.zeros(clients),
        payments=np.zeros(clients),
        utilities=np.zeros(clients),
    )


def _solve(reward: float, weight: float, values: Vector, limits: Vector) -> tuple[float, Vector, Vector]:
    """The equilibrium total, shares and budgets of at least two able clients."""
    active = active_set(privacy_values=values)
    total = reward * _total_per_reward(values[active], weight)
    if not 0 < total < math.inf:
        raise ImpossibleArgument("total budget", total, "cannot be represented; use other units of money")
    shares = _shares_of_active(values, active)
    if (shares * total <= limits).all():
        return total, shares, shares * total
    slopes = weight * values / reward
    with np.errstate(over="ignore"):
        total = _capped_total(min(total, float(limits.sum())), slopes, limits)
    free = 1 - slopes * total
    free[free <= EDGE_SHARE] = 0.0
    capped = free * total >= limits
    return total, np.where(capped, limits / total, free), np.where(capped, limits, free * total)


def _total_per_reward(active_values: Vector, weight: float) -> float:
    return (active_values.size - 1) / (weight * float(active_values.sum()))


def _shares_of_active(values: Vector, active: Mask) -> Vector:
    if not active.any():
        return np.zeros(values.size)
    inside = values[active]
    per_value = (inside.size - 1) / float(inside.sum())
    shares: Vector = np.where(active, 1 - values * per_value, 0.0)
    return shares


def _capped_shares(total: float, slopes: Vector, limits: Vector) -> Vector:
    shares: Vector = np.clip(1 - slopes * total, 0.0, limits / total)
    return shares


def _capped_total(start: float, slopes: Vector, limits: Vector) -> float:
    """The root S of Σ clip(1 - slope_i·S, 0, cap_i/S) = 1, at most `start`.

    Within one set of interior and capped clients the sum is a - b·S + k/S, whose root is that of a quadratic. The set
    at the root of the current set is tried next; a bracket catches the steps that lead away, and every third step
    halves it, so that the search always ends.
    """
    low, high, total = 0.0, start, start
    for step in range(500):
        free = 1 - slopes * total
        capped = free * total > limits
        interior = (free > 0) & ~capped
        a, b, k = np.count_nonzero(interior), float(slopes[interior].sum()), float(limits[capped].sum())
        excess = a - b * total + k / total - 1
        low, high = (total, high) if excess > 0 else (low, total)
        root = ((a - 1) + math.sqrt((a - 1) ** 2 + 4 * b * k)) / (2 * b) if b > 0 else k
        if abs(root - total) <= 4e-16 * total or high - low <= 4e-16 * high:
            return float(root if low <= root <= high else total)
        total = root if low < root < high and step % 3 != 2 else (low + high) / 2
    return total


def _share_sum(reward: float, total: float, costs: Vector, limits: Vector) -> float:
    return float(_capped_shares(total, costs / reward, limits).sum())


def _reward_by_bisection(low: float, total: float, costs: Vector, limits: Vector) -> float:
    """The smallest reward at which the shares at a given total add up to 1, up to rounding; their sum grows with it.

    Between two rewards at which nobody moves (all bidders at their caps, the next one not yet in) the total stays the
    same: rounding must not push the answer to the upper one.
    """

    def too_small(reward: float) -> bool:
        return _share_sum(reward, total, costs, limits) < 1 - EDGE_SHARE

    high = 2 * low
    while too_small(high):
        low, high = high, 2 * high
    while high - low > 4e-16 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if too_small(middle) else (low, middle)
    return high
