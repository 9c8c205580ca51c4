"""The paper's market: all clients compete for the reward, and each gets its share of the declared budgets.

Reports of privacy values are not truthful here: a client that reports less than its value usually earns more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..arguments import Mask, Vector
from ..capped_reward import optimal_reward_capped
from ..equilibrium import MarketStatus, best_response, equilibrium
from ..money import MICRO, Split, from_micro, split_reward
from ..participation import Invitation, invite
from ..reward import Market
from .design import Clearing, Sale, Terms


@dataclass(frozen=True, kw_only=True)
class Contest:
    """The two-stage game of the paper, with an active set.

    With `max_bid`, of tasks with a defence, no client may declare more than this multiple of its planned budget, and a
    budget without an accepted update counts at most as planned.
    """

    privacy_weight: float
    min_share: float = 0.0
    min_clients: int = 2
    max_share: float | None = None
    max_bid: float | None = None

    @property
    def reports_values(self) -> bool:
        return True

    @property
    def fixes_payments(self) -> bool:
        return False

    @property
    def announces_base(self) -> bool:
        return False

    def invite(self, *, values: Vector) -> Invitation:
        return invite(
            privacy_values=values, min_share=self.min_share, min_clients=self.min_clients, max_share=self.max_share
        )

    def counted_values(self, *, values: Vector, invited: Mask) -> Vector:
        chosen: Vector = values[invited]
        return chosen

    def optimal_reward(self, *, market: Market, round_number: int, caps: Vector) -> float:
        return optimal_reward_capped(market=market, round_number=round_number, caps=caps)

    def payable(self, *, reward_micro: int, invited: int) -> int:
        return reward_micro

    def clear(self, *, reward: float, market: Market, caps: Vector) -> Clearing:
        """The equilibrium with caps."""
        found = equilibrium(
            reward=reward,
            privacy_values=market.privacy_values,
            privacy_weight=self.privacy_weight,
            caps=caps,
            max_share=market.max_share,
        )
        if found.status is not MarketStatus.EQUILIBRIUM:
            return Clearing.nothing(caps.size)
        limits = caps
        if self.max_bid is not None:
            # Without this one client could declare so much that the others are paid less than their cost. A client at
            # the largest share may not exceed that share of the planned total.
            limits = np.minimum(caps, np.minimum(self.max_bid * found.budgets, market.max_share * found.total))
        unable = np.zeros(caps.size, dtype=np.bool_)
        return Clearing(total=found.total, budgets=found.budgets, limits=limits, unable=unable)

    def split(
        self,
        *,
        reward_micro: int,
        total: float,
        declared: Sequence[float],
        planned: Sequence[float],
        delivered: Sequence[bool],
    ) -> Split:
        counted = list(declared)
        if self.max_bid is not None:
            counted = [
                rho if there else min(rho, expected)
                for rho, expected, there in zip(declared, planned, delivered, strict=True)
            ]
        return split_reward(reward_micro=reward_micro, declared=counted, delivered=delivered)

    def answer(self, terms: Terms, *, privacy_value: float, cap: float) -> Sale:
        reward = from_micro(terms.reward_micro)
        rho = best_response(
            reward=reward,
            total=terms.total,
            privacy_value=privacy_value,
            privacy_weight=self.privacy_weight,
            cap=min(cap, terms.limit),
        )
        return Sale(rho=rho, payment=rho / max(terms.total, rho) * reward if rho > 0 else 0.0)

    def refusal(self, terms: Terms, *, privacy_value: float | None) -> str | None:
        return None

    def payment(self, terms: Terms, rho: float) -> int | None:
        return None

    def sold(self, *, budgets: Vector, limits: Vector, values: Vector) -> Vector:
        return budgets

    def earned(self, *, reward_micro: int, total: float, budgets: Vector, sold: Vector) -> Vector:
        declared = float(sold.sum())
        return sold / declared * (reward_micro / MICRO) if declared > 0 else np.zeros(sold.size)
