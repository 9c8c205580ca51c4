"""Calibration: the accuracy that a total budget buys (the paper's Fig. 2), and the rewards that are admissible.

Each run of the sweep pays one reward in all rounds and is evaluated on validation records. Each reward has several runs
with other noise. The curve is fitted to all of them. Their budgets span one to one and a half decades, and the curve is
not used outside of them.
"""

import math
from collections.abc import Sequence

from qidpfl_shared.core.forecast import CurveFit, RangeStatus, fit_accuracy_curve, reward_range
from qidpfl_shared.core.reward import RewardRange

from ..results.calibration import MIN_RUNS, Calibration
from ..results.cells import CellResult, failure_of
from ..results.tables import CalibrationRow, FitRow
from ..settings import Setup


def fit_calibration(
    setup: Setup, *, partition: str, results: Sequence[CellResult], privacy_weight: float
) -> Calibration:
    """Fit the curve to the finished runs of a sweep and derive the admissible rewards.

    `results` are in the order of the rewards, and of the draws for each reward.
    """
    wanted = [(reward, draw) for reward in setup.rewards for draw in range(setup.draws)]
    runs = tuple(_run(reward, draw, result) for (reward, draw), result in zip(wanted, results, strict=True))
    if len({run.reward for run in runs if not run.failure}) < MIN_RUNS:
        return Calibration(partition=partition, runs=runs, fit=None)
    measured = [(run.total, run.accuracy) for run in runs if run.total is not None and run.accuracy is not None]
    totals, accuracies = zip(*measured, strict=True)
    fit = fit_accuracy_curve(totals=totals, accuracies=accuracies)
    if fit.curve is None:
        row = _fit_row(setup, partition, totals, fit, None, None, "no_curve", None)
        return Calibration(partition=partition, runs=runs, fit=row)
    # The curve is only valid inside the sweep, so targets outside of it move to its edge.
    target = max(fit.curve.ceiling - setup.target_gap, fit.curve.accuracy(total=fit.curve.total_min))
    target_max = min(fit.curve.ceiling - setup.target_max_gap, fit.curve.accuracy(total=fit.curve.total_max))
    last = next(result for result, run in zip(reversed(results), reversed(runs), strict=True) if not run.failure)
    invited = [row for row in last.clients if row.updates > 0]
    forecast = reward_range(
        curve=fit.curve,
        target=target,
        target_max=target_max,
        privacy_values=[row.privacy_value for row in invited],
        privacy_weight=privacy_weight,
    )
    row = _fit_row(setup, partition, totals, fit, target, target_max, forecast.status, forecast.reward_range)
    return Calibration(partition=partition, runs=runs, fit=row)


def _run(reward: float, draw: int, result: CellResult) -> CalibrationRow:
    cell, failure = result.cell, failure_of(result)
    return CalibrationRow(
        dataset=cell.dataset,
        partition=cell.partition,
        seed=cell.seed,
        reward=reward,
        selected=cell.selected,
        total=None if failure else math.fsum(row.declared_total for row in result.rounds) / len(result.rounds),
        accuracy=None if failure else cell.accuracy,
        failure=failure,
        draw=draw,
    )


def _fit_row(
    setup: Setup,
    partition: str,
    totals: Sequence[float],
    fit: CurveFit,
    target: float | None,
    target_max: float | None,
    range_status: RangeStatus | str,
    admissible: RewardRange | None,
) -> FitRow:
    curve = fit.curve
    return FitRow(
        dataset=setup.dataset,
        partition=partition,
        status=fit.status.value,
        ceiling=curve.ceiling if curve else None,
        drop=curve.drop if curve else None,
        rate=curve.rate if curve else None,
        total_min=min(totals),
        total_max=max(totals),
        rmse=fit.rmse,
        target=target,
        target_max=target_max,
        range_status=str(range_status),
        reward_min=admissible.minimum if admissible else None,
        reward_max=admissible.maximum if admissible else None,
        target_gap=setup.target_gap,
        target_max_gap=setup.target_max_gap,
    )
