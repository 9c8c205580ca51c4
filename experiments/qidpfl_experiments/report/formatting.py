"""Formats numbers and comparisons for texts: few digits, and a dash for an unknown value."""

import math
from collections.abc import Sequence

from ..analysis.claims import Comparison, Metric
from ..analysis.conditions import method_named
from ..analysis.evaluate import Finding
from ..analysis.statistics import Estimate
from ..analysis.verdicts import ClaimRule, Order

UNKNOWN = "–"
# Smaller numbers are written with a power of ten.
_SMALL = 1e-3


def number(value: float | None, *, digits: int | None = None) -> str:
    """A number with this many decimals; by default with three significant digits, and from 100 on as an integer."""
    if value is None or math.isnan(value):
        return UNKNOWN
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if digits is None and value and abs(value) < _SMALL:
        text = f"{value:.2e}"
    else:
        text = f"{value:,.{_decimals(value) if digits is None else digits}f}"
    return text.replace("-", "−")


def _decimals(value: float) -> int:
    return 0 if abs(value) >= 100 or not value else max(0, 2 - math.floor(math.log10(abs(value))))


def range_of(counts: Sequence[int]) -> str:
    """The number if all are equal, otherwise the smallest and the largest."""
    smallest, largest = min(counts), max(counts)
    return str(smallest) if smallest == largest else f"{smallest} to {largest}"


def mean(found: Estimate | None, *, digits: int | None = None, factor: float = 1.0, unit: str = "") -> str:
    """A mean ± half the width of its interval, with as many decimals as the width justifies."""
    if found is None:
        return UNKNOWN
    value, margin = factor * found.mean, None if found.margin is None else factor * found.margin
    if digits is None and margin and abs(value) >= _SMALL:
        digits = min(_decimals(value) + 2, max(_decimals(value), -math.floor(math.log10(margin))))
    text = number(value, digits=digits)
    # A reward of 0 is exact and needs no interval.
    if margin is not None and (value or margin):
        text = f"{text} ± {number(margin, digits=digits)}"
    return f"{text} {unit}" if unit else text


def signed(value: float | None, *, digits: int = 2) -> str:
    """A difference with its sign."""
    if value is None:
        return UNKNOWN
    text = number(value, digits=digits)
    return f"+{text}" if value > 0 and not text.startswith("−") else text


def interval(found: Estimate, *, digits: int = 2) -> str:
    """The interval of a difference."""
    if found.low is None or found.high is None:
        return UNKNOWN
    return f"{signed(found.low, digits=digits)} … {signed(found.high, digits=digits)}"


def comparison(made: Comparison) -> str:
    """The two methods and the metric of a comparison."""
    first = method_named(made.first).title
    if made.metric is Metric.GROWTH:
        return f"reward of {first}: last round compared with the first"
    if not made.second:
        return f"{made.metric}: {first}"
    text = f"{made.metric}: {first} − {method_named(made.second).title}"
    return f"{text}, minus the same difference for IID data" if made.beyond_iid else text


def needed(rule: ClaimRule, metric: Metric) -> str:
    """The effect that the claim needs."""
    if rule.because:
        return "more than 0 in every seed" if rule.order is Order.HIGHER else "less than 0 in every seed"
    amount = f"{rule.amount:g} {metric.unit}"
    if rule.order is Order.NOT_HIGHER:
        return f"at most +{amount}" + (" in every seed" if rule.each_seed else "")
    if rule.each_seed:
        return "above 0 in every seed" if rule.order is Order.HIGHER else "below 0 in every seed"
    if rule.order is Order.ALIKE:
        return f"within ± {amount}"
    return f"at least +{amount}" if rule.order is Order.HIGHER else f"at most −{amount}"


def seeds(found: Finding) -> str:
    """The number of seeds that the resolution of a comparison needs."""
    return UNKNOWN if found.seeds_needed is None else number(found.seeds_needed, digits=0)


def effect(found: Finding) -> str:
    """The measured effect with its interval."""
    unit = found.comparison.metric.unit
    text = f"{signed(found.effect.mean)} {unit}"
    return text if found.effect.low is None else f"{text} ({interval(found.effect)})"
