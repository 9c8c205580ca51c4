"""The decisions of a data owner: the value of its privacy, its limits, its prices."""

import math
import random
import re
from dataclasses import dataclass

from qidpfl_shared.core import arguments
from qidpfl_shared.core.privacy.conversion import epsilon_from_rho
from qidpfl_shared.core.utility import fixed_cost

from .errors import Misconfigured

# The client's own ceilings. They protect an owner who sets no option: a lifetime of 0.2 is about epsilon 2.8 at DELTA.
# A task can only lower them. Each has an option of the client that raises it.
LIFETIME_RHO = 0.2
RHO_CAP = 0.05
HISTOGRAM_RHO = 0.02
# The ceilings of an owner whose records are public anyway. They are those of the largest preset: the task lowers them.
PUBLIC_LIFETIME_RHO = 15.0
PUBLIC_RHO_CAP = 2.0
PUBLIC_HISTOGRAM_RHO = 0.1
# The delta at which the client states epsilon before it has read a task.
DELTA = 1e-5
# Above this epsilon, e to its power says nothing in words.
_LARGEST_EPSILON_IN_WORDS = 10.0
_MEBIBYTE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Prices:
    """The prices of data, computation and communication (φ2–φ4 in the paper), in money.

    The amounts are records, mebibytes sent and received, and the seconds of a release slot: not the measured seconds,
    which depend on the records.
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

    `privacy_value` (ν) is the worth of one unit of budget. The limits are ceilings: a task may only lower them.
    `lifetime_rho` of None means the limit of the journal, which is `LIFETIME_RHO` for a new one. With
    `accept_unproven` the client also makes releases that guarantee less than they declare, or nothing; the first such
    release turns the lifetime limit off.
    """

    privacy_value: float = 1.0
    rho_cap: float = RHO_CAP
    lifetime_rho: float | None = None
    histogram_rho: float = HISTOGRAM_RHO
    exact_histogram: bool = False
    no_histogram: bool = False
    min_utility: float = 0.0
    accept_unproven: bool = False
    prices: Prices = Prices()

    def __post_init__(self) -> None:
        arguments.positive("privacy_value", self.privacy_value)
        arguments.positive("rho_cap", self.rho_cap)
        arguments.positive("histogram_rho", self.histogram_rho)
        if self.lifetime_rho is not None:
            arguments.positive("lifetime_rho", self.lifetime_rho)
        arguments.real("min_utility", self.min_utility)
        if self.no_histogram and self.exact_histogram:
            raise Misconfigured("--no-histogram and --exact-histogram contradict each other")


def lowered(own: float, suggested: float | None) -> float:
    """The limit that holds in a task: the owner's, or the task's suggestion if that is lower.

    >>> lowered(0.2, 1e6), lowered(0.2, 0.1), lowered(0.2, None)
    (0.2, 0.1, 0.2)
    """
    return own if suggested is None else min(own, suggested)


def limits_in_words(owner: Owner, lifetime_rho: float) -> str:
    """The limits of a run in one line, with epsilon, before anything leaves the machine."""
    amounts = f"at most rho {owner.rho_cap:g} per round, rho {owner.histogram_rho:g} for the label histogram"
    line = f"limits: {amounts}, rho {lifetime_rho:g} over the lifetime of these records; {in_words(lifetime_rho)}"
    if owner.rho_cap > RHO_CAP or owner.histogram_rho > HISTOGRAM_RHO or lifetime_rho > LIFETIME_RHO:
        line += f". This is more than the defaults (rho {RHO_CAP:g}, {HISTOGRAM_RHO:g}, {LIFETIME_RHO:g})"
    if owner.accept_unproven:
        line += ". The owner accepts releases that guarantee less or nothing; after the first one no limit holds"
    return line


def in_words(rho: float, *, delta: float = DELTA) -> str:
    """What a total budget means for one record.

    >>> in_words(0.05)
    'epsilon 1.3 at delta 1e-05: all releases together change the odds of any guess about one record at most 4-fold'
    """
    epsilon = epsilon_from_rho(rho=rho, delta=delta)
    if math.isinf(epsilon):
        return "that is no limit, and no guarantee for any record"
    if epsilon > _LARGEST_EPSILON_IN_WORDS:
        return (
            f"epsilon {epsilon:.3g} at delta {delta:g}: this hardly protects a record, so use it for public data only"
        )
    factor = math.ceil(math.exp(epsilon))
    return (
        f"epsilon {epsilon:.2g} at delta {delta:g}: all releases together change the odds of any guess about one "
        f"record at most {factor}-fold"
    )


def draw_privacy_value(text: str, source: random.Random) -> float:
    """A privacy value from an option: a number, or `LOW:HIGH` to draw one between them.

    Raises `Misconfigured` for any other text.
    """
    if re.match(r"\s*-", text):
        raise Misconfigured(f"--privacy-value {text}: what privacy is worth to its owner must be greater than 0")
    number = r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
    match = re.fullmatch(rf"({number})(?::({number}))?", text)
    if match is None:
        raise Misconfigured(f"--privacy-value {text!r} is neither a number nor LOW:HIGH")
    low, high = float(match[1]), float(match[2] or match[1])
    return source.uniform(low, high)
