"""How rewards change from round to round: the paper's growth, the same in all rounds, or a given shape."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from .. import arguments
from ..arguments import ImpossibleArgument, Vector


class ScheduleKind(StrEnum):
    """The shape of the rewards over the rounds. `growth` is the paper's: a factor π^(-1/2) per round."""

    GROWTH = "growth"
    FLAT = "flat"
    GIVEN = "given"


@dataclass(frozen=True, kw_only=True)
class RewardSchedule:
    """Numbers g_1, …, g_T above 0 to which the rewards of the rounds are proportional.

    `weights` are these numbers under kind `given`, and None otherwise.

    >>> flat = RewardSchedule(kind=ScheduleKind.FLAT, horizon=3, discount=0.25)
    >>> [round(flat.discount_at(number), 4) for number in (1, 2, 3)]
    [0.4375, 0.4375, 0.4375]
    >>> growth = RewardSchedule(kind=ScheduleKind.GROWTH, horizon=3, discount=0.25)
    >>> [round(growth.multiple(number), 4) for number in (1, 2, 3)]
    [0.4286, 0.8571, 1.7143]
    """

    kind: ScheduleKind
    horizon: int
    discount: float
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        arguments.choice("kind", self.kind, ScheduleKind)
        arguments.whole("horizon", self.horizon, minimum=1)
        arguments.discount_factor("discount", self.discount)
        if (self.weights is None) is (self.kind == ScheduleKind.GIVEN):
            raise ImpossibleArgument("weights", self.weights, "must be given under kind given, and only there")
        if self.weights is not None:
            arguments.positive_vector("weights", self.weights, length=self.horizon)

    def multiple(self, round_number: int) -> float:
        """The reward of a round as a multiple of the mean reward of all rounds."""
        return float(self._shape[self._place(round_number)] / self._shape.mean())

    def discount_at(self, round_number: int) -> float:
        """What takes the place of the discount π^(t-1) in the price of a unit of reward.

        The rounds cost Σ A/R_t + (1-γ)·π^(t-1)·R_t. Of all rewards of this shape those with the least cost are
        R_t = √(A/((1-γ)·x_t)), where x_t is this number. For the paper's growth it is the discount itself.
        """
        own = float(self._shape[self._place(round_number)])
        return self._discounts_per_noise / own**2

    @cached_property
    def _shape(self) -> Vector:
        # Relative to the first round, so that no unit of the given numbers matters.
        if self.weights is not None:
            return _relative(self.weights)
        if self.kind == ScheduleKind.FLAT:
            return np.ones(self.horizon)
        shape: Vector = self.discount ** (-np.arange(self.horizon) / 2)
        return shape

    @cached_property
    def _discounts_per_noise(self) -> float:
        discounts = self.discount ** np.arange(self.horizon)
        return float(np.sum(discounts * self._shape) / np.sum(1 / self._shape))

    def _place(self, round_number: int) -> int:
        if arguments.whole("round_number", round_number, minimum=1) > self.horizon:
            raise ImpossibleArgument("round_number", round_number, f"must not exceed the horizon {self.horizon}")
        return round_number - 1


def _relative(weights: Sequence[float]) -> Vector:
    shape: Vector = np.array(weights, dtype=np.float64) / weights[0]
    return shape
