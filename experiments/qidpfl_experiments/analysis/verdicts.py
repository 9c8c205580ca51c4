"""Verdicts: when a claim counts as shown, as refuted, as true by construction, or as open.

Let the effect be the mean over the seeds of first minus second, with its 95 % interval.

- *Higher* (or *lower*, mirrored) by at least the resolution r: it **holds** if the interval lies above 0 and the effect
  is at least r; it **does not hold** if the whole interval lies below r; anything else is **not decided**.
- *Alike* within a margin m: it **holds** if the whole interval lies inside (-m, m); it **does not hold** if the whole
  interval lies outside; anything else is **not decided**.
- *By construction*: the order follows from how the methods are defined, so that one seed against it refutes it, and
  agreement of all seeds shows only that the program does what it says: **trivially true**.

One seed has no interval, and decides nothing but what holds by construction.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from .statistics import Estimate


class Verdict(StrEnum):
    """What the measurements say about a claim."""

    HOLDS = "holds"
    DOES_NOT_HOLD = "does not hold"
    TRIVIALLY_TRUE = "trivially true"
    NOT_DECIDED = "not decided"


class Order(StrEnum):
    """What is claimed of the first method compared with the second."""

    HIGHER = "higher"
    LOWER = "lower"
    ALIKE = "alike"


@dataclass(frozen=True, kw_only=True)
class ClaimRule:
    """How a claim is judged: `amount` is the resolution of an order, or the margin within which methods are alike.

    `because` says why an order holds by construction; empty: it is a matter of fact.
    """

    order: Order
    amount: float
    because: str = ""

    def __post_init__(self) -> None:
        if not self.amount >= 0:
            raise ValueError(f"a resolution or margin must not be negative, not {self.amount}")
        if self.because and self.order is Order.ALIKE:
            raise ValueError("that methods are alike does not hold by construction")


def judge(rule: ClaimRule, values: Sequence[float], effect: Estimate) -> Verdict:
    """The verdict on the differences of all seeds and their mean."""
    if rule.order is Order.ALIKE:
        return _alike(rule.amount, effect)
    sign = 1 if rule.order is Order.HIGHER else -1
    if rule.because:
        agree = all(sign * value > 0 for value in values)
        return Verdict.TRIVIALLY_TRUE if agree else Verdict.DOES_NOT_HOLD
    return _higher(rule.amount, effect if sign > 0 else effect.mirrored)


def _higher(resolution: float, effect: Estimate) -> Verdict:
    if effect.low is None or effect.high is None:
        return Verdict.NOT_DECIDED
    # Without a resolution an effect of exactly nothing is still no effect.
    if effect.high < resolution or effect.high <= 0:
        return Verdict.DOES_NOT_HOLD
    return Verdict.HOLDS if effect.low > 0 and effect.mean >= resolution else Verdict.NOT_DECIDED


def _alike(margin: float, effect: Estimate) -> Verdict:
    if effect.low is None or effect.high is None:
        return Verdict.NOT_DECIDED
    if -margin < effect.low and effect.high < margin:
        return Verdict.HOLDS
    return Verdict.DOES_NOT_HOLD if effect.low >= margin or effect.high <= -margin else Verdict.NOT_DECIDED


def all_of(verdicts: Iterable[Verdict], *, complete: bool) -> Verdict:
    """The verdict on a claim of several comparisons: one that fails refutes it, and all are needed to show it."""
    found = set(verdicts)
    if Verdict.DOES_NOT_HOLD in found:
        return Verdict.DOES_NOT_HOLD
    if Verdict.NOT_DECIDED in found or not complete or not found:
        return Verdict.NOT_DECIDED
    return Verdict.TRIVIALLY_TRUE if found == {Verdict.TRIVIALLY_TRUE} else Verdict.HOLDS
