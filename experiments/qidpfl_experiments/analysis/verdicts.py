"""Verdicts: the rules by which a claim holds, does not hold, is trivially true, or is not decided.

The effect is the mean over the seeds of first minus second, with its 95 % interval.

- *Higher* (*lower*: with the opposite sign) by at least the resolution r: the claim **holds** if the interval is above
  0 and the effect is at least r. It **does not hold** if the whole interval is below r. Else it is **not decided**.
- *Alike* within a margin m: the claim **holds** if the whole interval is inside (-m, m). It **does not hold** if the
  whole interval is outside. Otherwise it is **not decided**.
- *Not higher* than an amount a: the claim **holds** if the whole interval is at most a. It **does not hold** if the
  whole interval is above a. Otherwise it is **not decided**.
- *In each seed*: the order must hold in every single seed, of at least five. One seed that disagrees refutes it.
- *By construction*: the order follows from the definitions of the methods. One seed that disagrees refutes the claim.
  If all seeds agree, it is **trivially true**: this only shows that the program implements the definitions.

One seed has no interval. It decides only claims that hold by construction.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from .statistics import Estimate

# "In each seed" means nothing with fewer.
SEEDS_FOR_EACH = 5


class Verdict(StrEnum):
    """The result of the measurements for a claim."""

    HOLDS = "holds"
    DOES_NOT_HOLD = "does not hold"
    TRIVIALLY_TRUE = "trivially true"
    NOT_DECIDED = "not decided"


class Order(StrEnum):
    """The claimed relation of the first method to the second."""

    HIGHER = "higher"
    LOWER = "lower"
    ALIKE = "alike"
    NOT_HIGHER = "not higher"


@dataclass(frozen=True, kw_only=True)
class ClaimRule:
    """How a claim is decided. `amount` is the resolution of an order, or the margin within which methods are alike.

    `because` says why an order holds by construction; empty if it has to be measured. With `each_seed` every seed must
    agree, by any amount.
    """

    order: Order
    amount: float
    because: str = ""
    each_seed: bool = False

    def __post_init__(self) -> None:
        if not self.amount >= 0:
            raise ValueError(f"a resolution or margin must not be negative: {self.amount}")
        if self.because and self.order in (Order.ALIKE, Order.NOT_HIGHER):
            raise ValueError("methods cannot be alike by construction")


def verdict_on(rule: ClaimRule, values: Sequence[float], effect: Estimate) -> Verdict:
    """The verdict from the differences of all seeds and their mean."""
    if rule.order is Order.ALIKE:
        return _alike(rule.amount, effect)
    if rule.order is Order.NOT_HIGHER:
        return _none_higher(rule.amount, values) if rule.each_seed else _not_higher(rule.amount, effect)
    sign = 1 if rule.order is Order.HIGHER else -1
    if rule.because:
        agree = all(sign * value > 0 for value in values)
        return Verdict.TRIVIALLY_TRUE if agree else Verdict.DOES_NOT_HOLD
    if rule.each_seed:
        if any(sign * value <= 0 for value in values):
            return Verdict.DOES_NOT_HOLD
        return Verdict.HOLDS if len(values) >= SEEDS_FOR_EACH else Verdict.NOT_DECIDED
    return _higher(rule.amount, effect if sign > 0 else effect.mirrored)


def _higher(resolution: float, effect: Estimate) -> Verdict:
    if effect.low is None or effect.high is None:
        return Verdict.NOT_DECIDED
    # With a resolution of 0, an effect of exactly 0 does not hold either.
    if effect.high < resolution or effect.high <= 0:
        return Verdict.DOES_NOT_HOLD
    return Verdict.HOLDS if effect.low > 0 and effect.mean >= resolution else Verdict.NOT_DECIDED


def _not_higher(amount: float, effect: Estimate) -> Verdict:
    if effect.low is None or effect.high is None:
        return Verdict.NOT_DECIDED
    if effect.high <= amount:
        return Verdict.HOLDS
    return Verdict.DOES_NOT_HOLD if effect.low > amount else Verdict.NOT_DECIDED


def _none_higher(amount: float, values: Sequence[float]) -> Verdict:
    if any(value > amount for value in values):
        return Verdict.DOES_NOT_HOLD
    return Verdict.HOLDS if len(values) >= SEEDS_FOR_EACH else Verdict.NOT_DECIDED


def _alike(margin: float, effect: Estimate) -> Verdict:
    if effect.low is None or effect.high is None:
        return Verdict.NOT_DECIDED
    if -margin < effect.low and effect.high < margin:
        return Verdict.HOLDS
    return Verdict.DOES_NOT_HOLD if effect.low >= margin or effect.high <= -margin else Verdict.NOT_DECIDED


def all_of(verdicts: Iterable[Verdict], *, complete: bool) -> Verdict:
    """The verdict on a claim with several comparisons. It holds if all of them hold, and one that fails refutes it."""
    found = set(verdicts)
    if Verdict.DOES_NOT_HOLD in found:
        return Verdict.DOES_NOT_HOLD
    if Verdict.NOT_DECIDED in found or not complete or not found:
        return Verdict.NOT_DECIDED
    return Verdict.TRIVIALLY_TRUE if found == {Verdict.TRIVIALLY_TRUE} else Verdict.HOLDS
