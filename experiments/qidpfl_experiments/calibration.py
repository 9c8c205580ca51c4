"""Calibration: what accuracy a total budget buys (the paper's Fig. 2), and the rewards that are therefore admissible.

QI-DPFL is run with the same reward in every round, for each of several rewards, and judged on validation records. The
curve is fitted to the budgets of one to one and a half decades, and nothing is read from it outside of them.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qidpfl_shared.core.forecast import AccuracyCurve, CurveFit, RangeStatus, fit_accuracy_curve, reward_range
from qidpfl_shared.core.reward import RewardRange

from .cells import CellResult
from .plans import range_overrides
from .settings import Setup
from .tables import CalibrationRow, FitRow


class CalibrationFailed(Exception):
    """Too few runs of a sweep are there to fit a curve."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The runs of a sweep, the fitted curve, and the rewards it admits (None: none)."""

    runs: tuple[CalibrationRow, ...]
    fit: FitRow
    admissible: RewardRange | None

    @property
    def compared(self) -> RewardRange:
        """The range in which methods are compared: the admissible rewards, or where there are none, what was swept."""
        rewards = [run.reward for run in self.runs]
        return self.admissible or RewardRange(minimum=min(rewards), maximum=max(rewards))

    @property
    def statement(self) -> str:
        """What the calibration says, in one line."""
        fit = self.fit
        if fit.ceiling is None or fit.drop is None or fit.rate is None:
            return f"{fit.status}: the runs determine no curve"
        curve = f"accuracy = {fit.ceiling:.4f} - {fit.drop:.4g} exp(-{fit.rate:.4g} total)"
        valid = f"for totals from {fit.total_min:.4g} to {fit.total_max:.4g} (rmse {fit.rmse:.4f})"
        if self.admissible is None:
            return f"{curve} {valid}; no admissible rewards: {fit.range_status}"
        return f"{curve} {valid}; rewards from {self.admissible.minimum:.4g} to {self.admissible.maximum:.4g}"


def calibrated(setup: Setup, *, partition: str, results: Sequence[CellResult], privacy_weight: float) -> Calibration:
    """Fit the curve to the finished runs of a sweep, and derive the admissible rewards."""
    finished = [result for result in results if result.finished and result.cell.accuracy is not None]
    runs = tuple(_run(result) for result in finished)
    if len(runs) < 3:
        raise CalibrationFailed(f"{partition}: only {len(runs)} of {len(results)} runs were finished and evaluated")
    fit = fit_accuracy_curve(totals=[run.total for run in runs], accuracies=[run.accuracy for run in runs])
    if fit.curve is None:
        row = _fit_row(setup, partition, runs, fit, None, None, "no_curve", None)
        return Calibration(runs=runs, fit=row, admissible=None)
    target = _attained(fit.curve, fit.curve.ceiling - setup.target_gap)
    target_max = _attained(fit.curve, fit.curve.ceiling - setup.target_max_gap)
    invited = [row for row in finished[-1].clients if row.updates > 0]
    forecast = reward_range(
        curve=fit.curve,
        target=target,
        target_max=target_max,
        privacy_values=[row.privacy_value for row in invited],
        privacy_weight=privacy_weight,
    )
    row = _fit_row(setup, partition, runs, fit, target, target_max, forecast.status, forecast.reward_range)
    return Calibration(runs=runs, fit=row, admissible=forecast.reward_range)


def write_overrides(path: Path, calibration: Calibration) -> None:
    """A file for `qidpfl-server tasks create --overrides @FILE`: the admissible rewards."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"game": range_overrides(calibration.admissible)}, indent=2) + "\n")


def _run(result: CellResult) -> CalibrationRow:
    last = result.rounds[-1]
    assert last.accuracy is not None
    return CalibrationRow(
        dataset=last.dataset,
        partition=last.partition,
        seed=last.seed,
        reward=last.reward,
        total=math.fsum(row.declared_total for row in result.rounds) / len(result.rounds),
        accuracy=last.accuracy,
    )


def _attained(curve: AccuracyCurve, accuracy: float) -> float:
    """The accuracy, or the nearest that the curve attains where it was calibrated."""
    lowest, highest = curve.accuracy(total=curve.total_min), curve.accuracy(total=curve.total_max)
    return min(max(accuracy, lowest), highest)


def _fit_row(
    setup: Setup,
    partition: str,
    runs: Sequence[CalibrationRow],
    fit: CurveFit,
    target: float | None,
    target_max: float | None,
    range_status: RangeStatus | str,
    admissible: RewardRange | None,
) -> FitRow:
    curve = fit.curve
    totals = [run.total for run in runs]
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
