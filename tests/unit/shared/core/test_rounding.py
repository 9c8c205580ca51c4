"""The slack covers what float32 and float64 really lose, and grows where it must."""

import math

import numpy as np
import pytest

from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.privacy.discrete_gaussian import grid_slack
from qidpfl_shared.core.privacy.rounding import (
    BLOCK,
    NORM_BLOCK,
    SLACK,
    clipped_mean_slack,
    clipped_update_slack,
    softmax_regression_slack,
)

REGRESSION = {"size": 3000, "features": 784, "labels": 10, "feature_norm": 10.0, "learning_rate": 0.01, "steps": 47}


@pytest.mark.parametrize(("size", "chunk"), [(1, 1), (110, 110), (60_000, 2000), (1_000_000, 64), (10_000_000, 4096)])
@pytest.mark.parametrize(("dimension", "rho"), [(650, 1e-6), (7850, 1e-6), (1_700_000, 1e-6), (2**28, 1e-5)])
def test_the_slack_suffices_for_all_realistic_releases(size: int, chunk: int, dimension: int, rho: float) -> None:
    assert clipped_mean_slack(size=size, chunk=chunk) + grid_slack(dimension=dimension, rho=rho) <= SLACK
    assert clipped_update_slack(dimension=dimension) + grid_slack(dimension=dimension, rho=rho) <= SLACK


def test_a_block_sum_in_float32_loses_less_than_its_part() -> None:
    rng = np.random.default_rng(0)
    worst = 0.0
    for _ in range(50):
        rows = rng.standard_normal((BLOCK, 300)) * 10.0 ** rng.integers(-3, 1, (BLOCK, 1))
        rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
        total = np.zeros(300, dtype=np.float32)
        for row in rows:
            total += row
        worst = max(worst, float(np.linalg.norm(total - rows.astype(np.float64).sum(0))))
    assert 0 < worst <= (BLOCK + 4) * BLOCK * 2.0**-24


def test_a_norm_of_a_block_in_float32_loses_less_than_its_part() -> None:
    rng = np.random.default_rng(1)
    for scale in (1e-15, 1.0, 1e15):
        values = (scale * rng.random(NORM_BLOCK)).astype(np.float32)
        total = np.float32(0)
        for value in values:
            total += value * value
        exact = float(np.linalg.norm(values.astype(np.float64)))
        assert abs(math.sqrt(float(total)) / exact - 1) <= (NORM_BLOCK + 8) * 2.0**-24


def test_a_larger_model_leaves_less_room_for_bolt_on() -> None:
    slacks = [softmax_regression_slack(model_norm=norm, **REGRESSION) for norm in (0.0, 1e2, 1e4, 1e8)]  # type: ignore[arg-type]
    assert slacks == sorted(slacks)
    assert slacks[1] < SLACK / 10 and slacks[-1] > SLACK


@pytest.mark.parametrize("bad", [{"size": 0}, {"model_norm": -1.0}, {"model_norm": math.nan}, {"learning_rate": 0.0}])
def test_impossible_arguments_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ImpossibleArgument):
        softmax_regression_slack(**{**REGRESSION, "model_norm": 1.0, **bad})  # type: ignore[arg-type]
