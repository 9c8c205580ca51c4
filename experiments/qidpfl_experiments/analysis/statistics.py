"""Statistics over seeds: means with their 95 % intervals, and differences between methods on the same seeds.

Every method of one seed has the same clients, records and start, so that methods are compared seed by seed: what the
seeds differ in cancels out. The intervals are Student's, for the mean of independent seeds.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from scipy import stats

from ..results.tables import RoundRow

CONFIDENCE = 0.95
# Values this near to each other, relative to their size, are one value that was rounded differently.
_ROUNDING = 1e-12

Pair = TypeVar("Pair")


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over `n` values with its 95 % interval; one value has no interval.

    `missing` counts what is left out: values without a partner, unknown ones, and ones that are not finite.
    """

    mean: float
    low: float | None
    high: float | None
    n: int
    missing: int = 0

    @property
    def margin(self) -> float | None:
        """Half the width of the interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def mirrored(self) -> "Estimate":
        """The estimate of the same quantity with the opposite sign."""
        low = None if self.high is None else -self.high
        high = None if self.low is None else -self.low
        return replace(self, mean=-self.mean, low=low, high=high)


def estimate(values: Iterable[float | None], *, missing: int = 0) -> Estimate | None:
    """The mean of the values that are known and finite, with its interval; None if there are none."""
    given = list(values)
    known = [value for value in given if value is not None and math.isfinite(value)]
    if not known:
        return None
    missing += len(given) - len(known)
    mean = math.fsum(known) / len(known)
    if len(known) == 1:
        return Estimate(mean=mean, low=None, high=None, n=1, missing=missing)
    margin = _margin(known, mean)
    return Estimate(mean=mean, low=mean - margin, high=mean + margin, n=len(known), missing=missing)


def _margin(values: Sequence[float], mean: float) -> float:
    """Half the width of Student's interval; 0 if all values are the same."""
    n = len(values)
    if max(values) - min(values) <= _ROUNDING * abs(mean):
        return 0.0
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * math.sqrt(variance / n)


@dataclass(frozen=True, kw_only=True)
class Differences(Generic[Pair]):
    """Differences of two measurements of the same pairs; `missing` counts pairs of which only one is known."""

    by_pair: Mapping[Pair, float]
    missing: int

    @property
    def values(self) -> tuple[float, ...]:
        """The differences alone."""
        return tuple(self.by_pair.values())

    @property
    def estimate(self) -> Estimate | None:
        """Their mean and its interval."""
        return estimate(self.values, missing=self.missing)


def differences(
    first: Mapping[Pair, float | None], second: Mapping[Pair, float | None], *, percent: bool = False
) -> Differences[Pair]:
    """First minus second for every pair, in the order of `first`; or that in percent of the size of the second.

    A value that is unknown or not finite has no partner, and nothing is a percentage of nothing.
    """
    known, partners = _finite(first), _finite(second)
    by_pair = {
        pair: 100 * (value - partners[pair]) / abs(partners[pair]) if percent else value - partners[pair]
        for pair, value in known.items()
        if pair in partners and (partners[pair] or not percent)
    }
    return Differences(by_pair=by_pair, missing=len(first.keys() | second.keys()) - len(by_pair))


def _finite(values: Mapping[Pair, float | None]) -> dict[Pair, float]:
    return {pair: value for pair, value in values.items() if value is not None and math.isfinite(value)}


def per_round(rows: Iterable[RoundRow], column: Callable[[RoundRow], float | None]) -> tuple[tuple[int, Estimate], ...]:
    """The mean over the seeds in every round that has a known value, in the order of the rounds."""
    by_round: dict[int, list[float | None]] = {}
    for row in rows:
        by_round.setdefault(row.round_number, []).append(column(row))
    estimates = ((number, estimate(values)) for number, values in sorted(by_round.items()))
    return tuple((number, found) for number, found in estimates if found is not None)
