"""A client's training cost, utility, and regret of a declared budget.

All functions raise `ImpossibleArgument` for a number that is not finite or has the wrong sign, and for sequences of
different lengths.
"""

import math

import numpy as np

from . import arguments
from .arguments import Numbers, Vector
from .equilibrium import sums_of_others


def fixed_cost(
    *,
    data: float = 0.0,
    computation: float = 0.0,
    communication: float = 0.0,
    data_weight: float = 1.0,
    computation_weight: float = 1.0,
    communication_weight: float = 1.0,
) -> float:
    """Return the part of the training cost that does not depend on the budget: φ2·C^d + φ3·C^cp + φ4·C^cm (eq. 17).

    >>> fixed_cost(data=1.0, computation=2.0, communication=3.0, computation_weight=0.5)
    5.0
    """
    parts = (
        (arguments.non_negative("data", data), arguments.non_negative("data_weight", data_weight)),
        (
            arguments.non_negative("computation", computation),
            arguments.non_negative("computation_weight", computation_weight),
        ),
        (
            arguments.non_negative("communication", communication),
            arguments.non_negative("communication_weight", communication_weight),
        ),
    )
    return sum(cost * weight for cost, weight in parts)


def training_cost(*, rho: float, privacy_value: float, privacy_weight: float, fixed: float = 0.0) -> float:
    """Return the cost of one round for a client: φ1·ν·ρ plus its fixed cost (eq. 17).

    >>> training_cost(rho=0.5, privacy_value=2.0, privacy_weight=3.0, fixed=1.0)
    4.0
    """
    rho = arguments.non_negative("rho", rho)
    value = arguments.positive("privacy_value", privacy_value)
    weight = arguments.positive("privacy_weight", privacy_weight)
    return weight * value * rho + arguments.non_negative("fixed", fixed)


def utilities(
    *,
    reward: float,
    budgets: Numbers,
    privacy_values: Numbers,
    privacy_weight: float,
    fixed_costs: Numbers | None = None,
) -> Vector:
    """Return each client's payment minus its training cost (eqs. 16 and 17); 0 for a client that does not bid.

    >>> utilities(reward=10.0, budgets=[2.0, 2.0, 0.0], privacy_values=[1.0, 2.0, 3.0], privacy_weight=1.0).tolist()
    [3.0, 1.0, 0.0]
    """
    reward = arguments.non_negative("reward", reward)
    weight = arguments.positive("privacy_weight", privacy_weight)
    bids = arguments.non_negative_vector("budgets", budgets)
    values = arguments.positive_vector("privacy_values", privacy_values, length=bids.size)
    fixed = np.zeros(bids.size)
    if fixed_costs is not None:
        fixed = arguments.non_negative_vector("fixed_costs", fixed_costs, length=bids.size)
    total = float(bids.sum())
    if total == 0:
        return np.zeros(bids.size)
    gains: Vector = np.where(bids > 0, bids / total * reward - weight * values * bids - fixed, 0.0)
    return gains


def best_response_to_others(
    *, reward: float, others_total: float, privacy_value: float, privacy_weight: float, cap: float = math.inf
) -> float:
    """Return the budget that maximises a client's utility while the other budgets stay the same.

    If `others_total` is 0, every positive budget wins the whole reward, and a smaller one is always better. There is no
    best budget then, and the result is 0.

    >>> best_response_to_others(reward=8.0, others_total=2.0, privacy_value=1.0, privacy_weight=1.0)
    2.0
    """
    reward = arguments.non_negative("reward", reward)
    others = arguments.non_negative("others_total", others_total)
    cost = arguments.positive("privacy_weight", privacy_weight) * arguments.positive("privacy_value", privacy_value)
    cap = arguments.limit("cap", cap)
    return float(_response(reward, np.array([others]), np.array([cost]), np.array([cap]))[0])


def regrets(
    *,
    reward: float,
    budgets: Numbers,
    privacy_values: Numbers,
    privacy_weight: float,
    caps: Numbers | None = None,
) -> Vector:
    """Return how much each client could gain by changing only its own budget; 0 for all at the equilibrium.

    For a client that bids alone it is the supremum, which no budget reaches (see `best_response_to_others`).

    >>> regrets(reward=8.0, budgets=[2.0, 2.0], privacy_values=[1.0, 1.0], privacy_weight=1.0).tolist()
    [0.0, 0.0]
    """
    reward = arguments.non_negative("reward", reward)
    weight = arguments.positive("privacy_weight", privacy_weight)
    bids = arguments.non_negative_vector("budgets", budgets)
    values = arguments.positive_vector("privacy_values", privacy_values, length=bids.size)
    limits = arguments.cap_vector(caps, length=bids.size)

    costs = weight * values
    others = sums_of_others(bids)
    actual = _utility(reward, bids, others, costs)
    best = _utility(reward, _response(reward, others, costs, limits), others, costs)
    alone = (others == 0) & (limits > 0)
    best[alone] = reward
    return np.maximum(best - actual, 0.0)


def _response(reward: float, others: Vector, costs: Vector, limits: Vector) -> Vector:
    budgets: Vector = np.clip(np.sqrt(reward * others / costs) - others, 0.0, limits)
    return budgets


def _utility(reward: float, budgets: Vector, others: Vector, costs: Vector) -> Vector:
    sums = budgets + others
    shares = np.divide(budgets, sums, out=np.zeros_like(sums), where=sums > 0)
    gains: Vector = shares * reward - costs * budgets
    return gains
