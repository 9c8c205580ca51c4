"""The result of a calibration: its runs, the fitted curve, and the reward range in which methods are compared."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qidpfl_shared.core.money import to_micro
from qidpfl_shared.core.reward import RewardRange

from .tables import CalibrationRow, FitRow, Tables

# A curve of three constants fits any three points exactly. A fourth reward can contradict it; a repeat cannot.
MIN_RUNS = 4
# Limits are rounded to micro-units before a task gets them.
_SAME_REWARD = 1e-6


@dataclass(frozen=True, kw_only=True)
class RewardLimits:
    """The rewards that a method may pay in a round: the admissible ones, or only those that were swept."""

    range: RewardRange
    is_admissible: bool

    @property
    def kind(self) -> str:
        """The word for these rewards in texts."""
        return "admissible" if self.is_admissible else "swept"

    def at_minimum(self, reward: float) -> bool:
        """Whether a reward is the smallest one."""
        return abs(reward - self.range.minimum) <= _SAME_REWARD

    def at_maximum(self, reward: float) -> bool:
        """Whether a reward is the largest one."""
        return abs(reward - self.range.maximum) <= _SAME_REWARD


def reward_limits(fit: FitRow | None, runs: Iterable[CalibrationRow]) -> RewardLimits | None:
    """The admissible rewards of a calibration, or the swept rewards if no reward is admissible.

    None: too few runs finished for a curve, and nothing can be compared.
    """
    if fit is None:
        return None
    if fit.reward_min is not None:
        maximum = math.inf if fit.reward_max is None else fit.reward_max
        return RewardLimits(range=RewardRange(minimum=fit.reward_min, maximum=maximum), is_admissible=True)
    swept = [run.reward for run in runs if run.accuracy is not None]
    return RewardLimits(range=RewardRange(minimum=min(swept), maximum=max(swept)), is_admissible=False)


def limits_in(tables: Tables) -> RewardLimits | None:
    """The reward limits of the one condition that the tables hold."""
    return reward_limits(tables.fits[0] if tables.fits else None, tables.calibration)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The runs of a sweep and the fitted curve. Without a fit, too few runs finished."""

    partition: str
    runs: tuple[CalibrationRow, ...]
    fit: FitRow | None

    @property
    def failures(self) -> tuple[CalibrationRow, ...]:
        """The runs that failed."""
        return tuple(run for run in self.runs if run.failure)

    @property
    def compared(self) -> RewardRange | None:
        """The reward range in which methods are compared; None if nothing can be compared."""
        limits = reward_limits(self.fit, self.runs)
        return None if limits is None else limits.range

    @property
    def admissible(self) -> RewardRange | None:
        """The admissible rewards; None if there are none."""
        limits = reward_limits(self.fit, self.runs)
        return limits.range if limits is not None and limits.is_admissible else None

    @property
    def statement(self) -> str:
        """The result in one line."""
        fit = self.fit
        if fit is None:
            finished = len({run.reward for run in self.runs if not run.failure})
            swept = len({run.reward for run in self.runs})
            return f"only {finished} of {swept} rewards have a finished and evaluated run; a curve needs {MIN_RUNS}"
        if fit.ceiling is None or fit.drop is None or fit.rate is None:
            return f"{fit.status}: the runs determine no curve"
        curve = f"accuracy = {fit.ceiling:.4f} - {fit.drop:.4g} exp(-{fit.rate:.4g} total)"
        valid = f"for totals from {fit.total_min:.4g} to {fit.total_max:.4g} (rmse {fit.rmse:.4f})"
        if self.admissible is None:
            return f"{curve} {valid}; no admissible rewards: {fit.range_status}"
        return f"{curve} {valid}; rewards from {self.admissible.minimum:.4g} to {self.admissible.maximum:.4g}"


def range_overrides(rewards: RewardRange | None) -> dict[str, Any]:
    """Admissible rewards as part of the game of a task."""
    if rewards is None:
        return {}
    limits = {"minimum_micro": to_micro(rewards.minimum), "maximum_micro": to_micro(rewards.maximum)}
    return {"reward_range": limits}


def write_overrides(path: Path, calibration: Calibration) -> None:
    """Write the admissible rewards as a file for `qidpfl-server tasks create --overrides @FILE`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"game": range_overrides(calibration.admissible)}, indent=2) + "\n")
