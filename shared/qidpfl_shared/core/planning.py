"""One round, from its participants to the reward and total that are announced: `plan_round`.

What a client keeps to itself (fixed costs, a lower limit of its own) cannot be planned for; it shows later as a smaller
budget or a decline.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from . import arguments
from .arguments import ImpossibleArgument, Mask, Vector
from .custom_rules import CustomReward, PastRound, RewardQuestion, ask_reward, read_only
from .equilibrium import MarketStatus, equilibrium
from .money import MICRO, from_micro, to_micro
from .participation import invite
from .reward import RewardPolicy, random_reward
from .round_rules import Participant, RoundRules


class Standing(StrEnum):
    """How a participant stands in a round: invited, or why not."""

    INVITED = "invited"
    MIN_SHARE = "min_share"
    PRICED_OUT = "priced_out"
    NO_BUDGET = "no_budget"
    SET_ASIDE = "set_aside"


class PlanStatus(StrEnum):
    """Whether the round can be held, and if not, why."""

    PLANNED = "planned"
    TOO_FEW_CLIENTS = "too_few_clients"
    NO_REWARD = "no_reward"
    BUDGET_EXHAUSTED = "budget_exhausted"


class RewardBound(StrEnum):
    """Which bound, if any, decided the reward instead of the policy."""

    NONE = "none"
    RANGE_MINIMUM = "range_minimum"
    RANGE_MAXIMUM = "range_maximum"
    CEILING = "ceiling"


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """What is announced, and why: the reward, the equilibrium total, and how everybody stands.

    `budgets` are the equilibrium budgets the total is made of; they are expectations, not announced to anybody.
    `wished_reward` is what the policy alone would pay, and `bound` what changed it.
    """

    status: PlanStatus
    round_number: int
    reward_micro: int
    total: float
    standings: tuple[Standing, ...]
    budgets: tuple[float, ...]
    min_updates: int
    wished_reward: float
    bound: RewardBound

    @property
    def invited(self) -> int:
        """How many are asked to bid."""
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
    """Whom to invite and what to offer.

    In this order: able clients, invitation, reward, its bounds, micro-units, equilibrium with caps. The reward is
    rounded before the total is computed, so that every client can check its best response against exactly what was
    announced. `reward_left_micro` is what the task may still pay: a reward that does not fit ends the task.

    Policy `own` needs `custom_reward`, and asks it with the `past` rounds; may raise `CustomRuleFailed`.
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
    if reward_micro > reward_left_micro:
        return _plan(PlanStatus.BUDGET_EXHAUSTED, rules, round_number, field, wished=wished, bound=bound)
    market = equilibrium(
        reward=reward_micro / MICRO,
        privacy_values=field.values,
        privacy_weight=rules.privacy_weight,
        caps=np.where(field.invited, field.caps, 0.0),
    )
    if market.status is MarketStatus.NO_REWARD:
        return _plan(PlanStatus.NO_REWARD, rules, round_number, field, wished=wished, bound=bound)
    return _plan(
        PlanStatus.PLANNED,
        rules,
        round_number,
        field,
        wished=wished,
        bound=bound,
        reward_micro=reward_micro,
        total=market.total,
        budgets=market.budgets,
    )


@dataclass(frozen=True)
class _Field:
    """The participants as arrays, and how each stands."""

    values: Vector
    sizes: Vector
    scales: Vector
    caps: Vector
    standings: tuple[Standing, ...]

    @property
    def invited(self) -> Mask:
        return np.array([standing is Standing.INVITED for standing in self.standings], dtype=np.bool_)

    @classmethod
    def of(cls, rules: RoundRules, participants: Sequence[Participant]) -> "_Field":
        values = np.array([p.privacy_value for p in participants], dtype=np.float64)
        caps = np.array([rules.cap(p) for p in participants], dtype=np.float64)
        standings = np.array([_standing(p, cap) for p, cap in zip(participants, caps, strict=True)], dtype=object)
        able = np.flatnonzero(standings == Standing.INVITED)
        if rules.policy != RewardPolicy.NONE:
            invitation = invite(privacy_values=values[able], min_share=rules.min_share, min_clients=rules.min_clients)
            standings[able[invitation.priced_out]] = Standing.PRICED_OUT
            standings[able[invitation.below_min_share]] = Standing.MIN_SHARE
        return cls(
            values=values,
            sizes=np.array([p.size for p in participants], dtype=np.float64),
            scales=np.array([rules.mechanism.noise_scale(size=p.size) for p in participants], dtype=np.float64),
            caps=caps,
            standings=tuple(standings.tolist()),
        )


def _standing(participant: Participant, cap: float) -> Standing:
    """How a participant stands before the game is looked at."""
    if participant.set_aside:
        return Standing.SET_ASIDE
    return Standing.INVITED if cap > 0 else Standing.NO_BUDGET


def _question(
    rules: RoundRules, round_number: int, field: _Field, reward_left_micro: int, past: Sequence[PastRound]
) -> RewardQuestion:
    """What a policy may look at: of the participants those who are invited."""
    invited = field.invited
    return RewardQuestion(
        round_number=round_number,
        past=tuple(past),
        privacy_values=read_only(field.values[invited]),
        sizes=read_only(field.sizes[invited]),
        caps=read_only(field.caps[invited]),
        noise_scales=read_only(field.scales[invited]),
        weighting=rules.weighting,
        privacy_weight=rules.privacy_weight,
        cost_model=rules.cost_model,
        reward_range=rules.reward_range,
        reward_left=from_micro(reward_left_micro),
    )


def _wished_reward(rules: RoundRules, question: RewardQuestion, custom_reward: CustomReward | None) -> float:
    """What the policy alone would pay."""
    match rules.policy:
        case RewardPolicy.OPTIMAL:
            return question.optimal_reward()
        case RewardPolicy.MAX:
            return rules.reward_range.maximum
        case RewardPolicy.RANDOM:
            return random_reward(reward_range=rules.reward_range, round_number=question.round_number, seed=rules.seed)
        case RewardPolicy.FIXED:
            scheduled = rules.reward_schedule
            return scheduled[question.round_number - 1] if scheduled is not None else rules.fixed_reward or 0.0
        case RewardPolicy.OWN:
            if custom_reward is None:
                raise ImpossibleArgument("custom_reward", custom_reward, "must be given under policy own")
            return ask_reward(custom_reward, question)
        case RewardPolicy.NONE:
            return 0.0


def _bounded(rules: RoundRules, wished: float) -> tuple[int, RewardBound]:
    """The wished reward within the admissible range and below the ceiling, in micro-units, and what bound it."""
    reward = rules.reward_range.clamp(wished)
    bound = RewardBound.NONE
    if reward != wished:
        bound = RewardBound.RANGE_MINIMUM if reward > wished else RewardBound.RANGE_MAXIMUM
    if reward * MICRO > rules.reward_max_micro:
        return rules.reward_max_micro, RewardBound.CEILING
    return min(to_micro(reward), rules.reward_max_micro), bound


def _plan_without_game(rules: RoundRules, round_number: int, field: _Field) -> RoundPlan:
    """Policy `none`: everybody who is able trains, for nothing."""
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
) -> RoundPlan:
    return RoundPlan(
        status=status,
        round_number=round_number,
        reward_micro=reward_micro,
        total=float(total),
        standings=field.standings,
        budgets=tuple(budgets.tolist()) if budgets is not None else (0.0,) * len(field.standings),
        min_updates=min(rules.min_updates, int(field.invited.sum())),
        wished_reward=wished,
        bound=bound,
    )
