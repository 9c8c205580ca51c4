"""A uniform-price auction: the k clients with the smallest reports sell equal budgets, at the price of the next report.

The price does not depend on the report of any winner. A client can therefore gain nothing by another report than its
value: it would only win where the price is below its value, or lose where the price is above it.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from .. import arguments
from ..arguments import ImpossibleArgument, Mask, Numbers, Vector
from ..money import MICRO, from_micro
from ..participation import Invitation
from ..reward import Market, cheapest_reward
from .design import TOLERANCE, Clearing, FixedPayments, Sale, Terms, sellable


@dataclass(frozen=True, kw_only=True, eq=False)
class AuctionResult:
    """The winners of an auction, the price per unit of privacy value, and what each sells and is paid."""

    winners: Mask
    price: float
    budgets: Vector
    payments: Vector


def auction(
    *,
    reward: float,
    privacy_values: Numbers,
    privacy_weight: float,
    winners: int,
    largest_value: float,
    scores: Numbers | None = None,
    weights: Numbers | None = None,
    caps: Numbers | None = None,
) -> AuctionResult:
    """Sell the reward to the `winners` clients with the smallest ν_i/v_i, where v_i are public `scores`.

    The price θ is the next smallest ratio; without one, the largest ratio that any client could report. A winner gets
    the share x_i of the reward, in proportion to public `weights`, for the budget x_i·R/(φ·θ·v_i). Without scores and
    weights all winners sell the same budget R/(k·φ·θ). A winner with a smaller cap sells that at the same unit price,
    and the rest of the reward is not spent. Ties: the earlier client wins.

    >>> result = auction(
    ...     reward=12.0, privacy_values=[1.0, 2.0, 1.5, 3.0], privacy_weight=2.0, winners=2, largest_value=10.0
    ... )
    >>> result.winners.tolist(), result.price
    ([True, False, True, False], 2.0)
    >>> result.budgets.tolist(), result.payments.tolist()
    ([1.5, 0.0, 1.5, 0.0], [6.0, 0.0, 6.0, 0.0])
    """
    reward = arguments.non_negative("reward", reward)
    weight = arguments.positive("privacy_weight", privacy_weight)
    values = arguments.positive_vector("privacy_values", privacy_values)
    count = arguments.whole("winners", winners, minimum=1)
    largest = arguments.positive("largest_value", largest_value)
    limits = arguments.cap_vector(caps, length=values.size)
    points = _positive_or_ones("scores", scores, values.size)
    parts = _positive_or_ones("weights", weights, values.size)

    able = np.flatnonzero(limits > 0)
    ratios = values[able] / points[able]
    chosen, following = _smallest(ratios, count)
    won = np.zeros(values.size, dtype=np.bool_)
    won[able[chosen]] = True
    if not won.any():
        return AuctionResult(winners=won, price=0.0, budgets=np.zeros(values.size), payments=np.zeros(values.size))
    price = float(np.max(largest / points[able])) if following is None else float(ratios[following])
    shares = np.where(won, parts, 0.0) / float(parts[won].sum())
    unit_prices = weight * price * points
    budgets = np.minimum(shares * reward / unit_prices, limits)
    return AuctionResult(winners=won, price=price, budgets=budgets, payments=unit_prices * budgets)


def _positive_or_ones(name: str, numbers: Numbers | None, length: int) -> Vector:
    return np.ones(length) if numbers is None else arguments.positive_vector(name, numbers, length=length)


def _smallest(ratios: Vector, count: int) -> tuple[npt.NDArray[np.intp], int | None]:
    """The places of the `count` smallest ratios, and that of the next one."""
    order = np.argsort(ratios, kind="stable")
    return order[:count], int(order[count]) if count < order.size else None


@dataclass(frozen=True, kw_only=True)
class Auction(FixedPayments):
    """The auction of a task. Without a number of `winners` all clients but one win, and at least `min_clients`.

    `largest_value` is the price if all clients win: the largest value that the task accepts. No budget of the task is
    below `smallest_rho` or above `largest_rho`.
    """

    privacy_weight: float
    largest_value: float
    smallest_rho: float
    largest_rho: float = math.inf
    min_clients: int = 2
    winners: int | None = None

    @property
    def reports_values(self) -> bool:
        return True

    @property
    def announces_base(self) -> bool:
        return False

    def invite(self, *, values: Vector) -> Invitation:
        chosen, _ = _smallest(values, self._count(values.size))
        invited = np.zeros(values.size, dtype=np.bool_)
        invited[chosen] = True
        return Invitation(invited=invited, priced_out=~invited, below_min_share=np.zeros(values.size, dtype=np.bool_))

    def counted_values(self, *, values: Vector, invited: Mask) -> Vector:
        """The price for every winner: the reward must not depend on what a winner reports."""
        price = float(np.min(values[~invited], initial=self.largest_value))
        return np.full(np.count_nonzero(invited), price)

    def optimal_reward(self, *, market: Market, round_number: int, caps: Vector) -> float:
        """The cheapest reward while no cap of a client binds, because the caps are what the winners say.

        No reward buys more than the largest budget of the task from each of them.
        """
        prices = self.privacy_weight * market.privacy_values
        rates = 1 / (prices.size * prices)
        best = cheapest_reward(market=market, rates=rates, price=market.price(round_number))
        return min(best, self.largest_rho * float(prices.sum()))

    def payable(self, *, reward_micro: int, invited: int) -> int:
        """A multiple of the number of winners, so that equal parts spend it exactly."""
        return reward_micro - reward_micro % max(1, invited)

    def clear(self, *, reward: float, market: Market, caps: Vector) -> Clearing:
        count = market.privacy_values.size
        if reward == 0 or count == 0:
            return Clearing.nothing(count)
        total = reward / (self.privacy_weight * float(market.privacy_values[0]))
        if not 0 < total < math.inf:
            raise ImpossibleArgument("total budget", total, "cannot be represented; use other units of money")
        budgets, unable = sellable(np.minimum(total / count, caps), self.smallest_rho)
        return Clearing(total=total, budgets=budgets, limits=budgets, unable=unable)

    def answer(self, terms: Terms, *, privacy_value: float, cap: float) -> Sale:
        """All that a winner may sell: the price is at least its value."""
        rho = min(cap, terms.limit)
        return Sale(rho=rho, payment=rho / terms.total * from_micro(terms.reward_micro) if terms.total > 0 else 0.0)

    def refusal(self, terms: Terms, *, privacy_value: float | None) -> str | None:
        if terms.total <= 0:
            return "no budget for the reward of its auction"
        price = terms.reward_micro / MICRO / (self.privacy_weight * terms.total)
        if price > self.largest_value * (1 + TOLERANCE):
            return f"the price {price:.6g}, above {self.largest_value:g}, the largest value of the task"
        if privacy_value is not None and price < privacy_value * (1 - TOLERANCE):
            return f"the price {price:.6g}, below {privacy_value:g}, the value that this winner has reported"
        if terms.limit > terms.total * (1 + TOLERANCE):
            return f"a budget of up to {terms.limit:.6g}, more than the {terms.total:.6g} that the reward buys"
        return None

    def payment(self, terms: Terms, rho: float) -> int:
        """R·ρ/S to the nearest micro-unit, at most R."""
        part = Fraction(rho) / Fraction(terms.total)
        return min(round(terms.reward_micro * part), terms.reward_micro)

    def sold(self, *, budgets: Vector, limits: Vector, values: Vector) -> Vector:
        return budgets

    def earned(self, *, reward_micro: int, total: float, budgets: Vector, sold: Vector) -> Vector:
        return sold * (reward_micro / MICRO / total)

    def _count(self, able: int) -> int:
        wanted = max(self.min_clients, able - 1) if self.winners is None else self.winners
        return min(wanted, able)
