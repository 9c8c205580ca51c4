"""Noise is a discrete Gaussian of standard deviation 1, fresh or a function of its seed.

Tolerances: an estimate may be 5.5 of its standard deviations off, which correct noise exceeds less than once in ten
million runs; the p-value of the Kolmogorov-Smirnov test must be at least 1e-7.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from qidpfl_client.noise import CommonNoise, NoiseSource, Normals, SystemNoise, UnsafeSeededNoise
from qidpfl_shared.core.privacy.discrete_gaussian import GRID, PIECE

DEVIATIONS = 5.5
LEAST_PROBABILITY = 1e-7
COUNT = 200_000
FIRST_VALUES = [1.6196063982997657, 0.18828303778627742, 0.6871958485426148]


def faults(values: Normals) -> list[str]:
    """How these values differ from independent standard normal ones."""
    allowed = DEVIATIONS / np.sqrt(values.size)
    found = {
        "mean": abs(values.mean()) > allowed,
        "deviation": abs(values.std() - 1) > allowed / np.sqrt(2),
        "shape": stats.kstest(values, "norm").pvalue < LEAST_PROBABILITY,
        "neighbours": abs(np.mean(values[1:] * values[:-1])) > allowed,
        "pieces": abs(np.mean(values[PIECE:] * values[:-PIECE])) > DEVIATIONS / np.sqrt(values.size - PIECE),
        "signs": abs(np.mean(np.sign(values))) > allowed,
    }
    return [name for name, wrong in found.items() if wrong]


@pytest.fixture(
    params=[SystemNoise(), UnsafeSeededNoise(1), CommonNoise(seed=1, draw=0, ordinal=0)],
    ids=["system", "seeded", "common"],
)
def source(request: pytest.FixtureRequest) -> NoiseSource:
    chosen: NoiseSource = request.param
    return chosen


def test_values_are_independent_and_standard_normal(source: NoiseSource) -> None:
    values = source.standard_normal(COUNT, release="round 1")
    assert values.dtype == np.float64
    assert faults(values) == []
    assert np.array_equal(values / GRID, np.rint(values / GRID))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (lambda values: values * 1.02, "deviation"),
        (lambda values: values + 0.02, "mean"),
        (lambda values: np.sign(values), "shape"),
        (lambda values: np.abs(values), "signs"),
        (lambda values: np.repeat(values, 2), "neighbours"),
        (lambda values: np.tile(values[:PIECE], 4), "pieces"),
        (lambda values: np.zeros_like(values), "deviation"),
    ],
)
def test_the_check_finds_wrong_noise(broken: object, fault: str) -> None:
    assert callable(broken)
    # Seeded, so that the result is fixed: fresh noise could hide such a small shift once in some thousand runs.
    assert fault in faults(broken(UnsafeSeededNoise(1).standard_normal(COUNT, release="round 1")))


@pytest.mark.parametrize("count", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
def test_a_draw_has_the_requested_number_of_values(source: NoiseSource, count: int) -> None:
    values = source.standard_normal(count, release="round 1")
    assert values.shape == (count,)
    assert np.isfinite(values).all()
    assert np.unique(values).size == count


def test_system_noise_differs_even_for_the_same_release() -> None:
    first, second = (SystemNoise().standard_normal(1000, release="round 1") for _ in range(2))
    assert not np.isin(first, second).any()


def test_seeded_noise_is_a_function_of_seed_and_release() -> None:
    first = UnsafeSeededNoise(7).standard_normal(2 * PIECE, release="round 1")
    again = UnsafeSeededNoise(7).standard_normal(2 * PIECE, release="round 1")
    fewer = UnsafeSeededNoise(7).standard_normal(PIECE + 3, release="round 1")
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first[: PIECE + 3], fewer)
    for other in (
        UnsafeSeededNoise(8).standard_normal(2 * PIECE, release="round 1"),
        UnsafeSeededNoise(7).standard_normal(2 * PIECE, release="round 2"),
    ):
        assert abs(np.mean(first * other)) < DEVIATIONS / np.sqrt(first.size)


def test_common_noise_depends_on_seed_draw_ordinal_and_round() -> None:
    key = {"seed": 1, "draw": 2, "ordinal": 3}
    first = CommonNoise(**key).standard_normal(2 * PIECE, release="round/1")
    np.testing.assert_array_equal(CommonNoise(**key).standard_normal(2 * PIECE, release="round/1"), first)
    others = [CommonNoise(**(key | {name: 9})).standard_normal(2 * PIECE, release="round/1") for name in key]
    others.append(CommonNoise(**key).standard_normal(2 * PIECE, release="round/2"))
    for other in others:
        assert abs(np.mean(first * other)) < DEVIATIONS / np.sqrt(first.size)
    assert "unsafe" in repr(CommonNoise(**key)) and "UNSAFE" in (CommonNoise.__doc__ or "")


def test_seeded_noise_is_the_same_on_every_machine() -> None:
    values = UnsafeSeededNoise(0).standard_normal(3, release="a")
    assert values.tolist() == FIRST_VALUES


def test_the_repr_of_seeded_noise_says_that_it_is_unsafe() -> None:
    assert "Unsafe" in UnsafeSeededNoise.__name__
    assert "unsafe" in repr(UnsafeSeededNoise(3))
    assert "UNSAFE" in (UnsafeSeededNoise.__doc__ or "")


def test_noise_is_drawn_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = os.urandom

    def noted(length: int) -> bytes:
        asked.append(length)
        return real(length)

    monkeypatch.setattr(os, "urandom", noted)
    SystemNoise().standard_normal(5 * PIECE, release="round 1")
    assert asked.count(8 * PIECE) == 5 and max(asked) == 8 * PIECE


@pytest.mark.slow
def test_noise_needs_no_torch() -> None:
    script = "import sys, qidpfl_client.noise; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
