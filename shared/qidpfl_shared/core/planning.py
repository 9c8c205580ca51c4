"""`plan_round`: from the participants of a round to the announced reward and total.

The plan cannot use what only the client knows, such as fixed costs or a lower limit. Such a client later declares a
smaller budget or declines.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from statistics import median

import numpy as np
import numpy.typing as npt

from . import arguments
from .aggregation import counted_sizes
from .arguments import ImpossibleArgument, Mask, Vector
from .averaging.optimal_weights import LabelGaps, label_gaps_of
from .custom_rules import CustomReward, PastRound, RewardQuestion, ask_reward, read_only
from .money import MICRO, from_micro, to_micro
from .participation import share_bound
from .reward import RewardPolicy, RewardRange, Weighting
from .round_rules import Participant, RoundRules

# In tasks with a defence the noise of a client counts in the reward as that of at least this part of the median size.
_SMALLEST_PART = 2


class Standing(StrEnum):
    """Whether a participant is invited to a round; if not, the reason."""

    INVITED = "invited"
    MIN_SHARE = "min_share"
    PRICED_OUT = "priced_out"
    NO_BUDGET = "no_budget"
    SET_ASIDE = "set_aside"
    # Of a client that the selection refused: it is in no plan.
    REFUSED = "refused"


_STANDINGS = tuple(Standing)
_RANKS = {standing: rank for rank, standing in enumerate(Standing)}


class PlanStatus(StrEnum):
    """Whether the round can take place; if not, the reason."""

    PLANNED = "planned"
    TOO_FEW_CLIENTS = "too_few_clients"
    NO_REWARD = "no_reward"
    BUDGET_EXHAUSTED = "budget_exhausted"


class RewardBound(StrEnum):
    """Which bound, if any, determined the reward instead of the policy."""

    NONE = "none"
    RANGE_MINIMUM = "range_minimum"
    RANGE_MAXIMUM = "range_maximum"
    CEILING = "ceiling"


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """The plan of a round: the reward, the equilibrium total, and the standing of each participant.

    `budgets` are those that the market expects; in the paper's contest they are the equilibrium, are not announced, and
    `total` is their sum. In other markets `total` is what the reward buys without caps (docs/markets.md). `limits` are
    the largest budgets that the participants may declare. `wished_reward` is the reward of the policy before bounds,
    and `bound` says which bound changed it.
    """

    status: PlanStatus
    round_number: int
    reward_micro: int
    total: float
    standings: tuple[Standing, ...]
    budgets: tuple[float, ...]
    limits: tuple[float, ...]
    min_updates: int
    wished_reward: float
    bound: RewardBound

    @property
    def invited(self) -> int:
        """The number of invited clients."""
        return self.standings.count(Standing.INVITED)


def plan_round(
    *,
    rules: RoundRules,
    round_number: int,
    participants: Sequence[Participant],
    reward_left_micro: int,
    past: Sequence[PastRound] = (),
    custom_reward: CustomReward | None = None,
) -> RoundPlan:
    """Decide which clients to invite and which reward to announce.

    The steps are: clients with a cap above 0, invitation, reward, its bounds, micro-units, and what the market sells at
    that reward. The reward is rounded before the total is computed, so each client can check its best response against
    exactly the announced numbers. `reward_left_micro` is what the task may still pay. A larger reward ends the task.

    Policy `own` calls `custom_reward` with the `past` rounds. Raises `CustomRuleFailed` if that function fails, and
    `ImpossibleArgument` for a value outside its range.

    >>> from qidpfl_shared.protocol.presets import preset
    >>> participants = [Participant(privacy_value=value, size=100) for value in (0.9, 1.0, 1.1)]
    >>> plan = plan_round(
    ...     rules=preset("digits").round_rules(), round_number=1, participants=participants, reward_left_micro=10**9
    ... )
    >>> plan.status.value, plan.invited, round(plan.reward_micro / MICRO, 2), round(plan.total, 3)
    ('planned', 3, 18.28, 0.406)
    """
    arguments.whole("reward_left_micro", reward_left_micro)
    rules.cost_model.check_round(round_number)
    field = _Field.of(rules, participants)
    if rules.policy == RewardPolicy.NONE:
        return _plan_without_game(rules, round_number, field)
    if field.invited.sum() < 2:
        return _plan(PlanStatus.TOO_FEW_CLIENTS, rules, round_number, field)

    question = _question(rules, round_number, field, reward_left_micro, past)
    wished = _wished_reward(rules, question, custom_reward)
    reward_micro, bound = _bounded(rules, wished)
    reward_micro = rules.design.payable(reward_micro=reward_micro, invited=int(field.invited.sum()))
    if reward_micro > reward_left_micro:
        return _plan(PlanStatus.BUDGET_EXHAUSTED, rules, round_number, field, wished=wished, bound=bound)
    cleared = rules.design.clear(reward=reward_micro / MICRO, market=question.market, caps=field.caps[field.invited])
    selling = field.without(cleared.unable)
    if cleared.total == 0 or selling.invited.sum() < 2:
        return _plan(PlanStatus.NO_REWARD, rules, round_number, field, wished=wished, bound=bound)
    budgets, limits = np.zeros(field.caps.size), np.zeros(field.caps.size)
    budgets[field.invited], limits[field.invited] = cleared.budgets, cleared.limits
    return _plan(
        PlanStatus.PLANNED,
        rules,
        round_number,
        selling,
        wished=wished,
        bound=bound,
        reward_micro=reward_micro,
        total=cleared.total,
        budgets=budgets,
        limits=limits,
    )


@dataclass(frozen=True)
class _Field:
    """The participants as arrays. `able` are the places of those that can sell, and `ranks` stand for standings."""

    values: Vector
    sizes: Vector
    scales: Vector
    caps: Vector
    able: npt.NDArray[np.intp]
    ranks: npt.NDArray[np.int8]
    gaps: tuple[tuple[float, ...] | None, ...]

    @cached_property
    def invited(self) -> Mask:
        chosen: Mask = self.ranks == _RANKS[Standing.INVITED]
        return chosen

    @property
    def standings(self) -> tuple[Standing, ...]:
        return tuple(map(_STANDINGS.__getitem__, self.ranks.tolist()))

    @classmethod
    def of(cls, rules: RoundRules, participants: Sequence[Participant]) -> "_Field":
        values = np.array([p.privacy_value for p in participants], dtype=np.float64)
        caps = rules.caps(participants)
        ranks = np.where(caps > 0, _RANKS[Standing.INVITED], _RANKS[Standing.NO_BUDGET]).astype(np.int8)
        ranks[[place for place, one in enumerate(participants) if one.set_aside]] = _RANKS[Standing.SET_ASIDE]
        able = np.flatnonzero(ranks == _RANKS[Standing.INVITED])
        if rules.policy != RewardPolicy.NONE:
            invitation = rules.design.invite(values=values[able])
            ranks[able[invitation.priced_out]] = _RANKS[Standing.PRICED_OUT]
            ranks[able[invitation.below_min_share]] = _RANKS[Standing.MIN_SHARE]
        sizes = counted_sizes(sizes=[p.size for p in participants], max_ratio=rules.max_size_ratio)
        # A tiny size means much noise. With uniform weights it alone would raise the reward many times.
        least = 1 if rules.max_size_ratio is None or not sizes else max(1, int(median(sizes) / _SMALLEST_PART))
        scale_of = {size: rules.mechanism.noise_scale(size=max(size, least)) for size in set(sizes)}
        return cls(
            values=values,
            sizes=np.array(sizes, dtype=np.float64),
            scales=np.array(list(map(scale_of.__getitem__, sizes)), dtype=np.float64),
            caps=caps,
            able=able,
            ranks=ranks,
            gaps=tuple(p.label_gap for p in participants),
        )

    def without(self, unable: Mask) -> "_Field":
        """The same with some of the invited clients, given as a mask of these, left out for want of a budget."""
        if not unable.any():
            return self
        ranks = self.ranks.copy()
        ranks[np.flatnonzero(self.invited)[unable]] = _RANKS[Standing.NO_BUDGET]
        return replace(self, ranks=ranks)

    def counted_values(self, rules: RoundRules) -> Vector:
        """The privacy values of the invited clients that the reward may depend on."""
        return rules.design.counted_values(values=self.values[self.able], invited=self.invited[self.able])

    def labels(self, rules: RoundRules) -> LabelGaps | None:
        """The labels of the invited clients, if the weights use them."""
        if rules.weighting is not Weighting.OPTIMAL:
            return None
        invited = np.flatnonzero(self.invited)
        gaps = [None if (gap := self.gaps[place]) is None else np.array(gap) for place in invited]
        bounds = [rules.mechanism.signal_bound(size=int(self.sizes[place])) for place in invited]
        return label_gaps_of(gaps, signal_bounds=bounds)


def _question(
    rules: RoundRules, round_number: int, field: _Field, reward_left_micro: int, past: Sequence[PastRound]
) -> RewardQuestion:
    """Return what a policy may use: the data of the invited participants."""
    invited = field.invited
    return RewardQuestion(
        round_number=round_number,
        past=tuple(past),
        privacy_values=read_only(field.counted_values(rules)),
        sizes=read_only(field.sizes[invited]),
        caps=read_only(field.caps[invited]),
        noise_scales=read_only(field.scales[invited]),
        weighting=rules.weighting,
        privacy_weight=rules.privacy_weight,
        cost_model=rules.cost_model,
        reward_range=rules.reward_range,
        reward_left=from_micro(reward_left_micro),
        max_share=share_bound(max_share=rules.max_share, clients=int(invited.sum())),
        labels=field.labels(rules),
        design=rules.design,
        schedule=rules.schedule,
    )


def _wished_reward(rules: RoundRules, question: RewardQuestion, custom_reward: CustomReward | None) -> float:
    """Return the reward of the policy before bounds. The optimal one follows the schedule by itself."""
    number = question.round_number
    if rules.policy == RewardPolicy.OPTIMAL:
        return question.optimal_reward()
    level = _level(rules, question, custom_reward)
    return level if rules.schedule is None else level * rules.schedule.multiple(number)


def _level(rules: RoundRules, question: RewardQuestion, custom_reward: CustomReward | None) -> float:
    """Return the reward of a policy that a schedule multiplies."""
    number = question.round_number
    match rules.policy:
        case RewardPolicy.MAX:
            return rules.reward_range.maximum
        case RewardPolicy.RANDOM:
            return random_reward(reward_range=rules.reward_range, round_number=number, seed=rules.seed)
        case RewardPolicy.FIXED:
            scheduled = rules.reward_schedule
            return scheduled[number - 1] if scheduled is not None else rules.fixed_reward or 0.0
        case RewardPolicy.OWN if custom_reward is None:
            raise ImpossibleArgument("custom_reward", custom_reward, "must be given under policy own")
        case RewardPolicy.OWN if custom_reward is not None:
            return ask_reward(custom_reward, question)
        case _:
            return 0.0


def random_reward(*, reward_range: RewardRange, round_number: int, seed: int) -> float:
    """Draw a reward uniformly from the range. The same seed and round give the same reward.

    Raises `ImpossibleArgument` if the range has no finite maximum.

    >>> round(random_reward(reward_range=RewardRange(minimum=1.0, maximum=5.0), round_number=1, seed=7), 3)
    4.081
    """
    if math.isinf(reward_range.maximum):
        raise ImpossibleArgument("maximum", reward_range.maximum, "must be finite to draw a reward from the range")
    source = np.random.default_rng([arguments.whole("seed", seed), arguments.whole("round_number", round_number)])
    return float(source.uniform(reward_range.minimum, reward_range.maximum))


def _bounded(rules: RoundRules, wished: float) -> tuple[int, RewardBound]:
    """Return the reward in micro-units within the admissible range and the ceiling, and the bound that applied."""
    reward = rules.reward_range.clamp(wished)
    bound = RewardBound.NONE
    if reward != wished:
        bound = RewardBound.RANGE_MINIMUM if reward > wished else RewardBound.RANGE_MAXIMUM
    if reward * MICRO > rules.reward_max_micro:
        return rules.reward_max_micro, RewardBound.CEILING
    return min(to_micro(reward), rules.reward_max_micro), bound


def _plan_without_game(rules: RoundRules, round_number: int, field: _Field) -> RoundPlan:
    """Policy `none`: every client with a cap above 0 trains without a reward."""
    status = PlanStatus.PLANNED if field.invited.any() else PlanStatus.TOO_FEW_CLIENTS
    return _plan(status, rules, round_number, field)


def _plan(
    status: PlanStatus,
    rules: RoundRules,
    round_number: int,
    field: _Field,
    *,
    wished: float = 0.0,
    bound: RewardBound = RewardBound.NONE,
    reward_micro: int = 0,
    total: float = 0.0,
    budgets: Vector | None = None,
    limits: Vector | None = None,
) -> RoundPlan:
    return RoundPlan(
        status=status,
        round_number=round_number,
        reward_micro=reward_micro,
        total=float(total),
        standings=field.standings,
        budgets=tuple(budgets.tolist()) if budgets is not None else (0.0,) * field.caps.size,
        limits=tuple((field.caps if limits is None else limits).tolist()),
        min_updates=min(rules.min_updates, int(field.invited.sum())),
        wished_reward=wished,
        bound=bound,
    )
