"""A menu: each client is offered a payment for every budget and chooses one. No client reports its privacy value.

The noise of client i costs the server c_i/ρ_i. A payment F_i - c_i/ρ_i makes this cost the client's own, so its best
choice is the one that is best for both together. With b the largest value that the task accepts, a client with this
value gains nothing at its best choice ρ = e_i, and every other client gains more. So c_i = φ·b·e_i² and
F_i = 2·φ·b·e_i: one number e_i, the base, describes the whole menu of a client.

With a prior the values are thought to be uniform between a and b, and the menu is the cheapest one for the server
(Myerson's): a client with value ν counts as 2ν - a.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

import numpy as np

from ..arguments import ImpossibleArgument, Mask, Vector
from ..money import MICRO, from_micro
from ..participation import Invitation, share_bound
from ..reward import Market, cheapest_reward
from .design import TOLERANCE, Clearing, FixedPayments, Sale, Terms, sellable

# The part of the reward that stays unspent, so that no rounding of budgets can make the payments exceed it.
_RESERVE = 1e-9


class MenuPrior(StrEnum):
    """What the coordinator believes of the privacy values before it knows any."""

    UNIFORM = "uniform"


@dataclass(frozen=True, kw_only=True)
class Menu(FixedPayments):
    """The menu of a task whose privacy values lie between a = `smallest_value` and b = `largest_value`.

    No budget of the task is below `smallest_rho` or above `largest_rho`.
    """

    privacy_weight: float
    smallest_value: float
    largest_value: float
    smallest_rho: float
    largest_rho: float = math.inf
    max_share: float | None = None
    prior: MenuPrior | None = None

    @property
    def reports_values(self) -> bool:
        return False

    @property
    def announces_base(self) -> bool:
        return True

    def invite(self, *, values: Vector) -> Invitation:
        """All clients that can sell."""
        none = np.zeros(values.size, dtype=np.bool_)
        return Invitation(invited=~none, priced_out=none, below_min_share=none.copy())

    def counted_values(self, *, values: Vector, invited: Mask) -> Vector:
        """The largest value for every client: no client has reported its own."""
        return np.full(np.count_nonzero(invited), self.largest_value)

    def optimal_reward(self, *, market: Market, round_number: int, caps: Vector) -> float:
        """The reward with the least cost if every client has the largest value and no cap binds.

        With weights that do not depend on budgets, c_i/ρ_i is then exactly what the noise of client i costs the server.
        """
        price = market.price(round_number)
        equal = np.full(caps.size, 1 / (caps.size * self._base_price))
        shares = self._shares(market, equal * cheapest_reward(market=market, rates=equal, price=price))
        best = cheapest_reward(market=market, rates=shares / self._base_price, price=price)
        # No reward buys more than the largest budget of the task as the base of each client.
        smallest = float(np.min(shares, where=shares > 0, initial=1.0))
        return self._spread * min(best, self._base_price * self.largest_rho / smallest)

    def payable(self, *, reward_micro: int, invited: int) -> int:
        return reward_micro

    def clear(self, *, reward: float, market: Market, caps: Vector) -> Clearing:
        if reward == 0 or not caps.size:
            return Clearing.nothing(caps.size)
        total = reward * (1 - _RESERVE) / (self._base_price * self._spread)
        if not 0 < total < math.inf:
            raise ImpossibleArgument("total budget", total, "cannot be represented; use other units of money")
        shares = self._shares(market, np.full(caps.size, total / caps.size))
        bases = np.minimum(total * np.minimum(shares, share_bound(max_share=self.max_share, clients=caps.size)), caps)
        bases, unable = sellable(bases, self.smallest_rho)
        return Clearing(
            total=total, budgets=bases, limits=np.minimum(bases * self._largest_multiple, caps), unable=unable
        )

    def answer(self, terms: Terms, *, privacy_value: float, cap: float) -> Sale:
        base = terms.base or 0.0
        rho = min(base * self._multiple(privacy_value), cap, terms.limit)
        return Sale(rho=rho, payment=from_micro(self.payment(terms, rho)) if rho > 0 else 0.0)

    def refusal(self, terms: Terms, *, privacy_value: float | None) -> str | None:
        if terms.base is None:
            return "no base of its menu"
        if not terms.base * (1 - TOLERANCE) <= terms.limit <= terms.base * self._largest_multiple * (1 + TOLERANCE):
            return f"a budget of up to {terms.limit:.6g}, which does not fit the base {terms.base:.6g} of its menu"
        if terms.base > terms.total * (1 + TOLERANCE):
            return f"the base {terms.base:.6g}, more than the {terms.total:.6g} that the reward buys"
        needed = terms.total * self._base_price * self._spread
        if terms.reward_micro / MICRO < needed * (1 - TOLERANCE):
            return f"a reward of {terms.reward_micro / MICRO:.6g}, which does not cover its menu of up to {needed:.6g}"
        return None

    def payment(self, terms: Terms, rho: float) -> int:
        """F - c/ρ in exact fractions, rounded down to a micro-unit; never below 0."""
        base, budget, weight = Fraction(terms.base or 0.0), Fraction(rho), Fraction(self.privacy_weight) * MICRO
        low, high = Fraction(self.smallest_value), Fraction(self.largest_value)
        if base == 0 or budget == 0:
            return 0
        if self.prior is None:
            amount = weight * high * base * (2 - base / budget)
        else:
            top = 2 * high - low
            amount = weight * (top * base + low * budget / 2 - top * base * base / (2 * budget))
        return min(max(0, math.floor(amount)), terms.reward_micro)

    def sold(self, *, budgets: Vector, limits: Vector, values: Vector) -> Vector:
        chosen: Vector = np.minimum(budgets * self._multiples(values), limits)
        return chosen

    def earned(self, *, reward_micro: int, total: float, budgets: Vector, sold: Vector) -> Vector:
        selling = sold > 0
        base, rho, paid = budgets[selling], sold[selling], np.zeros(sold.size)
        if self.prior is None:
            amounts = self._base_price * base * (2 - base / rho)
        else:
            top = 2 * self.largest_value - self.smallest_value
            amounts = self.privacy_weight * (top * base + self.smallest_value * rho / 2 - top * base**2 / (2 * rho))
        paid[selling] = np.maximum(amounts, 0.0)
        return paid

    @property
    def _base_price(self) -> float:
        """What a unit of the base earns a client with the largest value."""
        return self.privacy_weight * self.largest_value

    @property
    def _spread(self) -> float:
        """The largest payment of a client, as a multiple of what one with the largest value earns."""
        ratio = self.smallest_value / self.largest_value
        return 2 - math.sqrt(ratio) if self.prior is None else 2 - ratio

    @property
    def _largest_multiple(self) -> float:
        return self._multiple(self.smallest_value)

    def _multiple(self, value: float) -> float:
        return float(self._multiples(np.array([value]))[0])

    def _multiples(self, values: Vector) -> Vector:
        """The best budgets of clients with these values, as multiples of their bases."""
        top, counted = self.largest_value, values
        if self.prior is not None:
            top = 2 * self.largest_value - self.smallest_value
            counted = np.maximum(2 * values - self.smallest_value, self.smallest_value)
        multiples: Vector = np.sqrt(top / counted)
        return multiples

    def _shares(self, market: Market, budgets: Vector) -> Vector:
        """The parts of the bases: p_i·√v_i, with the weights of the average that these budgets would have."""
        raw = market.weights(budgets) * np.sqrt(market.noise_scales)
        total = float(raw.sum())
        shares: Vector = raw / total if total > 0 else raw
        return shares
