"""The label histogram: noise that matches its sensitivity, clean-up that costs no privacy."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.privacy.histogram import clean_histogram, distance_error, histogram_noise_std, private_histogram
from qidpfl_shared.core.selection import label_distances, uniform_reference


def test_replacing_a_record_costs_exactly_rho() -> None:
    here, there = np.array([3, 5, 2]), np.array([3, 4, 3])
    sensitivity = float(np.linalg.norm(here - there))
    assert sensitivity**2 / (2 * histogram_noise_std(rho=0.07) ** 2) == pytest.approx(0.07)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.integers(0, 10**6))
def test_a_clean_histogram_is_whole_non_negative_and_adds_up(noisy: list[float], size: int) -> None:
    counts = clean_histogram(noisy=noisy, size=size)
    assert sum(counts) == size
    assert all(isinstance(count, int) and count >= 0 for count in counts)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20))
def test_exact_counts_are_already_clean(counts: list[int]) -> None:
    assert clean_histogram(noisy=counts, size=sum(counts)) == tuple(counts)


def test_the_clean_histogram_is_the_nearest_one_up_to_rounding() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        noisy, size = rng.normal(5, 10, 4), 30
        found = minimize(
            lambda x, noisy=noisy: np.sum((x - noisy) ** 2),
            np.full(4, size / 4),
            bounds=[(0, None)] * 4,
            constraints={"type": "eq", "fun": lambda x: x.sum() - 30},
            method="SLSQP",
            options={"ftol": 1e-12},
        )
        assert np.abs(np.array(clean_histogram(noisy=noisy, size=size)) - found.x).max() < 1 + 1e-4


@pytest.mark.slow
def test_noise_has_the_announced_standard_deviation() -> None:
    rng = np.random.default_rng(1)
    exact = np.full(10, 1000)
    draws = np.array(
        [private_histogram(counts=exact, rho=0.01, standard_noise=rng.standard_normal(10)) for _ in range(4000)]
    )
    # The fixed sum takes one of ten degrees of freedom; rounding adds 1/12. Over 40,000 draws 1.5 % is four deviations.
    expected = math.sqrt(100 * 0.9 + 1 / 12)
    assert draws.std() == pytest.approx(expected, rel=0.015)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "rho", "bias", "deviation"), [(140, 0.1, 0.007, 0.063), (600, 0.01, 0.004, 0.048)])
def test_the_error_of_the_label_distance_is_as_measured(size: int, rho: float, bias: float, deviation: float) -> None:
    rng = np.random.default_rng(2)
    uniform = uniform_reference(labels=10)
    errors = []
    for _ in range(2000):
        counts = rng.multinomial(size, rng.dirichlet(np.ones(10)))
        noisy = private_histogram(counts=counts, rho=rho, standard_noise=rng.standard_normal(10))
        near, far = label_distances(histograms=[noisy, counts], reference=uniform)
        errors.append(near - far)
    assert np.mean(errors) == pytest.approx(bias, abs=0.01)
    assert np.std(errors) == pytest.approx(deviation, rel=0.15)
    assert distance_error(size=size, labels=10, rho=rho) == pytest.approx(deviation, rel=0.1)


@pytest.mark.parametrize(
    ("counts", "noise"), [([1, -1], [0, 0]), ([1.5, 1], [0, 0]), ([1, 2], [0]), ([1, 2], [math.nan, 0]), ([], [])]
)
def test_impossible_histograms_are_refused(counts: list[float], noise: list[float]) -> None:
    with pytest.raises(ImpossibleArgument):
        private_histogram(counts=counts, rho=0.1, standard_noise=noise)
