"""Redraws of the calibration: how often a verdict that depends on the reward range would differ."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from qidpfl_experiments.analysis.evaluate import outcomes
from qidpfl_experiments.results.redraws import REDRAWS, redrawn_limits
from qidpfl_experiments.results.tables import CalibrationRow, FitRow, Tables
from support.synthetic_results import calibration_of, results

REWARDS = (5.0, 10.0, 20.0, 40.0, 80.0)


def runs(noise: float, *, draws: int = 3) -> tuple[CalibrationRow, ...]:
    (row, *_), _ = calibration_of("dirichlet")
    shifts = np.random.default_rng(1).normal(0, noise, (len(REWARDS), draws))
    return tuple(
        replace(
            row,
            reward=reward,
            total=reward / 1000,
            accuracy=0.88 - 0.12 * math.exp(-60 * reward / 1000) + shift,
            draw=draw,
        )
        for reward, of_reward in zip(REWARDS, shifts.tolist(), strict=True)
        for draw, shift in enumerate(of_reward)
    )


def fit() -> FitRow:
    return replace(calibration_of("dirichlet")[1], target_gap=0.04, target_max_gap=0.005)


def remarks(identifier: str, swept: Sequence[CalibrationRow]) -> tuple[str, ...]:
    tables: Tables = results(methods=("qi-dpfl", "random-select", "random", "max-select"), partitions=("dirichlet",))
    tables = replace(tables, calibration=tuple(swept), fits=(fit(),))
    (found,) = (one for one in outcomes(tables) if one.claim.identifier == identifier)
    return found.findings[0].remarks


def test_runs_without_noise_give_the_same_limits_in_every_redraw() -> None:
    limits = redrawn_limits(fit(), runs(0.0))
    assert len(limits) == REDRAWS and all(one.is_admissible for one in limits)
    # 0.04 below the ceiling: exp(-60 t) = 1/3.
    expected = 1000 * math.log(3) / 60
    minima = [one.range.minimum for one in limits]
    assert max(minima) - min(minima) < 1e-6
    # The reward is interpolated between those that were swept, and it is proportional to the total.
    assert minima[0] == pytest.approx(expected, rel=1e-6)


def test_noisy_runs_spread_the_limits_and_a_report_can_be_repeated() -> None:
    limits = redrawn_limits(fit(), runs(0.004))
    assert max(one.range.maximum for one in limits) > 1.2 * min(one.range.maximum for one in limits)
    redrawn_limits.cache_clear()
    assert redrawn_limits(fit(), runs(0.004)) == limits


def test_one_run_per_reward_cannot_be_redrawn() -> None:
    assert redrawn_limits(fit(), runs(0.004, draws=1)) == ()
    (remark,) = [one for one in remarks("less-reward-than-random", runs(0.004, draws=1)) if "redraw" in one]
    assert remark.endswith("is unknown")


def test_a_verdict_that_depends_on_the_range_says_how_often_it_would_differ() -> None:
    (remark,) = [one for one in remarks("less-reward-than-random", runs(0.004)) if "redraw" in one]
    count, of = int(remark.split()[0]), int(remark.split()[2])
    assert 0 <= count <= of == REDRAWS


def test_a_claim_by_construction_has_no_such_remark() -> None:
    assert not [one for one in remarks("less-reward-than-max", runs(0.004)) if "redraw" in one]
