"""What every market answers: `MarketDesign`, and the values that it works with.

A market answers four times. When a round is planned it chooses the sellers, the cheapest reward and what each seller
may sell. The announcement gives each client its `Terms`, to which the market has the best answer, and reasons to
refuse them. A settlement pays by `split`. The planner asks what clients with known values would sell and earn.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np

from ..arguments import Mask, Vector
from ..money import Split
from ..participation import Invitation
from ..reward import Market

# Other machines round differently. Terms that differ by more are other terms.
TOLERANCE = 1e-9


class MarketKind(StrEnum):
    """The market of a task: the paper's contest, an auction with one price, or a menu of budgets and payments."""

    CONTEST = "contest"
    AUCTION = "auction"
    MENU = "menu"


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a round offers to one client. Money is in micro-units.

    `total` is S, the budget that the reward buys. `limit` is the largest budget that the client may sell. `base` is the
    budget that the plan expects of it; a menu needs it.
    """

    reward_micro: int
    total: float
    limit: float
    base: float | None = None


@dataclass(frozen=True, kw_only=True)
class Sale:
    """The budget of the best answer, 0 for none, and what it earns in units of money.

    In a contest the payment assumes that all clients answer as planned.
    """

    rho: float
    payment: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Clearing:
    """What the invited clients sell at a reward: the expected budgets and the largest ones.

    `unable` are clients that could not sell the smallest budget of the task. Without a market the total is 0.
    """

    total: float
    budgets: Vector
    limits: Vector
    unable: Mask

    @classmethod
    def nothing(cls, clients: int) -> "Clearing":
        """No client sells anything."""
        return cls(
            total=0.0, budgets=np.zeros(clients), limits=np.zeros(clients), unable=np.zeros(clients, dtype=np.bool_)
        )


class MarketDesign(Protocol):
    """The rules of a market. All methods are pure."""

    @property
    def reports_values(self) -> bool:
        """Whether clients report their privacy values."""

    @property
    def fixes_payments(self) -> bool:
        """Whether the payment of a client depends on its own budget alone.

        Then the largest budget of each seller is stored and announced, and no rounding may exceed it.
        """

    @property
    def announces_base(self) -> bool:
        """Whether a client must know the budget that the plan expects of it."""

    def invite(self, *, values: Vector) -> Invitation:
        """Choose the sellers among the clients that can sell, by their reported values."""

    def counted_values(self, *, values: Vector, invited: Mask) -> Vector:
        """The values of the invited clients that the reward may depend on. `values` are those of all that can sell."""

    def optimal_reward(self, *, market: Market, round_number: int, caps: Vector) -> float:
        """The reward with the least cost for the server. `market` has the counted values of the invited clients."""

    def payable(self, *, reward_micro: int, invited: int) -> int:
        """The largest reward up to this one that the market can pay out exactly."""

    def clear(self, *, reward: float, market: Market, caps: Vector) -> Clearing:
        """What each invited client may sell at this reward."""

    def split(
        self,
        *,
        reward_micro: int,
        total: float,
        declared: Sequence[float],
        planned: Sequence[float],
        delivered: Sequence[bool],
    ) -> Split:
        """Pay the clients that declared a budget and delivered."""

    def answer(self, terms: Terms, *, privacy_value: float, cap: float) -> Sale:
        """The best answer of a client that can sell up to `cap`."""

    def refusal(self, terms: Terms, *, privacy_value: float | None) -> str | None:
        """Why these terms contradict the rules of the market; None if the client finds no contradiction."""

    def payment(self, terms: Terms, rho: float) -> int | None:
        """What a delivered budget earns, in micro-units; None if it depends on what the others declare."""

    def sold(self, *, budgets: Vector, limits: Vector, values: Vector) -> Vector:
        """What clients with these values sell in a plan with these budgets and limits."""

    def earned(self, *, reward_micro: int, total: float, budgets: Vector, sold: Vector) -> Vector:
        """What these clients earn in a plan with these budgets if they sell the budgets `sold`, in units of money."""


class FixedPayments(ABC):
    """A market in which the payment of a client depends on its own budget alone; the server keeps the rest."""

    @property
    def fixes_payments(self) -> bool:
        return True

    @abstractmethod
    def payment(self, terms: Terms, rho: float) -> int:
        """What a delivered budget earns, in micro-units."""

    def split(
        self,
        *,
        reward_micro: int,
        total: float,
        declared: Sequence[float],
        planned: Sequence[float],
        delivered: Sequence[bool],
    ) -> Split:
        payments = [0] * len(declared)
        for place, (rho, base, there) in enumerate(zip(declared, planned, delivered, strict=True)):
            if there and rho > 0:
                terms = Terms(reward_micro=reward_micro, total=total, limit=math.inf, base=base)
                payments[place] = self.payment(terms, rho)
        return Split(payments=tuple(payments), kept=reward_micro - sum(payments))


def sellable(limits: Vector, smallest: float) -> tuple[Vector, Mask]:
    """The limits, 0 for clients that cannot sell the smallest budget, and which clients these are."""
    unable: Mask = limits < smallest
    return np.where(unable, 0.0, limits), unable
