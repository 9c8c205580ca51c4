"""A whole task on paper: each round is planned as the server plans it, and every client bids as planned.

Nothing here trains. What is known before a run follows from the plans: money, budgets, and the noise of the average.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from .. import arguments
from ..aggregation import bounded_weights, counted_sizes
from ..arguments import Numbers, Vector
from ..averaging.optimal_weights import label_gaps_of
from ..money import MICRO
from ..planning import PlanStatus, RoundPlan, plan_round
from ..reward import ANY_REWARD, RewardPolicy, aggregation_weights
from ..round_rules import Participant, RoundRules
from .noise_curve import mean_noise

# With a defence no client pulls more than this multiple of the median client.
_MAX_PULL = 2.0
# No limit on what a task pays: the planner says what it would cost.
NO_LIMIT = arguments.LARGEST_WHOLE

# How a round is planned: from the rules, the participants and the number of the round to a plan.
PlanOfRound = Callable[[RoundRules, Sequence[Participant], int], RoundPlan]


def plan_of_task(rules: RoundRules, participants: Sequence[Participant], round_number: int) -> RoundPlan:
    """The plan of the task's own market, without a limit on what the task pays in total."""
    return plan_round(rules=rules, round_number=round_number, participants=participants, reward_left_micro=NO_LIMIT)


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedRound:
    """The plan of one round, what its clients sell and earn, and the noise of its average.

    The noise is in units of the bound of one signal. `payments` are in units of money; the coordinator keeps the rest
    of the reward.
    """

    reward_micro: int
    invited: int
    noise: float
    budgets: Vector
    payments: Vector

    @property
    def paid_micro(self) -> int:
        return min(self.reward_micro, round(float(self.payments.sum()) * MICRO))


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedTask:
    """The rounds of a task, and why no more could be planned: `planned` if all were."""

    rounds: tuple[PlannedRound, ...]
    status: PlanStatus

    @property
    def money_micro(self) -> int:
        """What all rounds pay together."""
        return sum(one.paid_micro for one in self.rounds)

    @property
    def noise(self) -> float:
        """The noise of the average over all rounds."""
        return mean_noise([one.noise for one in self.rounds])

    @property
    def spent(self) -> Vector:
        """The budget of each client over all rounds."""
        total: Vector = np.sum([one.budgets for one in self.rounds], axis=0)
        return total

    def earned(self, client: int) -> float:
        """What one client earns, in micro-units."""
        return math.fsum(MICRO * float(one.payments[client]) for one in self.rounds)


def play_task(
    *, rules: RoundRules, participants: Sequence[Participant], rounds: int, plan: PlanOfRound = plan_of_task
) -> PlannedTask:
    """Plan the rounds of a task one after the other, with what each leaves of the clients' lifetime budgets.

    >>> from qidpfl_shared.protocol.presets import preset
    >>> participants = [Participant(privacy_value=value, size=110) for value in (0.95, 1.0, 1.05)]
    >>> task = play_task(rules=preset("digits").round_rules(), participants=participants, rounds=2)
    >>> task.status.value, [round(one.noise, 3) for one in task.rounds]
    ('planned', [0.544, 0.534])
    """
    left, played = list(participants), list[PlannedRound]()
    for number in range(1, arguments.whole("rounds", rounds, minimum=1) + 1):
        planned = plan(rules, left, number)
        if planned.status is not PlanStatus.PLANNED:
            return PlannedTask(rounds=tuple(played), status=planned.status)
        budgets, payments = _sold(rules, left, planned)
        noise = noise_of_average(rules=rules, participants=left, budgets=budgets)
        played.append(
            PlannedRound(
                reward_micro=planned.reward_micro,
                invited=planned.invited,
                noise=noise,
                budgets=budgets,
                payments=payments,
            )
        )
        left = [
            one
            if math.isinf(one.remaining_rho)
            else replace(one, remaining_rho=max(0.0, one.remaining_rho - float(budget)))
            for one, budget in zip(left, budgets, strict=True)
        ]
    return PlannedTask(rounds=tuple(played), status=PlanStatus.PLANNED)


def _sold(rules: RoundRules, participants: Sequence[Participant], planned: RoundPlan) -> tuple[Vector, Vector]:
    """What each client sells, by its privacy value, and what it earns, in units."""
    expected = np.array(planned.budgets)
    if rules.policy == RewardPolicy.NONE:
        return expected, np.zeros(expected.size)
    values = np.array([one.privacy_value for one in participants])
    sold = rules.design.sold(budgets=expected, limits=np.array(planned.limits), values=values)
    earned = rules.design.earned(reward_micro=planned.reward_micro, total=planned.total, budgets=expected, sold=sold)
    return sold, earned


def noise_of_average(*, rules: RoundRules, participants: Sequence[Participant], budgets: Numbers) -> float:
    """Return √(d·Σp_i²·σ_i²)/C for these budgets with the weights that the server would use; infinite without a bid."""
    bids = arguments.non_negative_vector("budgets", budgets, length=len(participants))
    counted = [(one, float(bid)) for one, bid in zip(participants, bids, strict=True) if bid > 0]
    if not counted:
        return math.inf
    mechanism, dimension = rules.mechanism, rules.cost_model.dimension
    sizes = counted_sizes(sizes=[one.size for one, _ in counted], max_ratio=rules.max_size_ratio)
    signals = [mechanism.signal_bound(size=size) for size in sizes]
    stds = np.array([mechanism.noise_std(rho=bid, size=one.size) for one, bid in counted])
    gaps = [None if one.label_gap is None else np.array(one.label_gap) for one, _ in counted]
    weights = aggregation_weights(
        weighting=rules.weighting,
        budgets=[bid for _, bid in counted],
        sizes=sizes,
        noise_scales=[mechanism.noise_scale(size=size) for size in sizes],
        labels=label_gaps_of(gaps, signal_bounds=signals),
        dimension=dimension,
    )
    if rules.max_size_ratio is not None:
        pulling = weights > 0
        norms = np.sqrt(np.array(signals) ** 2 + dimension * stds**2)
        weights[pulling] = bounded_weights(weights=weights[pulling], bounds=norms[pulling], max_ratio=_MAX_PULL)
    energy = float(np.sum((weights * stds) ** 2))
    return math.sqrt(dimension * energy) / float(weights.sum()) / median(signals)


def with_rewards(rules: RoundRules, rewards: Sequence[float]) -> RoundRules:
    """Return rules that pay these rewards in the rounds from the first on; later rounds pay nothing.

    The reward range belongs to the policy and goes. The ceiling of a round is a bound of the task and stays.
    """
    horizon = rules.cost_model.horizon
    schedule = (*rewards, *(0.0,) * (horizon - len(rewards)))
    return replace(
        rules,
        policy=RewardPolicy.FIXED,
        fixed_reward=None,
        reward_schedule=schedule,
        reward_range=ANY_REWARD,
        schedule=None,
    )
