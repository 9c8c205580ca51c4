"""Calibration: what accuracy a total budget buys (the paper's Fig. 2), and the rewards that are therefore admissible.

QI-DPFL is run with the same reward in every round, for each of several rewards, and judged on validation records. The
curve is fitted to the budgets of one to one and a half decades, and nothing is read from it outside of them.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qidpfl_shared.core.forecast import CurveFit, RangeStatus, fit_accuracy_curve, reward_range
from qidpfl_shared.core.reward import RewardRange

from ..results.tables import CalibrationRow, FitRow
from ..settings import Setup
from .cell import CellResult, failure_of
from .grid import range_overrides

# A curve of three constants goes through any three points: only a fourth can contradict it.
FEWEST_RUNS = 4


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The runs of a sweep, the fitted curve (None: too few were finished), and the rewards it admits (None: none)."""

    partition: str
    runs: tuple[CalibrationRow, ...]
    fit: FitRow | None
    admissible: RewardRange | None

    @property
    def failures(self) -> tuple[CalibrationRow, ...]:
        """The runs that came to nothing."""
        return tuple(run for run in self.runs if run.failure)

    @property
    def compared(self) -> RewardRange | None:
        """The range in which methods are compared: the admissible rewards, or where there are none, what was swept.

        None: so little of the sweep was finished that nothing can be compared.
        """
        if self.fit is None:
            return None
        rewards = [run.reward for run in self.runs if not run.failure]
        return self.admissible or RewardRange(minimum=min(rewards), maximum=max(rewards))

    @property
    def statement(self) -> str:
        """What the calibration says, in one line."""
        fit = self.fit
        if fit is None:
            finished = len(self.runs) - len(self.failures)
            return f"only {finished} of {len(self.runs)} runs were finished and evaluated; a curve needs {FEWEST_RUNS}"
        if fit.ceiling is None or fit.drop is None or fit.rate is None:
            return f"{fit.status}: the runs determine no curve"
        curve = f"accuracy = {fit.ceiling:.4f} - {fit.drop:.4g} exp(-{fit.rate:.4g} total)"
        valid = f"for totals from {fit.total_min:.4g} to {fit.total_max:.4g} (rmse {fit.rmse:.4f})"
        if self.admissible is None:
            return f"{curve} {valid}; no admissible rewards: {fit.range_status}"
        return f"{curve} {valid}; rewards from {self.admissible.minimum:.4g} to {self.admissible.maximum:.4g}"


def calibrated(setup: Setup, *, partition: str, results: Sequence[CellResult], privacy_weight: float) -> Calibration:
    """Fit the curve to the finished runs of a sweep, and derive the admissible rewards."""
    runs = tuple(_run(reward, result) for reward, result in zip(setup.rewards, results, strict=True))
    measured = [(run.total, run.accuracy) for run in runs if run.total is not None and run.accuracy is not None]
    if len(measured) < FEWEST_RUNS:
        return Calibration(partition=partition, runs=runs, fit=None, admissible=None)
    totals, accuracies = zip(*measured, strict=True)
    fit = fit_accuracy_curve(totals=totals, accuracies=accuracies)
    if fit.curve is None:
        row = _fit_row(setup, partition, totals, fit, None, None, "no_curve", None)
        return Calibration(partition=partition, runs=runs, fit=row, admissible=None)
    # The sweep may end before the curve is at its ceiling, or begin above the lower target: it says nothing beyond.
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
    return Calibration(partition=partition, runs=runs, fit=row, admissible=forecast.reward_range)


def write_overrides(path: Path, calibration: Calibration) -> None:
    """A file for `qidpfl-server tasks create --overrides @FILE`: the admissible rewards."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"game": range_overrides(calibration.admissible)}, indent=2) + "\n")


def _run(reward: float, result: CellResult) -> CalibrationRow:
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
    )
