"""Stage II: the privacy budgets that clients choose after a reward is announced (Theorem 1, completed).

Client i pays c_i = φ1·ν_i per unit of budget and receives the share s_i = ρ_i/S of the reward R, where S is the
sum of all budgets. At the equilibrium s_i = max(0, 1 - c_i·S/R), or cap_i/S where the client's cap binds. The sum of
the shares falls strictly in S, so exactly one S makes it 1. The equilibrium therefore exists and is unique.

A task may also bound the share of every client by `max_share`: then s_i = min(max_share, …). A client at this bound has
the cap max_share·S, so the result is still an equilibrium. `max_share` 1 is no bound.

Theorem 1 as printed lacks the `max(0, .)`. Its budgets become negative if one client has a privacy value above
Σν/(N-1), which is usual in a heterogeneous population.

All functions raise `ImpossibleArgument` for a number that is not finite, has the wrong sign or the wrong type, and for
sequences of different lengths.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from . import arguments
from .arguments import ImpossibleArgument, Mask, Numbers, Vector

# A client exactly at the edge of the active set has a share this small because of rounding. Its budget is 0.
EDGE_SHARE = 1e-12


class MarketStatus(StrEnum):
    """Whether there is a market; if not, the reason."""

    EQUILIBRIUM = "equilibrium"
    TOO_FEW_CLIENTS = "too_few_clients"
    NO_REWARD = "no_reward"


@dataclass(frozen=True)
class Equilibrium:
    """What each client does at a given reward; all zeros if the status is not `equilibrium`."""

    status: MarketStatus
    reward: float
    total: float
    budgets: Vector
    shares: Vector
    payments: Vector
    utilities: Vector

    @property
    def active(self) -> Mask:
        """The clients that bid. The others are priced out or have a cap of 0."""
        return self.budgets > 0


def active_set(*, privacy_values: Numbers) -> Mask:
    """Return the clients with a positive budget in the equilibrium without caps. The reward does not change this set.

    In ascending order of ν the k-th client is active if (k-1)·ν_k < ν_1 + … + ν_k. Equal values are all active or all
    inactive.

    >>> active_set(privacy_values=[1.0, 2.0, 9.0]).tolist()
    [True, True, False]
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
    *,
    reward: float,
    privacy_values: Numbers,
    privacy_weight: float,
    caps: Numbers | None = None,
    max_share: float = 1.0,
) -> Equilibrium:
    """Return the budgets that no client wants to change alone after the reward is announced (Theorem 1, completed).

    A client has budget 0 if its privacy value is too high or its cap is 0. There is no market without a reward, or with
    fewer than two clients that have a cap above 0. The status says which, and all numbers are 0.

    Raises `ImpossibleArgument` also if the total budget is too large or too small for a float, and if `max_share` is so
    small that the shares cannot add up to 1.

    >>> market = equilibrium(reward=10.0, privacy_values=[1.0, 2.0, 9.0], privacy_weight=1.0)
    >>> market.budgets.round(3).tolist()
    [2.222, 1.111, 0.0]
    >>> market.payments.round(3).tolist()
    [6.667, 3.333, 0.0]
    >>> bounded = equilibrium(reward=10.0, privacy_values=[0.1, 1.0, 1.0], privacy_weight=1.0, max_share=0.5)
    >>> bounded.shares.round(3).tolist()
    [0.5, 0.25, 0.25]
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
    solver = MarketSolver.of(values=values[able], weight=weight, limits=limits[able], max_share=max_share)
    total, shares[able], budgets[able] = solver.solve(reward)
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


@dataclass(frozen=True, eq=False)
class MarketSolver:
    """Solves the market of the same clients for many rewards: what depends on no reward is computed once.

    The arguments are those of `equilibrium`, as arrays that it has checked: at least two clients, each with a cap above
    0. `costs` are their marginal costs. `shares` and `per_reward` describe the equilibrium without caps and bound.
    """

    costs: Vector
    limits: Vector
    max_share: float
    shares: Vector
    per_reward: float

    @classmethod
    def of(cls, *, values: Vector, weight: float, limits: Vector, max_share: float) -> "MarketSolver":
        """Return the solver for these clients. Raises `ImpossibleArgument` if `max_share` is too small for them."""
        active = active_set(privacy_values=values)
        return cls(
            costs=weight * values,
            limits=limits,
            max_share=_possible_share(max_share, values.size),
            shares=_shares_of_active(values, active),
            per_reward=_total_per_reward(values[active], weight),
        )

    @cached_property
    def _within_bound(self) -> bool:
        return bool((self.shares <= self.max_share).all())

    @cached_property
    def _limit_sum(self) -> float:
        return float(self.limits.sum())

    def solve(self, reward: float) -> tuple[float, Vector, Vector]:
        """Return the equilibrium total, shares and budgets at a reward above 0."""
        total = reward * self.per_reward
        if not 0 < total < math.inf:
            raise ImpossibleArgument("total budget", total, "cannot be represented; use other units of money")
        if self._within_bound:
            budgets = self.shares * total
            if (budgets <= self.limits).all():
                return total, self.shares, budgets
        slopes = self.costs / reward
        with np.errstate(over="ignore"):
            total = _capped_total(min(total, self._limit_sum), slopes, self.limits, self.max_share)
        free = np.minimum(1 - slopes * total, self.max_share)
        free[free <= EDGE_SHARE] = 0.0
        budgets = free * total
        capped = budgets >= self.limits
        return total, np.where(capped, self.limits / total, free), np.where(capped, self.limits, budgets)


def uncapped_shares(*, privacy_values: Numbers, max_share: float = 1.0) -> Vector:
    """Return each client's share of the reward without caps. It depends on the privacy values alone.

    >>> uncapped_shares(privacy_values=[1.0, 2.0, 9.0]).round(3).tolist()
    [0.667, 0.333, 0.0]
    """
    values = arguments.positive_vector("privacy_values", privacy_values)
    shares = _shares_of_active(values, active_set(privacy_values=values))
    if (shares <= max_share).all():
        return shares
    # The shares do not depend on the unit of money, so values of at most 1 avoid overflow.
    return equilibrium(reward=1.0, privacy_values=values / values.max(), privacy_weight=1.0, max_share=max_share).shares


def budget_per_reward(*, privacy_values: Numbers, privacy_weight: float, max_share: float = 1.0) -> Vector:
    """Return the paper's constants C_i: without caps ρ_i = C_i·R for every reward R; 0 outside the active set.

    >>> budget_per_reward(privacy_values=[1.0, 2.0, 9.0], privacy_weight=1.0).round(3).tolist()
    [0.222, 0.111, 0.0]
    """
    values = arguments.positive_vector("privacy_values", privacy_values)
    weight = arguments.positive("privacy_weight", privacy_weight)
    active = active_set(privacy_values=values)
    if not active.any():
        return np.zeros(values.size)
    shares = _shares_of_active(values, active)
    if (shares <= max_share).all():
        return shares * _total_per_reward(values[active], weight)
    return equilibrium(reward=1.0, privacy_values=values, privacy_weight=weight, max_share=max_share).budgets


def theorem_1_literal(*, reward: float, privacy_values: Numbers, privacy_weight: float) -> Vector:
    """Return the budgets of Theorem 1 exactly as printed (eq. 20), for comparison only. They may be negative.

    >>> theorem_1_literal(reward=10.0, privacy_values=[1.0, 2.0, 9.0], privacy_weight=1.0).round(3).tolist()
    [1.389, 1.111, -0.833]
    """
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
    """Return a client's equilibrium budget from the announced reward and total alone (eq. 23); 0: do not bid.

    The client learns no privacy value of another client.

    >>> round(best_response(reward=10.0, total=10 / 3, privacy_value=2.0, privacy_weight=1.0), 3)
    1.111
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
    """Return the reward at which the clients' budgets add up to `total`; infinity if their caps do not allow it.

    >>> round(reward_for_total(total=10 / 3, privacy_values=[1.0, 2.0, 9.0], privacy_weight=1.0), 3)
    10.0
    """
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
    """Return the smallest reward at which every cap binds. A higher reward buys no more budget.

    The result is infinity if a client has no cap, or if there is no market.

    >>> saturation_reward(privacy_values=[1.0, 2.0], privacy_weight=1.0, caps=[1.0, 1.0])
    8.0
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
    """Return Σ_{j≠i} for each i, from the sums before and after it. `total - own` would lose small remainders.

    >>> sums_of_others(np.array([1.0, 2.0, 4.0])).tolist()
    [6.0, 5.0, 3.0]
    """
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


def _possible_share(max_share: float, clients: int) -> float:
    """Return a bound of every share with which the shares of so many clients can add up to 1."""
    if arguments.positive("max_share", max_share) * clients < 1 - EDGE_SHARE:
        raise ImpossibleArgument("max_share", max_share, f"must be at least 1/{clients}, one part for each client")
    return max_share


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


def _capped_total(start: float, slopes: Vector, limits: Vector, max_share: float) -> float:
    """Return the root S of Σ clip(1 - slope_i·S, 0, min(cap_i/S, max_share)) = 1, which is at most `start`.

    For a fixed set of interior and bounded clients the sum is a - b·S + k/S, whose root is that of a quadratic. The
    search moves to that root and takes the set there. It keeps a bracket and halves it at every third step, so it
    always ends. Where the clients at the largest share take the whole reward, every S of a range is a root.
    """
    low, high, total = 0.0, start, start
    for step in range(500):
        free = 1 - slopes * total
        if max_share < 1:
            capped = np.minimum(free, max_share) * total > limits
            bounded = (free > max_share) & ~capped
            interior = (free > 0) & ~(capped | bounded)
            a = float(np.count_nonzero(interior) + max_share * np.count_nonzero(bounded))
        else:  # No share exceeds 1, so this is the same without the bound.
            capped = free * total > limits
            interior = (free > 0) & ~capped
            a = float(np.count_nonzero(interior))
        b, k = float(slopes[interior].sum()), float(limits[capped].sum())
        excess = a - b * total + k / total - 1
        low, high = (total, high) if excess > 0 else (low, total)
        if b > 0:
            root = ((a - 1) + math.sqrt((a - 1) ** 2 + 4 * b * k)) / (2 * b)
        elif abs(excess) <= EDGE_SHARE:
            return total
        else:
            root = k / (1 - a) if a < 1 else math.inf
        if abs(root - total) <= 4e-16 * total or high - low <= 4e-16 * high:
            return float(root if low <= root <= high else total)
        total = root if low < root < high and step % 3 != 2 else (low + high) / 2
    return total


def _share_sum(reward: float, total: float, costs: Vector, limits: Vector) -> float:
    return float(_capped_shares(total, costs / reward, limits).sum())


def _reward_by_bisection(low: float, total: float, costs: Vector, limits: Vector) -> float:
    """Return the smallest reward at which the shares at a given total add up to 1, up to rounding.

    The sum of the shares grows with the reward. It is constant where all bidders are at their caps and the next client
    does not bid yet; rounding must not move the answer to the upper end of such a range.
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
