"""How often a verdict would differ if the calibration had had other noise: the reward range is itself measured.

Rewards are computed again within the limits of each redraw: Max pays the largest one, Random the same fraction of the
range, and QI-DPFL its own reward between the limits. Accuracies move along the fitted curve with the budgets bought.
"""

import math
from collections.abc import Mapping, Sequence

from ..methods import Reward
from ..results.calibration import RewardLimits, limits_in
from ..results.redraws import redrawn_limits
from ..results.tables import FitRow, RoundRow, Tables
from .claims import Comparison, Metric
from .conditions import method_named
from .statistics import estimate
from .verdicts import Verdict, verdict_on

_LIMITED = (Reward.OPTIMAL, Reward.AS_QI_DPFL, Reward.MAX, Reward.RANDOM, Reward.CUSTOM)
_UNCHANGED = 1e-9


def remark_on_redraws(
    comparison: Comparison, tables: Tables, values: Mapping[int, float], verdict: Verdict
) -> str | None:
    """How many redraws of the calibration would change the verdict; None if it does not depend on the range.

    `tables` are those of one condition, `values` the effect of each seed.
    """
    limits = limits_in(tables)
    if limits is None or comparison.beyond_iid or comparison.rule.because or not _is_limited(comparison):
        return None
    if not math.isfinite(limits.range.maximum):
        return None
    if comparison.metric is Metric.COST:
        return (
            "the costs depend on the calibrated range; how often its redraws would change the verdict is not computed"
        )
    if comparison.metric not in (Metric.REWARD, Metric.ACCURACY):
        return None
    fit = tables.fits[0]
    redraws = redrawn_limits(fit, tables.calibration)
    if not redraws:
        return "the range comes from one run per reward: how often a redraw would change the verdict is unknown"
    found = [_redrawn(comparison, tables, values, limits, redraw, fit) for redraw in redraws]
    if all(abs(one[seed] - value) <= _UNCHANGED for one in found for seed, value in values.items()):
        return None
    changed = sum(_verdict(comparison, one) is not verdict for one in found)
    return f"{changed} of {len(found)} redraws of the calibration would change the verdict"


def _is_limited(comparison: Comparison) -> bool:
    return any(method_named(name).reward in _LIMITED for name in (comparison.first, comparison.second) if name)


def _verdict(comparison: Comparison, values: Mapping[int, float]) -> Verdict:
    effect = estimate(values.values())
    assert effect is not None
    return verdict_on(comparison.rule, tuple(values.values()), effect)


def _redrawn(
    comparison: Comparison,
    tables: Tables,
    values: Mapping[int, float],
    limits: RewardLimits,
    redraw: RewardLimits,
    fit: FitRow,
) -> dict[int, float]:
    """The effect of each seed within the limits of a redraw."""
    found = {}
    for seed, value in values.items():
        pair = [_rounds(tables, name, seed) for name in (comparison.first, comparison.second)]
        moved = [_rewards(rows, limits, redraw) for rows in pair]
        if comparison.metric is Metric.REWARD:
            first, second = (math.fsum(rewards) for rewards in moved)
            found[seed] = 100 * (first - second) / abs(second) if second else value
        else:
            first, second = (_gained(rows, rewards, fit) for rows, rewards in zip(pair, moved, strict=True))
            found[seed] = value + 100 * (first - second)
    return found


def _rounds(tables: Tables, method: str, seed: int) -> list[RoundRow]:
    rows = (row for row in tables.rounds if row.method == method and row.seed == seed)
    return sorted(rows, key=lambda row: row.round_number)


def _rewards(rows: Sequence[RoundRow], limits: RewardLimits, redraw: RewardLimits) -> list[float]:
    """What a method would pay in each round within the limits of a redraw."""
    paid = [row.reward for row in rows]
    if not paid:
        return paid
    low, high = redraw.range.minimum, redraw.range.maximum
    match method_named(rows[0].method).reward:
        case Reward.MAX:
            return [high] * len(paid)
        case Reward.RANDOM:
            width = limits.range.maximum - limits.range.minimum
            return [low + (one - limits.range.minimum) / width * (high - low) if width else one for one in paid]
        case Reward.OPTIMAL | Reward.AS_QI_DPFL | Reward.CUSTOM:
            return [min(max(wanted, low), high) for wanted in _wanted(paid, limits)]
        case _:
            return paid


def _wanted(paid: Sequence[float], limits: RewardLimits) -> list[float]:
    """The rewards without limits. Where a limit was paid, they follow the growth of the other rounds."""
    inside = [place for place, one in enumerate(paid) if not limits.at_minimum(one) and not limits.at_maximum(one)]
    if not inside:
        return [math.inf if limits.at_maximum(one) else 0.0 for one in paid]
    first, last = inside[0], inside[-1]
    growth = (paid[last] / paid[first]) ** (1 / (last - first)) if last > first and paid[first] > 0 else 1.0
    return [one if place in inside else paid[first] * growth ** (place - first) for place, one in enumerate(paid)]


def _gained(rows: Sequence[RoundRow], rewards: Sequence[float], fit: FitRow) -> float:
    """The change of accuracy along the fitted curve if these rewards had been paid: budgets follow rewards."""
    paid = math.fsum(row.reward for row in rows)
    if not paid or fit.drop is None or fit.rate is None:
        return 0.0
    total = math.fsum(row.declared_total for row in rows) / len(rows)
    moved = total * math.fsum(rewards) / paid
    return fit.drop * (math.exp(-fit.rate * total) - math.exp(-fit.rate * moved))
