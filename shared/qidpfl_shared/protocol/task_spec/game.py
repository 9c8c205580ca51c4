"""The part of a task's spec that says how the reward is chosen, and in which market it is spent."""

from typing import Annotated

from pydantic import Field

from ...core.markets.design import MarketKind
from ...core.markets.menu import MenuPrior
from ...core.markets.schedules import ScheduleKind
from ...core.reward import RewardPolicy
from ..fields import Choice, Message, Micro, Name, Tuple, is_absent, is_contest


class RewardRangeSpec(Message):
    """The rewards that are admissible in a round."""

    minimum_micro: Micro
    maximum_micro: Micro


class GameSpec(Message):
    """The two-stage game: how the reward is chosen, and the constants of the server's cost."""

    policy: Choice[RewardPolicy] = RewardPolicy.OPTIMAL
    horizon: int = Field(ge=1, le=1_000_000, description="the number of rounds T")
    discount: float = Field(ge=1e-6, le=1, description="π: the weight of a unit of reward one round later")
    privacy_weight: float = Field(ge=1e-9, le=1e9, description="φ1: weight of the privacy cost")
    accuracy_weight: float = Field(default=0.5, ge=0, lt=1, description="γ: weight of accuracy against reward")
    smoothness: float = Field(default=10.0, ge=1e-9, le=1e9, description="β")
    convexity: float = Field(ge=1e-9, le=1e9, description="λ")
    gradient_bound: float = Field(default=1.0, ge=0, le=1e9, description="V: bound of the mean gradient")
    min_share: float = Field(
        default=0.3, ge=0, le=1, description="clients below this part of an equal share are not invited"
    )
    reward_range: RewardRangeSpec | None = None
    fixed_reward_micro: Micro | None = Field(default=None, description="policy fixed: the reward of every round")
    reward_schedule_micro: Tuple[Micro] | None = Field(
        default=None,
        max_length=1_000_000,
        exclude_if=is_absent,
        description="policy fixed, instead of fixed_reward_micro: the reward of each round",
    )
    own_rules: Name | None = Field(
        default=None, exclude_if=is_absent, description="policy own: the operator's rules of this name, FILE of FILE.py"
    )
    seed: int = Field(default=0, ge=0, le=2**32 - 1, description="for policy random")
    market: Choice[MarketKind] | None = Field(
        default=None,
        exclude_if=is_contest,
        description="who sells how much, and for which payment; null: the contest of the paper",
    )
    winners: int | None = Field(
        default=None,
        ge=2,
        le=1_000_000,
        exclude_if=is_absent,
        description="market auction: the number of winners of a round; null: all clients but one, at least min_clients",
    )
    prior: Choice[MenuPrior] | None = Field(
        default=None,
        exclude_if=is_absent,
        description="market menu: `uniform` makes the menu cheapest for privacy values that are uniform within the"
        " bounds; null: without an assumption",
    )
    schedule: Choice[ScheduleKind] | None = Field(
        default=None,
        exclude_if=is_absent,
        description="how rewards change over the rounds: as in the paper (`growth`), not at all (`flat`), or like"
        " schedule_weights (`given`); null: as the policy does by itself",
    )
    schedule_weights: Tuple[Annotated[float, Field(ge=1e-6, le=1e6)]] | None = Field(
        default=None, max_length=1_000_000, exclude_if=is_absent, description="schedule given: a number for each round"
    )
