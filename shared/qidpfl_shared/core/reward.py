"""Stage I: the reward that costs the server least (Theorem 2, for any aggregation weights and under caps).

The server's cost is a model: a bound of the accuracy loss under smoothness and strong convexity, plus what it pays.
It is never a measured loss.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from . import arguments
from .arguments import ImpossibleArgument, Numbers, Vector
from .equilibrium import budget_per_reward


class RewardPolicy(StrEnum):
    """How the reward of a round is chosen."""

    OPTIMAL = "optimal"
    MAX = "max"
    RANDOM = "random"
    FIXED = "fixed"
    OWN = "own"
    NONE = "none"


class Weighting(StrEnum):
    """How much each update counts in the average."""

    UNIFORM = "uniform"
    SIZE = "size"
    INVERSE_VARIANCE = "inverse_variance"


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """The constants of the server's cost (eq. 15): γ, β, λ, V, π, T and the number of model parameters d."""

    dimension: int
    horizon: int
    accuracy_weight: float
    smoothness: float
    convexity: float
    gradient_bound: float
    discount: float

    def __post_init__(self) -> None:
        arguments.whole("dimension", self.dimension, minimum=1)
        arguments.whole("horizon", self.horizon, minimum=1)
        arguments.weight_below_one("accuracy_weight", self.accuracy_weight)
        arguments.magnitude("smoothness", self.smoothness)
        arguments.magnitude("convexity", self.convexity)
        arguments.non_negative("gradient_bound", self.gradient_bound)
        arguments.discount_factor("discount", self.discount)
        if (1 - self.horizon) * math.log(self.discount) > 200:
            raise ImpossibleArgument("discount", self.discount, f"discounts {self.horizon} rounds to nothing")

    @property
    def noise_factor(self) -> float:
        """Cost of one unit of noise variance per coordinate of the average: 2dγβ/(T²λ²)."""
        return self.dimension * self._per_squared_norm

    @property
    def signal_cost(self) -> float:
        """The part of a round's cost that no reward changes: 2βγV²/(λ²T²)."""
        return self._per_squared_norm * self.gradient_bound**2

    @property
    def _per_squared_norm(self) -> float:
        return 2 * self.smoothness * self.accuracy_weight / (self.convexity * self.horizon) ** 2

    def price(self, round_number: int) -> float:
        """Cost of one unit of reward in this round: (1-γ)·π^(t-1)."""
        return (1 - self.accuracy_weight) * self.discount ** (self.check_round(round_number) - 1)

    def check_round(self, round_number: int) -> int:
        """A round number between 1 and the horizon."""
        arguments.whole("round_number", round_number, minimum=1)
        if round_number > self.horizon:
            raise ImpossibleArgument("round_number", round_number, f"must not exceed the horizon {self.horizon}")
        return round_number


@dataclass(frozen=True, kw_only=True)
class RewardRange:
    """The rewards that are admissible in a round; the upper end may be infinite."""

    minimum: float = 0.0
    maximum: float = math.inf

    def __post_init__(self) -> None:
        arguments.non_negative("minimum", self.minimum)
        arguments.limit("maximum", self.maximum)
        if self.minimum > self.maximum:
            raise ImpossibleArgument("minimum", self.minimum, f"must not exceed the maximum {self.maximum}")

    def clamp(self, reward: float) -> float:
        """The nearest admissible reward: the cheapest one too, because the cost of a round is convex in it."""
        return min(max(arguments.limit("reward", reward), self.minimum), self.maximum)


ANY_REWARD = RewardRange()


def random_reward(*, reward_range: RewardRange, round_number: int, seed: int) -> float:
    """A reward drawn uniformly from the range; the same seed and round give the same reward."""
    if math.isinf(reward_range.maximum):
        raise ImpossibleArgument("maximum", reward_range.maximum, "must be finite to draw a reward from the range")
    source = np.random.default_rng([arguments.whole("seed", seed), arguments.whole("round_number", round_number)])
    return float(source.uniform(reward_range.minimum, reward_range.maximum))


def aggregation_weights(*, weighting: Weighting, budgets: Numbers, sizes: Numbers, noise_scales: Numbers) -> Vector:
    """The weights p_i with which the updates are averaged: they add up to 1 over the clients with a budget.

    `inverse_variance` weighs by ρ_i/v_i, the reciprocal of the noise variance, where v_i is the `noise_scale`.
    """
    bids = arguments.non_negative_vector("budgets", budgets)
    records = arguments.size_vector("sizes", sizes, length=bids.size)
    scales = arguments.positive_vector("noise_scales", noise_scales, length=bids.size)
    return _weights(arguments.choice("weighting", weighting, Weighting), bids, records, scales)


def noise_variance(*, weights: Numbers, budgets: Numbers, noise_scales: Numbers) -> float:
    """The variance of each coordinate of the averaged noise: Σ p_i²·v_i/ρ_i."""
    shares = arguments.non_negative_vector("weights", weights)
    bids = arguments.non_negative_vector("budgets", budgets, length=shares.size)
    scales = arguments.positive_vector("noise_scales", noise_scales, length=shares.size)
    counted = shares > 0
    if not counted.any() or (bids[counted] == 0).any():
        return math.inf
    return _noise_variance(shares[counted], bids[counted], scales[counted])


def noise_cost(
    *,
    cost_model: CostModel,
    weighting: Weighting,
    privacy_values: Numbers,
    privacy_weight: float,
    sizes: Numbers,
    noise_scales: Numbers,
) -> float:
    """The paper's A_t: the noise term of a round costs A_t/R while no cap binds; 0 when there is no market."""
    weighting = arguments.choice("weighting", weighting, Weighting)
    rates = budget_per_reward(privacy_values=privacy_values, privacy_weight=privacy_weight)
    records = arguments.size_vector("sizes", sizes, length=rates.size)
    scales = arguments.positive_vector("noise_scales", noise_scales, length=rates.size)
    active = rates > 0
    if not active.any():
        return 0.0
    weights = _weights(weighting, rates[active], records[active], scales[active])
    return cost_model.noise_factor * _noise_variance(weights, rates[active], scales[active])


def optimal_reward(
    *,
    round_number: int,
    cost_model: CostModel,
    weighting: Weighting,
    privacy_values: Numbers,
    privacy_weight: float,
    sizes: Numbers,
    noise_scales: Numbers,
) -> float:
    """The reward R_t* = sqrt(A_t·π^(1-t)/(1-γ)) that minimises the cost of this round while no cap binds (Theorem 2).

    It is 0 when there is no market, and when accuracy counts for nothing.
    """
    noise = noise_cost(
        cost_model=cost_model,
        weighting=weighting,
        privacy_values=privacy_values,
        privacy_weight=privacy_weight,
        sizes=sizes,
        noise_scales=noise_scales,
    )
    return math.sqrt(noise / cost_model.price(round_number))


def optimal_schedule(*, cost_model: CostModel, noise_cost: float) -> Vector:
    """R_1*, …, R_T* for a set of clients that stays the same: growth by π^(-1/2) a round, from discounting alone."""
    noise_cost = arguments.non_negative("noise_cost", noise_cost)
    prices = np.array([cost_model.price(t) for t in range(1, cost_model.horizon + 1)])
    rewards: Vector = np.sqrt(noise_cost / prices)
    return rewards


def round_cost(*, cost_model: CostModel, round_number: int, reward: float, noise_variance: float) -> float:
    """The server's cost of one round (a summand of eq. 15): model loss and discounted reward."""
    reward = arguments.non_negative("reward", reward)
    variance = arguments.limit("noise_variance", noise_variance)
    price = cost_model.price(round_number)
    noise = cost_model.noise_factor * variance if cost_model.noise_factor else 0.0
    return cost_model.signal_cost + noise + price * reward


def server_cost(*, cost_model: CostModel, rewards: Numbers, noise_variances: Numbers) -> float:
    """The server's cost of the rounds 1, 2, … (eq. 15, summed over as many rounds as there are rewards)."""
    paid = arguments.non_negative_vector("rewards", rewards)
    variances = arguments.limit_vector("noise_variances", noise_variances, length=paid.size)
    return math.fsum(
        round_cost(cost_model=cost_model, round_number=t, reward=reward, noise_variance=variance)
        for t, (reward, variance) in enumerate(zip(paid.tolist(), variances.tolist(), strict=True), start=1)
    )


def _weights(weighting: Weighting, budgets: Vector, sizes: Vector, scales: Vector) -> Vector:
    bids = budgets > 0
    match weighting:
        case Weighting.UNIFORM:
            raw = bids.astype(np.float64)
        case Weighting.SIZE:
            raw = np.where(bids, sizes, 0.0)
        case Weighting.INVERSE_VARIANCE:
            raw = budgets / scales
    total = float(raw.sum())
    weights: Vector = raw / total if total > 0 else raw
    return weights


def _noise_variance(weights: Vector, budgets: Vector, scales: Vector) -> float:
    return float(np.sum(weights * weights * scales / budgets))
