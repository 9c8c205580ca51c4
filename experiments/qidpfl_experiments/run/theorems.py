"""Theorems 1 to 3, checked on what a task really did: a grid of deviations for clients and server, and other starts.

Each number is a percentage that the theorem says is 0, up to the rounding of money and budgets. The paper's contest
only; the other markets have no such theorems.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qidpfl_shared.core.markets.design import MarketKind
from qidpfl_shared.core.money import from_micro
from qidpfl_shared.core.reward import RewardPolicy
from qidpfl_shared.protocol.messages import ClientSummary, RoundResult
from qidpfl_shared.protocol.task_spec import TaskSpec

Budgets = npt.NDArray[np.float64]
# Deviations from half to twice the budget or reward.
_FACTORS = np.geomspace(0.5, 2.0, 81)
_STARTS = 3
_STEPS = 2000


@dataclass(frozen=True, kw_only=True)
class TheoremChecks:
    """The largest of each percentage over all rounds; None if there is nothing to check.

    `client_regret` (Theorem 1): what a client could have gained by another budget, of its utility. `server_regret`
    (Theorem 2): what another admissible reward would have saved, of the server's cost. `distance` (Theorem 3): how far
    best responses from other starts end from the budgets of the round.
    """

    client_regret: float | None = None
    server_regret: float | None = None
    distance: float | None = None


def theorem_checks(spec: TaskSpec, clients: Iterable[ClientSummary], rounds: Sequence[RoundResult]) -> TheoremChecks:
    """Check the rounds of a finished task of the paper's contest."""
    if spec.game.policy is RewardPolicy.NONE or spec.market is not MarketKind.CONTEST:
        return TheoremChecks()
    known = {client.ordinal: client for client in clients}
    played = list(_played(spec, known, rounds))
    if not played:
        return TheoremChecks()
    optimal = spec.game.policy is RewardPolicy.OPTIMAL
    return TheoremChecks(
        client_regret=max(_client_regret(*one[1:]) for one in played),
        server_regret=max(_server_regret(spec, known, one[0]) for one in played) if optimal else None,
        distance=max(_distance(spec.bounds.rho_max, *one[1:]) for one in played),
    )


def _played(
    spec: TaskSpec, known: Mapping[int, ClientSummary], rounds: Sequence[RoundResult]
) -> Iterator[tuple[RoundResult, float, Budgets, Budgets]]:
    """The rounds with at least two budgets: the result, the reward, the budgets, and what a unit costs each client."""
    for result in rounds:
        parts = [part for part in result.clients or () if part.accepted and part.rho > 0]
        if len(parts) < 2 or result.reward_micro == 0:
            continue
        values = [known[part.ordinal].privacy_value or 0.0 for part in parts]
        budgets = np.array([part.rho for part in parts])
        yield result, from_micro(result.reward_micro), budgets, spec.game.privacy_weight * np.array(values)


def _utility(reward: float, own: Budgets, others: Budgets, unit_costs: Budgets) -> Budgets:
    utilities: Budgets = reward * own / (own + others) - unit_costs * own
    return utilities


def _client_regret(reward: float, budgets: Budgets, unit_costs: Budgets) -> float:
    others = budgets.sum() - budgets
    honest = _utility(reward, budgets, others, unit_costs)
    best = np.max([_utility(reward, factor * budgets, others, unit_costs) for factor in _FACTORS], axis=0)
    # A client at the edge of the market earns almost nothing: compare with an equal share of the reward then.
    scale = np.maximum(np.abs(honest), 1e-3 * reward / budgets.size)
    return float(100 * np.max((best - honest) / scale))


def _server_regret(spec: TaskSpec, known: Mapping[int, ClientSummary], result: RoundResult) -> float:
    """The budgets of the contest are proportional to the reward, as long as no cap binds."""
    parts = [part for part in result.clients or () if part.accepted and part.rho > 0]
    paid, limits = from_micro(result.reward_micro), spec.game.reward_range
    low = from_micro(limits.minimum_micro) if limits is not None else 0.0
    high = from_micro(limits.maximum_micro) if limits is not None else float("inf")

    def cost(reward: float) -> float:
        found = spec.declared_cost(
            round_number=result.round_number,
            reward=reward,
            budgets=[part.rho * reward / paid for part in parts],
            sizes=[known[part.ordinal].size or 1 for part in parts],
        )
        assert found is not None
        return found

    here = cost(paid)
    return 100 * max((here - cost(float(reward))) / here for reward in np.clip(paid * _FACTORS, low, high))


def _distance(cap: float, reward: float, budgets: Budgets, unit_costs: Budgets) -> float:
    """Clients answer one after the other with their best budget against the sum of the others."""
    dice = np.random.default_rng(0)
    found = 0.0
    for _ in range(_STARTS):
        played = budgets * dice.uniform(0.25, 4.0, budgets.size)
        for step in range(_STEPS):
            place = step % budgets.size
            others = played.sum() - played[place]
            played[place] = min(max(np.sqrt(reward * others / unit_costs[place]) - others, 0.0), cap)
        found = max(found, float(np.max(np.abs(played - budgets)) / budgets.mean()))
    return 100 * found
