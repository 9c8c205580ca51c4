"""The input of the plan of a round: the rules of the task, and what the server knows of each participant."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from . import arguments
from .arguments import ImpossibleArgument, Vector
from .markets.auction import Auction
from .markets.contest import Contest
from .markets.design import MarketDesign, MarketKind
from .markets.menu import Menu, MenuPrior
from .markets.schedules import RewardSchedule
from .privacy.mechanisms import Mechanism
from .reward import ANY_REWARD, CostModel, RewardPolicy, RewardRange, Weighting


@dataclass(frozen=True, kw_only=True)
class Participant:
    """What the server knows of a selected client: its profile, and what is left of its lifetime budget.

    `remaining_rho` comes from its `PrivacyAccount`. It is infinite if there is no limit, or if the limit was switched
    off. `label_gap` is its label shares minus the reference, for weights that balance labels; None: not known, or not
    used. Raises `ImpossibleArgument` for a value outside its range.
    """

    privacy_value: float
    size: int
    rho_cap: float = math.inf
    remaining_rho: float = math.inf
    set_aside: bool = False
    label_gap: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        arguments.positive("privacy_value", self.privacy_value)
        arguments.whole("size", self.size, minimum=1)
        arguments.limit("rho_cap", self.rho_cap)
        arguments.limit("remaining_rho", self.remaining_rho)
        arguments.truth("set_aside", self.set_aside)
        if self.label_gap is not None:
            arguments.vector("label_gap", self.label_gap)


@dataclass(frozen=True, kw_only=True)
class RoundRules:
    """The rules of a task that planning uses. Raises `ImpossibleArgument` for values that contradict each other.

    Three numbers bound what a single client can do, and are None in tasks without a defence: the multiple of an equal
    share of the reward that it gets at most, the multiple of its planned budget that it may declare, and the multiple
    of the median size that its own size counts at most.

    `value_min` and `value_max` are the privacy values that the task accepts. `winners` is the number of winners of an
    auction, and `prior` what a menu assumes of the values. A `schedule` replaces the paper's growth of the rewards.
    """

    policy: RewardPolicy
    mechanism: Mechanism
    weighting: Weighting
    cost_model: CostModel
    privacy_weight: float
    min_share: float
    min_clients: int
    min_updates: int
    rho_max: float
    rho_min: float = 0.0
    reward_range: RewardRange = ANY_REWARD
    fixed_reward: float | None = None
    reward_schedule: tuple[float, ...] | None = None
    seed: int = 0
    reward_max_micro: int
    max_share: float | None = None
    max_bid: float | None = None
    max_size_ratio: float | None = None
    market: MarketKind = MarketKind.CONTEST
    value_min: float = 1e-9
    value_max: float = 1e9
    winners: int | None = None
    prior: MenuPrior | None = None
    schedule: RewardSchedule | None = None

    def __post_init__(self) -> None:
        arguments.choice("policy", self.policy, RewardPolicy)
        arguments.choice("weighting", self.weighting, Weighting)
        arguments.magnitude("privacy_weight", self.privacy_weight)
        arguments.fraction("min_share", self.min_share)
        arguments.whole("min_clients", self.min_clients, minimum=2)
        arguments.whole("min_updates", self.min_updates, minimum=1)
        arguments.limit("rho_max", self.rho_max)
        if arguments.non_negative("rho_min", self.rho_min) > self.rho_max:
            raise ImpossibleArgument("rho_min", self.rho_min, f"must not exceed rho_max = {self.rho_max}")
        arguments.whole("seed", self.seed)
        arguments.whole("reward_max_micro", self.reward_max_micro)
        for name in ("max_share", "max_bid", "max_size_ratio"):
            if (bound := getattr(self, name)) is not None:
                arguments.at_least_one(name, bound)
        if self.policy in (RewardPolicy.MAX, RewardPolicy.RANDOM) and math.isinf(self.reward_range.maximum):
            requirement = f"must have a finite maximum under policy {self.policy}"
            raise ImpossibleArgument("reward_range", self.reward_range, requirement)
        given = [rewards for rewards in (self.fixed_reward, self.reward_schedule) if rewards is not None]
        if len(given) != (self.policy == RewardPolicy.FIXED):
            requirement = "(or reward_schedule, not both) must be given under policy fixed, and only there"
            raise ImpossibleArgument("fixed_reward", self.fixed_reward, requirement)
        if self.fixed_reward is not None:
            arguments.non_negative("fixed_reward", self.fixed_reward)
        if self.reward_schedule is not None:
            horizon = self.cost_model.horizon
            arguments.non_negative_vector("reward_schedule", self.reward_schedule, length=horizon)
        self._check_market()

    def _check_market(self) -> None:
        arguments.choice("market", self.market, MarketKind)
        if arguments.positive("value_min", self.value_min) > arguments.positive("value_max", self.value_max):
            raise ImpossibleArgument("value_min", self.value_min, f"must not exceed value_max = {self.value_max}")
        if self.winners is not None:
            arguments.whole("winners", self.winners, minimum=2)
        if self.prior is not None:
            arguments.choice("prior", self.prior, MenuPrior)
        if self.schedule is not None and self.schedule.horizon != self.cost_model.horizon:
            raise ImpossibleArgument("schedule", self.schedule, "must have the rounds of the cost model")
        if self.schedule is not None and self.reward_schedule is not None:
            raise ImpossibleArgument("schedule", self.schedule, "and reward_schedule exclude each other")

    @cached_property
    def design(self) -> MarketDesign:
        """The rules of the market."""
        match self.market:
            case MarketKind.CONTEST:
                return Contest(
                    privacy_weight=self.privacy_weight,
                    min_share=self.min_share,
                    min_clients=self.min_clients,
                    max_share=self.max_share,
                    max_bid=self.max_bid,
                )
            case MarketKind.AUCTION:
                return Auction(
                    privacy_weight=self.privacy_weight,
                    largest_value=self.value_max,
                    smallest_rho=self.rho_min,
                    largest_rho=self.rho_max,
                    min_clients=self.min_clients,
                    winners=self.winners,
                )
            case MarketKind.MENU:
                return Menu(
                    privacy_weight=self.privacy_weight,
                    smallest_value=self.value_min,
                    largest_value=self.value_max,
                    smallest_rho=self.rho_min,
                    largest_rho=self.rho_max,
                    max_share=self.max_share,
                    prior=self.prior,
                )

    def caps(self, participants: Sequence[Participant]) -> Vector:
        """Return `cap` of each participant."""
        declared = np.array([one.rho_cap for one in participants], dtype=np.float64)
        left = np.array([one.remaining_rho for one in participants], dtype=np.float64)
        limits = np.minimum(np.minimum(declared, left), self.rho_max)
        allowed: Vector = np.where(limits >= self.rho_min, limits, 0.0)
        return allowed

    def cap(self, participant: Participant) -> float:
        """Return the largest budget that a participant can declare: its smallest limit; 0 if below rho_min."""
        limit = min(self.rho_max, participant.rho_cap, participant.remaining_rho)
        return limit if limit >= self.rho_min else 0.0
