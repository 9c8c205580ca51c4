"""The decisions of a data owner: the value of its privacy, its limits, its prices."""

import math
import random
import re
from dataclasses import dataclass

from qidpfl_shared.core import arguments
from qidpfl_shared.core.utility import fixed_cost

from .errors import Misconfigured

_MEBIBYTE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Prices:
    """The prices of data, computation and communication (φ2–φ4 in the paper), in money.

    The client measures the amounts: records, seconds of training, mebibytes sent and received.
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
    """The owner's privacy value, limits and prices.

    `privacy_value` (ν) is the worth of one unit of budget. A limit of None means the task's suggestion. With
    `accept_unproven` the client also makes releases that guarantee less than they declare, or nothing; the first such
    release turns the lifetime limit off.
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
        limits = {"rho_cap": self.rho_cap, "lifetime_rho": self.lifetime_rho, "histogram_rho": self.histogram_rho}
        for name, limit in limits.items():
            if limit is not None:
                arguments.positive(name, limit)
        arguments.real("min_utility", self.min_utility)

    def lifetime_limit(self, suggested: float | None) -> float:
        """The lifetime budget: the owner's, else the suggestion of the task, else unlimited."""
        if self.lifetime_rho is not None:
            return self.lifetime_rho
        return math.inf if suggested is None else suggested


def draw_privacy_value(text: str, source: random.Random) -> float:
    """A privacy value from an option: a number, or `LOW:HIGH` to draw one between them.

    Raises `Misconfigured` for any other text.
    """
    number = r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
    match = re.fullmatch(rf"({number})(?::({number}))?", text)
    if match is None:
        raise Misconfigured(f"--privacy-value {text!r} is neither a number nor LOW:HIGH")
    low, high = float(match[1]), float(match[2] or match[1])
    return source.uniform(low, high)
