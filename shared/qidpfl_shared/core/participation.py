"""Who takes part in a round: invitation by smallest share, and withdrawal when a round does not pay."""

import heapq
from dataclasses import dataclass

import numpy as np

from . import arguments
from .arguments import Mask, Numbers, Vector
from .equilibrium import EDGE_SHARE, Equilibrium, active_set, equilibrium, uncapped_shares


@dataclass(frozen=True)
class Invitation:
    """Who is asked to bid; everybody else is either priced out or has too small a share."""

    invited: Mask
    priced_out: Mask
    below_min_share: Mask


def invite(*, privacy_values: Numbers, min_share: float, min_clients: int = 2) -> Invitation:
    """Leave out, one by one, the client with the smallest share while that share is below min_share/n.

    A client near the edge of the active set buys almost no budget; its noise would dominate a uniform average and
    drive the reward to infinity (Theorem 2 divides by its share). After each step the game is solved again on the
    rest. `min_share` 0 is the paper; the rule never goes below `min_clients`. Of equals the later one goes first.
    """
    values = arguments.positive_vector("privacy_values", privacy_values)
    min_share = arguments.fraction("min_share", min_share)
    min_clients = arguments.whole("min_clients", min_clients, minimum=2)

    active = active_set(privacy_values=values)
    order = np.flatnonzero(active)[np.argsort(values[active], kind="stable")]
    kept = _largest_prefix(values[order], min_share, min_clients)
    invited = np.zeros(values.size, dtype=np.bool_)
    invited[order[:kept]] = True
    return Invitation(invited=invited, priced_out=~active, below_min_share=active & ~invited)


def _largest_prefix(ascending: Vector, min_share: float, min_clients: int) -> int:
    """How many of the active clients stay: any prefix of an active set is itself active, its last share smallest."""
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
    """Who stays when fixed costs are counted, and the equilibrium among them (before fixed costs)."""

    withdrawn: Mask
    equilibrium: Equilibrium
    utilities: Vector


def participation(
    *, reward: float, privacy_values: Numbers, privacy_weight: float, fixed_costs: Numbers
) -> Participation:
    """Sequential withdrawal: while a bidder's utility is negative, the one with the lowest utility leaves.

    A bidder stays iff s_i²·R is at least its fixed cost. Every withdrawal raises the shares of the rest and may let a
    priced-out client in. Other orders of leaving can end in other stable sets: this is one rational outcome, not the
    only one. Of equals the later one leaves first.
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
    """The clients that leave, in O(N log N) for all but contrived inputs.

    Shares only ever rise, so a utility computed earlier is a lower bound of today's: the heap holds such bounds, and
    its smallest entry is refreshed until it is both current and smallest.
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
            # Negated, so that of equal utilities the later client comes first.
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
    """The smallest reward at which no active client withdraws: max F_i/s_i²; 0 when there is no market."""
    values = arguments.positive_vector("privacy_values", privacy_values)
    fixed = arguments.non_negative_vector("fixed_costs", fixed_costs, length=values.size)
    shares = uncapped_shares(privacy_values=values)
    active = shares > 0
    return float(np.max(fixed[active] / shares[active] ** 2, initial=0.0))
