"""Statistics over seeds: means with 95 % intervals, and differences between methods on the same seeds.

All methods with one seed have the same clients, records and initial model. Methods are therefore compared seed by seed,
and differences between seeds cancel out. The intervals are Student's, for the mean of independent seeds. All seeds have
the same test set; where its own error is known, the intervals include it.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Generic, TypeVar

from scipy import stats

from ..results.tables import RoundRow

CONFIDENCE = 0.95
# Values whose relative difference is below this are equal except for rounding.
_ROUNDING = 1e-12

# More seeds than this are not worth a number.
_MOST_SEEDS = 1000

Pair = TypeVar("Pair")


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean of `n` values with its 95 % interval; one value has no interval.

    `missing` counts the values that are left out: those without a partner, and those that are unknown or not finite.
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
    """The mean of all known and finite values, with its interval; None if there are none."""
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


def widened(effect: Estimate, error: float | None) -> Estimate:
    """The estimate with an interval that also includes a normal error that all its values share."""
    if not error or effect.margin is None:
        return effect
    margin = math.hypot(effect.margin, shared_margin(error))
    return replace(effect, low=effect.mean - margin, high=effect.mean + margin)


def shared_margin(error: float) -> float:
    """Half the width of the interval of a normal error with this standard deviation."""
    return float(stats.norm.ppf((1 + CONFIDENCE) / 2)) * error


def seeds_needed(values: Sequence[float], amount: float, *, error: float | None = None) -> float | None:
    """How many seeds make half the width of the interval at most this amount, if they spread as these values do.

    Infinite if the error that all seeds share is too large for any number of them; None for fewer than two values.
    """
    if len(values) < 2 or amount <= 0:
        return None
    left = amount**2 - shared_margin(error or 0.0) ** 2
    if left <= 0:
        return math.inf
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    fitting = (n for n in range(2, _MOST_SEEDS + 1) if _quantile(n) ** 2 * variance / n <= left)
    return next(fitting, math.inf)


@cache
def _quantile(n: int) -> float:
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1))


def _margin(values: Sequence[float], mean: float) -> float:
    """Half the width of Student's interval; 0 if all values are the same."""
    n = len(values)
    if max(values) - min(values) <= _ROUNDING * abs(mean):
        return 0.0
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    return _quantile(n) * math.sqrt(variance / n)


@dataclass(frozen=True, kw_only=True)
class Differences(Generic[Pair]):
    """Differences of paired measurements. `missing` counts the pairs with only one known value."""

    by_pair: Mapping[Pair, float]
    missing: int

    @property
    def values(self) -> tuple[float, ...]:
        """The differences without their pairs."""
        return tuple(self.by_pair.values())

    @property
    def estimate(self) -> Estimate | None:
        """The mean of the differences and its interval."""
        return estimate(self.values, missing=self.missing)


def differences(
    first: Mapping[Pair, float | None], second: Mapping[Pair, float | None], *, percent: bool = False
) -> Differences[Pair]:
    """First minus second for every pair, in the order of `first`; with `percent`, relative to the second.

    Pairs with an unknown or infinite value are left out, and with `percent` also those whose second value is 0.
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
    """The mean over the seeds for every round that has a known value, in the order of the rounds."""
    by_round: dict[int, list[float | None]] = {}
    for row in rows:
        by_round.setdefault(row.round_number, []).append(column(row))
    estimates = ((number, estimate(values)) for number, values in sorted(by_round.items()))
    return tuple((number, found) for number, found in estimates if found is not None)
