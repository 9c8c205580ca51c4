"""Stage I: the reward with the least cost for the server (Theorem 2, for any aggregation weights).

The server's cost is a model: a bound of the accuracy loss under smoothness and strong convexity, plus the reward paid.
It is never a measured loss. `capped_reward` solves the same problem for clients with caps.

All functions and classes raise `ImpossibleArgument` for a number that is not finite, has the wrong sign or the wrong
type, and for sequences of different lengths.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from . import arguments
from .arguments import ImpossibleArgument, Mask, Numbers, Vector
from .averaging.optimal_weights import LabelGaps, optimal_weights
from .equilibrium import budget_per_reward
from .markets.schedules import RewardSchedule


class RewardPolicy(StrEnum):
    """How the reward of a round is chosen."""

    OPTIMAL = "optimal"
    MAX = "max"
    RANDOM = "random"
    FIXED = "fixed"
    OWN = "own"
    NONE = "none"


class Weighting(StrEnum):
    """The weight of each update in the average.

    `optimal` balances the noise of the average and its labels. Without labels it is `inverse_variance`.
    """

    UNIFORM = "uniform"
    SIZE = "size"
    INVERSE_VARIANCE = "inverse_variance"
    OPTIMAL = "optimal"


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
        return self.dimension * self.error_factor

    @property
    def signal_cost(self) -> float:
        """The part of a round's cost that no reward changes: 2βγV²/(λ²T²)."""
        return self.error_factor * self.gradient_bound**2

    @property
    def error_factor(self) -> float:
        """Cost of one unit of squared norm of the error of the average: 2γβ/(λ²T²)."""
        return 2 * self.smoothness * self.accuracy_weight / (self.convexity * self.horizon) ** 2

    def price(self, round_number: int) -> float:
        """Cost of one unit of reward in this round: (1-γ)·π^(t-1).

        Raises `ImpossibleArgument` for a round after the horizon.
        """
        return (1 - self.accuracy_weight) * self.discount ** (self.check_round(round_number) - 1)

    def check_round(self, round_number: int) -> int:
        """Return the round number; raise `ImpossibleArgument` if it is not between 1 and the horizon."""
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
        """Return the nearest admissible reward. It is also the cheapest one: the cost of a round is convex.

        >>> RewardRange(minimum=1.0, maximum=5.0).clamp(7.0)
        5.0
        """
        return min(max(arguments.limit("reward", reward), self.minimum), self.maximum)


ANY_REWARD = RewardRange()


@dataclass(frozen=True, kw_only=True, eq=False)
class Market:
    """The clients of one round and the constants of the server's cost: what the optimal reward depends on.

    The arrays have one entry per client. `noise_scales` are v_i: an upload has the noise variance v_i/ρ_i. No client
    gets more than `max_share` of the reward. `labels` count with weighting `optimal` only. A `schedule` replaces the
    paper's growth of the rewards.
    """

    cost_model: CostModel
    weighting: Weighting
    privacy_weight: float
    privacy_values: Vector
    sizes: Vector
    noise_scales: Vector
    max_share: float = 1.0
    labels: LabelGaps | None = None
    schedule: RewardSchedule | None = None

    def __post_init__(self) -> None:
        values = arguments.positive_vector("privacy_values", self.privacy_values)
        # The checks return copies, as arrays. A frozen dataclass can store them only like this.
        for name, checked in (
            ("weighting", arguments.choice("weighting", self.weighting, Weighting)),
            ("privacy_weight", arguments.positive("privacy_weight", self.privacy_weight)),
            ("privacy_values", values),
            ("sizes", arguments.size_vector("sizes", self.sizes, length=values.size)),
            ("noise_scales", arguments.positive_vector("noise_scales", self.noise_scales, length=values.size)),
            ("max_share", arguments.positive("max_share", self.max_share)),
        ):
            object.__setattr__(self, name, checked)

    def only(self, clients: Mask | npt.NDArray[np.intp]) -> "Market":
        """The market of some of the clients, given as a mask or as indices."""
        return replace(
            self,
            privacy_values=self.privacy_values[clients],
            sizes=self.sizes[clients],
            noise_scales=self.noise_scales[clients],
            labels=None if self.labels is None else self.labels.only(clients),
        )

    def price(self, round_number: int) -> float:
        """Cost of one unit of reward in this round, as the choice of the reward counts it."""
        if self.schedule is None:
            return self.cost_model.price(round_number)
        self.cost_model.check_round(round_number)
        return (1 - self.cost_model.accuracy_weight) * self.schedule.discount_at(round_number)

    @property
    def balances_labels(self) -> bool:
        """Whether the weights depend on labels, so that they change with the reward."""
        return self.weighting is Weighting.OPTIMAL and self.labels is not None and self.labels.cost > 0

    def weights(self, budgets: Vector) -> Vector:
        """The weights of the average with these budgets, of which none may be negative."""
        labels, dimension = self.labels, self.cost_model.dimension
        return _weights(self.weighting, budgets, self.sizes, self.noise_scales, labels, dimension)

    def noise_cost_of(self, budgets: Vector) -> float:
        """What the noise of the clients' uploads costs with these budgets, and with `optimal` weights also the labels.

        No budget may be negative.
        """
        weights = self.weights(budgets)
        noise = self.cost_model.noise_factor * _variance_of_counted(weights, budgets, self.noise_scales)
        return noise + self.cost_model.error_factor * self.mismatch(weights)

    def mismatch(self, weights: Vector) -> float:
        """What the labels of the average count as: a squared norm. 0 for weights that do not balance labels."""
        return self.labels.mismatch(weights) if self.balances_labels and self.labels is not None else 0.0

    def without_labels(self) -> "Market":
        """The same market with weights that make the noise as small as possible, if its weights balance labels."""
        return replace(self, labels=None) if self.balances_labels else self


def aggregation_weights(
    *,
    weighting: Weighting,
    budgets: Numbers,
    sizes: Numbers,
    noise_scales: Numbers,
    labels: LabelGaps | None = None,
    dimension: int = 1,
) -> Vector:
    """Return the weights p_i of the updates in the average. They add up to 1 over the clients with a budget.

    `inverse_variance` weighs by ρ_i/v_i, the reciprocal of the noise variance, where v_i is the `noise_scale`.
    `optimal` also balances `labels`; some weights may then be 0. It needs the `dimension` of an update.

    >>> aggregation_weights(
    ...     weighting=Weighting.SIZE, budgets=[0.1, 0.1, 0.0], sizes=[100, 300, 500], noise_scales=[1.0, 1.0, 1.0]
    ... ).tolist()
    [0.25, 0.75, 0.0]
    """
    bids = arguments.non_negative_vector("budgets", budgets)
    records = arguments.size_vector("sizes", sizes, length=bids.size)
    scales = arguments.positive_vector("noise_scales", noise_scales, length=bids.size)
    dimension = arguments.whole("dimension", dimension, minimum=1)
    if labels is not None and len(labels.rows) != bids.size:
        raise ImpossibleArgument("labels", len(labels.rows), f"must have {bids.size} rows, like the others")
    return _weights(arguments.choice("weighting", weighting, Weighting), bids, records, scales, labels, dimension)


def noise_variance(*, weights: Numbers, budgets: Numbers, noise_scales: Numbers) -> float:
    """Return the variance of each coordinate of the averaged noise: Σ p_i²·v_i/ρ_i.

    It is infinite if no client has a weight, or if a client with a weight has no budget.

    >>> noise_variance(weights=[0.5, 0.5], budgets=[0.1, 0.1], noise_scales=[0.2, 0.2])
    1.0
    """
    shares = arguments.non_negative_vector("weights", weights)
    bids = arguments.non_negative_vector("budgets", budgets, length=shares.size)
    scales = arguments.positive_vector("noise_scales", noise_scales, length=shares.size)
    return _variance_of_counted(shares, bids, scales)


def noise_cost(*, market: Market) -> float:
    """Return the paper's A_t: while no cap binds, the noise of a round costs A_t/R. 0 if there is no market.

    Weights that balance labels change with the reward: then it is the limit of A_t for small rewards, its smallest
    value. The example is that of `optimal_reward`.
    """
    rates = _contest_rates(market)
    active = rates > 0
    return _cost_of_rates(market.only(active), rates[active]) if active.any() else 0.0


def optimal_reward(*, market: Market, round_number: int) -> float:
    """Return the reward R_t* = sqrt(A_t·π^(1-t)/(1-γ)) with the least cost while no cap binds (Theorem 2).

    It is 0 if there is no market, or if accuracy has weight 0. Raises `ImpossibleArgument` for a round after the
    horizon.

    >>> model = CostModel(
    ...     dimension=650, horizon=20, accuracy_weight=0.5, smoothness=10.0, convexity=0.03, gradient_bound=1.0,
    ...     discount=0.93,
    ... )
    >>> market = Market(
    ...     cost_model=model, weighting=Weighting.SIZE, privacy_weight=30.0, privacy_values=np.array([1.0, 1.1]),
    ...     sizes=np.array([100, 120]), noise_scales=np.array([2e-4, 1.4e-4]),
    ... )
    >>> round(noise_cost(market=market), 3)
    189.234
    >>> round(optimal_reward(market=market, round_number=1), 3)
    19.454
    """
    return cheapest_reward(market=market, rates=_contest_rates(market), price=market.price(round_number))


def cheapest_reward(*, market: Market, rates: Vector, price: float) -> float:
    """Return the reward with the least cost where client i sells the budget `rates[i]` per unit of reward.

    It is the only R with R = sqrt(A/price), where A belongs to the weights at R. Weights that balance labels change
    with the reward: A then grows with R from its value for small rewards.
    """
    active = rates > 0
    if not active.any():
        return 0.0
    clients, rates = market.only(active), rates[active]
    lowest = math.sqrt(_cost_of_rates(clients, rates) / price)
    if not market.balances_labels or lowest == 0:
        return lowest

    def excess(logarithm: float) -> float:
        weights = clients.weights(rates * math.exp(logarithm))
        noise = market.cost_model.noise_factor * _variance_of_counted(weights, rates, clients.noise_scales)
        return 0.5 * math.log(noise / price) - logarithm

    # No reward can be best whose price alone exceeds the cost of the lowest one.
    highest = lowest + clients.noise_cost_of(rates * lowest) / price
    start, end = math.log(lowest), math.log(highest)
    if excess(start) <= 0:
        return lowest
    # scipy.optimize takes longer to import than this package.
    from scipy.optimize import brentq

    return math.exp(float(brentq(excess, start, end, xtol=1e-13, rtol=1e-14)))


def _contest_rates(market: Market) -> Vector:
    return budget_per_reward(
        privacy_values=market.privacy_values, privacy_weight=market.privacy_weight, max_share=market.max_share
    )


def _cost_of_rates(clients: Market, rates: Vector) -> float:
    """The noise cost of a reward of 1, with weights that make the noise as small as possible if they balance labels."""
    weights = clients.without_labels().weights(rates)
    return clients.cost_model.noise_factor * _noise_variance(weights, rates, clients.noise_scales)


def optimal_schedule(*, cost_model: CostModel, noise_cost: float) -> Vector:
    """Return R_1*, …, R_T* for a constant set of clients. Discounting makes them grow by π^(-1/2) a round.

    >>> model = CostModel(
    ...     dimension=1, horizon=3, accuracy_weight=0.5, smoothness=1.0, convexity=1.0, gradient_bound=1, discount=0.25
    ... )
    >>> optimal_schedule(cost_model=model, noise_cost=2.0).tolist()
    [2.0, 4.0, 8.0]
    """
    noise_cost = arguments.non_negative("noise_cost", noise_cost)
    prices = np.array([cost_model.price(t) for t in range(1, cost_model.horizon + 1)])
    rewards: Vector = np.sqrt(noise_cost / prices)
    return rewards


def round_cost(*, cost_model: CostModel, round_number: int, reward: float, noise_variance: float) -> float:
    """Return the server's cost of one round (a summand of eq. 15): model loss and discounted reward.

    >>> model = CostModel(
    ...     dimension=1, horizon=2, accuracy_weight=0.5, smoothness=1.0, convexity=1.0, gradient_bound=1.0, discount=1.0
    ... )
    >>> round_cost(cost_model=model, round_number=1, reward=4.0, noise_variance=1.0)
    2.5
    """
    reward = arguments.non_negative("reward", reward)
    variance = arguments.limit("noise_variance", noise_variance)
    price = cost_model.price(round_number)
    noise = cost_model.noise_factor * variance if cost_model.noise_factor else 0.0
    return cost_model.signal_cost + noise + price * reward


def server_cost(*, cost_model: CostModel, rewards: Numbers, noise_variances: Numbers) -> float:
    """Return the server's cost of the rounds 1, 2, … (eq. 15). There is one round per reward.

    >>> model = CostModel(
    ...     dimension=1, horizon=2, accuracy_weight=0.5, smoothness=1.0, convexity=1.0, gradient_bound=1.0, discount=1.0
    ... )
    >>> server_cost(cost_model=model, rewards=[4.0, 4.0], noise_variances=[1.0, 1.0])
    5.0
    """
    paid = arguments.non_negative_vector("rewards", rewards)
    variances = arguments.limit_vector("noise_variances", noise_variances, length=paid.size)
    return math.fsum(
        round_cost(cost_model=cost_model, round_number=t, reward=reward, noise_variance=variance)
        for t, (reward, variance) in enumerate(zip(paid.tolist(), variances.tolist(), strict=True), start=1)
    )


def _weights(
    weighting: Weighting, budgets: Vector, sizes: Vector, scales: Vector, labels: LabelGaps | None, dimension: int
) -> Vector:
    bids = budgets > 0
    match weighting:
        case Weighting.UNIFORM:
            raw = bids.astype(np.float64)
        case Weighting.SIZE:
            raw = np.where(bids, sizes, 0.0)
        case Weighting.OPTIMAL if labels is not None and bids.any():
            raw = np.zeros(budgets.size)
            noise = dimension * scales[bids] / budgets[bids]
            raw[bids] = optimal_weights(noise=noise, labels=labels.only(bids)).weights
            return raw
        case Weighting.INVERSE_VARIANCE | Weighting.OPTIMAL:
            raw = budgets / scales
    total = float(raw.sum())
    weights: Vector = raw / total if total > 0 else raw
    return weights


def _variance_of_counted(weights: Vector, budgets: Vector, scales: Vector) -> float:
    counted = weights > 0
    if not counted.all():
        weights, budgets, scales = weights[counted], budgets[counted], scales[counted]
    if not weights.size or not budgets.all():
        return math.inf
    return _noise_variance(weights, budgets, scales)


def _noise_variance(weights: Vector, budgets: Vector, scales: Vector) -> float:
    return float(np.sum(weights * weights * scales / budgets))
