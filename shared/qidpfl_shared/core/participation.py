"""Which clients take part in a round: invitation by smallest share, and withdrawal because of fixed costs.

All functions raise `ImpossibleArgument` for a number outside its range and for sequences of different lengths.
"""

import heapq
import math
from dataclasses import dataclass

import numpy as np

from . import arguments
from .arguments import Mask, Numbers, Vector
from .equilibrium import EDGE_SHARE, Equilibrium, active_set, equilibrium, uncapped_shares


@dataclass(frozen=True)
class Invitation:
    """Which clients are invited to bid. The others are priced out or have too small a share."""

    invited: Mask
    priced_out: Mask
    below_min_share: Mask


def invite(
    *, privacy_values: Numbers, min_share: float, min_clients: int = 2, max_share: float | None = None
) -> Invitation:
    """Leave out the client with the smallest share, one after the other, while that share is below min_share/n.

    A client near the edge of the active set sells almost no budget. Its noise would dominate a uniform average and
    drive the reward to infinity, because Theorem 2 divides by its share. After each step the game is solved again for
    the rest. `min_share` 0 is the paper. At least `min_clients` active clients stay. Ties: the later client leaves.

    With `max_share` no client gets more than this multiple of an equal share (see `share_bound`). Then clients with
    very low privacy values cannot price out the others.

    >>> invitation = invite(privacy_values=[1.0, 1.0, 1.0, 1.45, 9.0], min_share=0.3)
    >>> invitation.invited.tolist()
    [True, True, True, False, False]
    >>> invitation.priced_out.tolist()
    [False, False, False, False, True]
    """
    values = arguments.positive_vector("privacy_values", privacy_values)
    min_share = arguments.fraction("min_share", min_share)
    min_clients = arguments.whole("min_clients", min_clients, minimum=2)
    if max_share is not None:
        return _invite_bounded(values, min_share, min_clients, max_share)

    active = active_set(privacy_values=values)
    order = np.flatnonzero(active)[np.argsort(values[active], kind="stable")]
    kept = _largest_prefix(values[order], min_share, min_clients)
    invited = np.zeros(values.size, dtype=np.bool_)
    invited[order[:kept]] = True
    return Invitation(invited=invited, priced_out=~active, below_min_share=active & ~invited)


def share_bound(*, max_share: float | None, clients: int) -> float:
    """Return the largest part of the reward that one of so many clients may get: max_share/n, at most 1.

    >>> share_bound(max_share=2.0, clients=10), share_bound(max_share=2.0, clients=1)
    (0.2, 1.0)
    """
    if max_share is None:
        return 1.0
    return min(1.0, arguments.at_least_one("max_share", max_share) / max(1, clients))


def _invite_bounded(values: Vector, min_share: float, min_clients: int, max_share: float) -> Invitation:
    """Leave out clients one after the other, as `invite`. The bound of a share grows with each client that leaves."""
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    fate = _SmallestShares.of(ascending, min_share=min_share, max_share=max_share)
    priced_out = np.zeros(values.size, dtype=np.bool_)
    outside = fate.surely_outside
    # The numbers of clients with which the search may end, from 2 on.
    ends = np.flatnonzero(fate.may_end(min_clients)[1:]) + 2
    kept = values.size
    while kept >= 2:
        # The clients behind the next possible end leave for sure.
        place = int(np.searchsorted(ends, kept, side="right")) - 1
        end = int(ends[place]) if place >= 0 else 1
        priced_out[order[end:kept]] = outside[end:kept]
        kept = end
        if kept < 2:
            break
        is_outside, is_enough = fate.of_the_last(kept)
        if not is_outside and (kept <= min_clients or is_enough):
            break
        kept -= 1
        priced_out[order[kept]] = is_outside
    invited = np.zeros(values.size, dtype=np.bool_)
    invited[order[:kept]] = True
    return Invitation(invited=invited, priced_out=priced_out, below_min_share=~invited & ~priced_out)


@dataclass(frozen=True, kw_only=True)
class _SmallestShares:
    """The share of the last of the first n clients in ascending order: is it nothing, and is it at least min_share/n?

    The game of n clients with a largest share has the total S. The last client has at least the share s if at the total
    (1-s)/ν_n the shares of all add up to at most 1. Cumulative sums answer this for every n at once. Where rounding
    may decide, the game is solved.
    """

    ascending: Vector
    min_share: float
    max_share: float
    excess_at_nothing: Vector
    excess_at_enough: Vector

    @classmethod
    def of(cls, ascending: Vector, *, min_share: float, max_share: float) -> "_SmallestShares":
        counts = np.arange(1, ascending.size + 1)
        largest = np.minimum(1.0, arguments.at_least_one("max_share", max_share) / counts)
        scaled = ascending / ascending[-1] if ascending.size else ascending
        sums = np.concatenate(([0.0], np.cumsum(scaled)))

        def excess(shares: Vector) -> Vector:
            """The sum of the shares minus 1 if the last client has this one; not a number where rounding matters."""
            totals = (1 - shares) / scaled
            # These clients are at the largest share. The last one is not among them.
            at_bound = np.minimum(np.searchsorted(scaled, (1 - largest) / totals), counts - 1)
            inside = counts - at_bound
            above = at_bound * largest + inside - totals * (sums[counts] - sums[at_bound]) - 1
            above[np.abs(above) <= 1e-9 + 1e-15 * counts.astype(np.float64) ** 2] = np.nan
            known: Vector = above
            return known

        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            return cls(
                ascending=ascending,
                min_share=min_share,
                max_share=max_share,
                excess_at_nothing=excess(np.full(ascending.size, EDGE_SHARE)),
                excess_at_enough=excess((min_share - EDGE_SHARE) / counts),
            )

    @property
    def surely_outside(self) -> Mask:
        """Of which of the clients in ascending order it is known that they get nothing as the last one."""
        known: Mask = self.excess_at_nothing > 0
        return known

    def may_end(self, min_clients: int) -> Mask:
        """With which of them as the last one the search may end: it stays, or rounding decides."""
        few = np.arange(1, self.ascending.size + 1) <= min_clients
        unclear = ~(np.isfinite(self.excess_at_nothing) & np.isfinite(self.excess_at_enough))
        possible: Mask = unclear | (~self.surely_outside & (few | (self.excess_at_enough < 0)))
        return possible

    def of_the_last(self, count: int) -> tuple[bool, bool]:
        """Return whether the last of so many clients gets nothing, and whether it gets enough."""
        nothing, enough = float(self.excess_at_nothing[count - 1]), float(self.excess_at_enough[count - 1])
        if math.isfinite(nothing) and math.isfinite(enough):
            return nothing > 0, enough < 0
        bound = share_bound(max_share=self.max_share, clients=count)
        smallest = float(uncapped_shares(privacy_values=self.ascending[:count], max_share=bound)[-1])
        return smallest <= EDGE_SHARE, smallest * count >= self.min_share - EDGE_SHARE


def _largest_prefix(ascending: Vector, min_share: float, min_clients: int) -> int:
    """Return how many of the active clients stay. Any prefix of an active set is active; its last share is smallest."""
    if ascending.size <= min_clients:
        return ascending.size
    counts = np.arange(1, ascending.size + 1)
    scaled = ascending / ascending[-1]
    smallest = 1 - (counts - 1) * scaled / np.cumsum(scaled)
    acceptable = smallest * counts >= min_share - EDGE_SHARE
    acceptable[: min_clients - 1] = False
    acceptable[min_clients - 1] = True
    return int(np.flatnonzero(acceptable)[-1]) + 1


@dataclass(frozen=True)
class Participation:
    """Which clients withdraw because of fixed costs, and the equilibrium of the rest (before fixed costs)."""

    withdrawn: Mask
    equilibrium: Equilibrium
    utilities: Vector


def participation(
    *, reward: float, privacy_values: Numbers, privacy_weight: float, fixed_costs: Numbers
) -> Participation:
    """Withdraw the bidder with the lowest utility, one after the other, while that utility is negative.

    A bidder stays if s_i²·R is at least its fixed cost. Each withdrawal raises the shares of the rest, and a priced-out
    client may enter. Another order of withdrawal can end in another stable set, so this is one rational outcome of
    several. Ties: the later client leaves.

    >>> result = participation(
    ...     reward=10.0, privacy_values=[1.0, 1.0, 1.0], privacy_weight=1.0, fixed_costs=[0.0, 0.0, 2.0]
    ... )
    >>> result.withdrawn.tolist(), result.utilities.round(3).tolist()
    ([False, False, True], [2.5, 2.5, 0.0])
    """
    reward = arguments.non_negative("reward", reward)
    values = arguments.positive_vector("privacy_values", privacy_values)
    fixed = arguments.non_negative_vector("fixed_costs", fixed_costs, length=values.size)
    arguments.positive("privacy_weight", privacy_weight)

    withdrawn = np.zeros(values.size, dtype=np.bool_)
    if reward > 0 and values.size:
        withdrawn = _withdraw(reward, values / values.max(), fixed)
    limits = np.where(withdrawn, 0.0, np.inf)
    market = equilibrium(reward=reward, privacy_values=values, privacy_weight=privacy_weight, caps=limits)
    utilities: Vector = np.where(market.active, market.utilities - fixed, 0.0)
    return Participation(withdrawn=withdrawn, equilibrium=market, utilities=utilities)


def _withdraw(reward: float, values: Vector, fixed: Vector) -> Mask:
    """Return the clients that leave, in O(N log N) for all but artificial inputs.

    Shares never fall, so an earlier utility is a lower bound of the current one. The heap holds such bounds. Its
    smallest entry is recomputed until it is both current and smallest.
    """
    order = np.argsort(values, kind="stable").tolist()
    price, cost = values.tolist(), fixed.tolist()
    gone = np.zeros(values.size, dtype=np.bool_)
    inside, price_sum, entering = 0, 0.0, 0
    bounds: list[tuple[float, int]] = []

    while True:
        while entering < len(order):
            candidate = order[entering]
            total = price_sum + price[candidate]
            if inside >= 2 and inside * price[candidate] >= total * (1 - EDGE_SHARE):
                break
            inside, price_sum, entering = inside + 1, total, entering + 1
            # Negated, so that the later of two equal clients comes first.
            heapq.heappush(bounds, (-cost[candidate], -candidate))
        if inside < 2:
            return gone
        per_value = (inside - 1) / price_sum

        while True:
            client = -bounds[0][1]
            share = 1 - price[client] * per_value
            current = share * share * reward - cost[client]
            if current <= bounds[0][0]:
                break
            heapq.heapreplace(bounds, (current, -client))
        if current >= 0:
            return gone
        heapq.heappop(bounds)
        gone[client] = True
        inside, price_sum = inside - 1, price_sum - price[client]


def reward_that_keeps_all(*, privacy_values: Numbers, fixed_costs: Numbers) -> float:
    """Return the smallest reward at which no active client withdraws: max F_i/s_i²; 0 if there is no market.

    >>> round(reward_that_keeps_all(privacy_values=[1.0, 1.0, 1.0], fixed_costs=[0.0, 0.0, 2.0]), 3)
    18.0
    """
    values = arguments.positive_vector("privacy_values", privacy_values)
    fixed = arguments.non_negative_vector("fixed_costs", fixed_costs, length=values.size)
    shares = uncapped_shares(privacy_values=values)
    active = shares > 0
    return float(np.max(fixed[active] / shares[active] ** 2, initial=0.0))
