"""Redraws of a calibration: the reward limits that other noise in its runs would have given.

Each redraw takes, for every reward, as many of its runs as there are, with repetitions (a bootstrap), fits the curve
again and derives the limits again. The draws come from a fixed seed, so that a report can be repeated.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from qidpfl_shared.core.forecast import AccuracyCurve, fit_accuracy_curve
from qidpfl_shared.core.reward import RewardRange

from .calibration import RewardLimits
from .tables import CalibrationRow, FitRow

REDRAWS = 100
_SEED = 18


@lru_cache(maxsize=64)
def redrawn_limits(fit: FitRow, runs: tuple[CalibrationRow, ...]) -> tuple[RewardLimits, ...]:
    """The reward limits of each redraw; empty if a reward has one run only, so that there is nothing to redraw."""
    by_reward: dict[float, list[CalibrationRow]] = {}
    for run in runs:
        if run.accuracy is not None and run.total is not None:
            by_reward.setdefault(run.reward, []).append(run)
    if not by_reward or min(map(len, by_reward.values())) < 2:
        return ()
    dice = np.random.default_rng(_SEED)
    redraws = (
        [among[place] for among in by_reward.values() for place in dice.integers(len(among), size=len(among))]
        for _ in range(REDRAWS)
    )
    return tuple(_limits(fit, redraw) for redraw in redraws)


def _limits(fit: FitRow, runs: Sequence[CalibrationRow]) -> RewardLimits:
    totals = [run.total or 0.0 for run in runs]
    curve = fit_accuracy_curve(totals=totals, accuracies=[run.accuracy or 0.0 for run in runs]).curve
    rewards = [run.reward for run in runs]
    swept = RewardLimits(range=RewardRange(minimum=min(rewards), maximum=max(rewards)), is_admissible=False)
    if curve is None:
        return swept
    gap, smaller_gap = _gaps(fit)
    # As in the calibration itself: a target outside of the sweep is moved to its edge.
    needed = _needed(curve, max(curve.ceiling - gap, curve.accuracy(total=curve.total_min)))
    needed_max = _needed(curve, min(curve.ceiling - smaller_gap, curve.accuracy(total=curve.total_max)))
    if needed > needed_max:
        return swept
    # The total budget of the same clients is proportional to the reward, as long as no cap binds.
    order = np.argsort(totals)
    minimum, maximum = np.interp([needed, needed_max], np.array(totals)[order], np.array(rewards)[order])
    return RewardLimits(range=RewardRange(minimum=float(minimum), maximum=float(maximum)), is_admissible=True)


def _needed(curve: AccuracyCurve, accuracy: float) -> float:
    return min(max(curve.needed_total(accuracy=accuracy), curve.total_min), curve.total_max)


def _gaps(fit: FitRow) -> tuple[float, float]:
    """How far below the ceiling the targets are. Tables of earlier versions only have the targets."""
    if fit.target_gap is not None and fit.target_max_gap is not None:
        return fit.target_gap, fit.target_max_gap
    ceiling = fit.ceiling or 0.0
    return ceiling - (fit.target or 0.0), ceiling - (fit.target_max or 0.0)
