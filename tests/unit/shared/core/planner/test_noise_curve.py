"""The accuracy by the noise of the average: the fit, its interval, and where it refuses to answer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import curve_fit

from qidpfl_shared.core.arguments import ImpossibleArgument, Vector
from qidpfl_shared.core.planner.noise_curve import NoCurve, fit_noise_curve, mean_noise

NOISES = np.repeat([0.15, 0.25, 0.35, 0.5, 0.6], 3)


def measured(seed: int, spread: float = 0.004, noises: Vector = NOISES) -> Vector:
    return 0.9 - 0.2 * noises**1.5 + spread * np.random.default_rng(seed).standard_normal(noises.size)


@given(st.floats(0.5, 1.0), st.floats(0.05, 1.0), st.floats(0.4, 3.5))
def test_exact_measurements_give_back_their_curve(ceiling: float, slope: float, exponent: float) -> None:
    curve = fit_noise_curve(noises=NOISES, accuracies=ceiling - slope * NOISES**exponent)
    assert (curve.ceiling, curve.slope, curve.exponent) == pytest.approx((ceiling, slope, exponent), rel=1e-3)
    assert curve.spread < 1e-5


@pytest.mark.parametrize("seed", range(5))
def test_the_fit_is_that_of_a_general_least_squares_method(seed: int) -> None:
    accuracies = measured(seed)
    theirs, covariance = curve_fit(
        lambda x, a, b, c: a - b * x**c, NOISES, accuracies, p0=(0.9, 0.2, 1.5), bounds=([0, 0, 0.25], [2, 9, 4])
    )
    curve = fit_noise_curve(noises=NOISES, accuracies=accuracies)
    np.testing.assert_allclose((curve.ceiling, curve.slope, curve.exponent), theirs, rtol=1e-3)
    np.testing.assert_allclose(curve.spread**2 * curve.covariance, covariance, rtol=0.05)


def test_nine_of_ten_new_runs_lie_in_the_interval() -> None:
    inside = 0
    rng = np.random.default_rng(1)
    for seed in range(400):
        curve = fit_noise_curve(noises=NOISES, accuracies=measured(seed))
        noise = float(rng.uniform(0.15, 0.6))
        accuracy = 0.9 - 0.2 * noise**1.5 + 0.004 * rng.standard_normal()
        found = curve.predict(noise)
        inside += found.low <= accuracy <= found.high
    assert 0.86 <= inside / 400 <= 0.94


def test_more_confidence_means_a_wider_interval() -> None:
    low, high = (fit_noise_curve(noises=NOISES, accuracies=measured(1), confidence=level) for level in (0.8, 0.95))
    assert high.predict(0.3).low < low.predict(0.3).low < low.predict(0.3).expected == high.predict(0.3).expected


@given(st.floats(0.16, 0.59))
def test_the_noise_for_an_accuracy_inverts_the_curve(noise: float) -> None:
    curve = fit_noise_curve(noises=NOISES, accuracies=measured(2))
    assert curve.noise_for(curve.predict(noise).expected) == pytest.approx(noise, rel=1e-9)


@pytest.mark.parametrize("noise", [0.1, 0.149, 0.61, 5.0])
def test_the_curve_does_not_extrapolate(noise: float) -> None:
    curve = fit_noise_curve(noises=NOISES, accuracies=measured(3))
    assert not curve.covers(noise)
    with pytest.raises(ImpossibleArgument, match="calibrated range"):
        curve.predict(noise)


@pytest.mark.parametrize("accuracy", [0.0, 0.5, 0.95, 1.0])
def test_an_accuracy_that_no_run_had_has_no_noise(accuracy: float) -> None:
    assert fit_noise_curve(noises=NOISES, accuracies=measured(3)).noise_for(accuracy) is None


@pytest.mark.parametrize(
    ("noises", "accuracies", "reason"),
    [
        ([0.1, 0.2, 0.3, 0.4], [0.9, 0.8, 0.7, 0.6], "4 runs"),
        ([0.3, 0.31, 0.32, 0.33, 0.34], [0.9, 0.8, 0.7, 0.6, 0.5], "too much alike"),
        ([0.1, 0.1, 0.1, 0.5, 0.5], [0.9, 0.9, 0.9, 0.6, 0.6], "too much alike"),
        ([0.1, 0.2, 0.3, 0.4, 0.5], [0.5, 0.6, 0.7, 0.8, 0.9], "does not fall"),
        ([0.1, 0.2, 0.3, 0.4, 0.5], [0.5] * 5, "does not fall"),
    ],
)
def test_runs_that_determine_no_curve_are_refused(noises: list[float], accuracies: list[float], reason: str) -> None:
    with pytest.raises(NoCurve, match=reason):
        fit_noise_curve(noises=noises, accuracies=accuracies)


def test_the_mean_noise_adds_up_squares() -> None:
    assert mean_noise([0.3, 0.4]) == pytest.approx((0.25 / 2) ** 0.5)
    assert mean_noise([]) == 0
