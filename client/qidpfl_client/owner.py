"""What the owner of a data set decides: the worth of its privacy, its limits, its prices."""

import math
from dataclasses import dataclass

from qidpfl_shared.core import arguments
from qidpfl_shared.core.utility import fixed_cost

_MEBIBYTE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Prices:
    """What taking part costs besides privacy, in money: the paper's data, computation and communication costs.

    The amounts are measured (records, seconds of training, mebibytes both ways); these are their prices (φ2–φ4).
    """

    per_record: float = 0.0
    per_second: float = 0.0
    per_mebibyte: float = 0.0

    def __post_init__(self) -> None:
        arguments.non_negative("per_record", self.per_record)
        arguments.non_negative("per_second", self.per_second)
        arguments.non_negative("per_mebibyte", self.per_mebibyte)

    def of_round(self, *, size: int, training_s: float, transferred_bytes: int) -> float:
        """The fixed cost of one round."""
        return fixed_cost(
            data=size,
            computation=training_s,
            communication=transferred_bytes / _MEBIBYTE,
            data_weight=self.per_record,
            computation_weight=self.per_second,
            communication_weight=self.per_mebibyte,
        )


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The owner's side of the bargain.

    `privacy_value` (ν) is what a unit of budget is worth. None as a limit takes the task's suggestion. Releases that
    guarantee less than they declare, or nothing, happen only with `accept_unproven`, which switches the lifetime limit
    off where they do.
    """

    privacy_value: float = 1.0
    rho_cap: float | None = None
    lifetime_rho: float | None = None
    histogram_rho: float | None = None
    exact_histogram: bool = False
    min_utility: float = 0.0
    accept_unproven: bool = False
    prices: Prices = Prices()

    def __post_init__(self) -> None:
        arguments.positive("privacy_value", self.privacy_value)
        for name in ("rho_cap", "lifetime_rho", "histogram_rho"):
            if (limit := getattr(self, name)) is not None:
                arguments.positive(name, limit)
        arguments.real("min_utility", self.min_utility)

    def lifetime_limit(self, suggested: float | None) -> float:
        """The lifetime budget: the owner's, else the task's suggestion, else none."""
        if self.lifetime_rho is not None:
            return self.lifetime_rho
        return math.inf if suggested is None else suggested
