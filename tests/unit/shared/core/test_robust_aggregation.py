"""Bounds on the influence of one client, and the robust means."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qidpfl_shared.core.aggregation import (
    bounded_weights,
    budget_factors,
    clip_scale,
    counted_sizes,
    norm_bound,
    trimmed_mean,
    usual_signal,
)
from qidpfl_shared.core.arguments import ImpossibleArgument


def test_an_absurd_size_counts_as_the_median() -> None:
    assert counted_sizes(sizes=[100, 110, 120, 10**7], max_ratio=1.0) == [100, 110, 115, 115]


def test_without_a_bound_every_size_counts() -> None:
    assert counted_sizes(sizes=[1, 10**7], max_ratio=None) == [1, 10**7]


@given(st.lists(st.integers(1, 10**7), min_size=1, max_size=30), st.floats(1, 100))
def test_no_counted_size_exceeds_the_bound_or_the_claim(sizes: list[int], ratio: float) -> None:
    counted = counted_sizes(sizes=sizes, max_ratio=ratio)
    assert all(1 <= mine <= claimed for mine, claimed in zip(counted, sizes, strict=True))
    assert max(counted) <= max(1, ratio * float(np.median(sizes)))


@given(st.floats(1e-6, 1.0), st.floats(1e-6, 1.0))
def test_a_smaller_budget_never_gives_more_influence(share: float, planned: float) -> None:
    """Weight times norm bound is largest at the planned budget."""

    def pull(rho: float) -> float:
        (factor,) = budget_factors(declared=[rho], planned=[planned])
        std = 2 / (110 * math.sqrt(2 * rho))
        return float(factor) * norm_bound(signal=1.0, noise_std=std, dimension=650, alpha=1e-5)

    assert pull(share * planned) <= pull(planned) * (1 + 1e-5)


def test_an_honest_upload_is_not_clipped() -> None:
    rng = np.random.default_rng(3)
    std, dimension = 0.05, 650
    bound = norm_bound(signal=1.0, noise_std=std, dimension=dimension, alpha=1e-5)
    signal = np.zeros(dimension)
    signal[0] = 1.0
    for _ in range(200):
        upload = signal + std * rng.standard_normal(dimension)
        assert clip_scale(squared_norm=float(upload @ upload), bound=bound) == 1.0


def test_a_clipped_upload_has_the_norm_of_the_bound() -> None:
    upload = np.full(100, 3.0)
    scale = clip_scale(squared_norm=float(upload @ upload), bound=2.0)
    assert np.linalg.norm(scale * upload) == pytest.approx(2.0)


@pytest.mark.parametrize("liars", [1, 3])
def test_a_minority_does_not_move_the_usual_signal(liars: int) -> None:
    rng = np.random.default_rng(1)
    dimension, std = 650, 0.02
    signal = np.full(dimension, 0.3 / math.sqrt(dimension))
    uploads = signal + std * rng.standard_normal((10, dimension))
    honest = usual_signal(squared_norms=(uploads**2).sum(axis=1), noise_stds=[std] * 10, dimension=dimension)
    uploads[:liars] *= 1000
    attacked = usual_signal(squared_norms=(uploads**2).sum(axis=1), noise_stds=[std] * 10, dimension=dimension)
    assert 0.3 <= honest <= 0.4
    assert attacked <= 1.2 * honest


def test_the_norm_bounded_rule_leaves_equal_clients_alone() -> None:
    weights = [0.1] * 10
    assert bounded_weights(weights=weights, bounds=[2.0] * 10).tolist() == weights


@given(st.lists(st.tuples(st.floats(0.01, 10), st.floats(0.01, 100)), min_size=1, max_size=20))
def test_the_norm_bounded_rule_bounds_every_pull_by_the_median(clients: list[tuple[float, float]]) -> None:
    weights, bounds = np.array(clients).T
    pulls = bounded_weights(weights=weights, bounds=bounds) * bounds
    assert (pulls <= float(np.median(weights * bounds)) * (1 + 1e-12)).all()


def test_the_trimmed_mean_of_pieces_is_that_of_the_whole() -> None:
    rng = np.random.default_rng(5)
    updates = rng.standard_normal((7, 101)).astype(np.float32)
    weights = rng.uniform(0.5, 2, 7)

    def mean(chunk: int) -> list[float]:
        found = trimmed_mean(
            read=lambda i, part: updates[i, part], weights=weights, dimension=101, trim=0.3, chunk=chunk
        )
        return [float(value) for value in found]

    assert mean(10) == mean(101)
    order = np.sort(updates[:, 0].astype(np.float64))[2:-2]
    kept = np.isin(updates[:, 0].astype(np.float64), order)
    assert mean(10)[0] == pytest.approx(np.average(updates[kept, 0].astype(np.float64), weights=weights[kept]))


def test_the_trimmed_mean_ignores_three_liars_of_ten() -> None:
    updates = np.ones((10, 5))
    updates[:3] = 1e9
    found = trimmed_mean(read=lambda i, part: updates[i, part], weights=[1.0] * 10, dimension=5, trim=0.3)
    assert found.tolist() == [1.0] * 5


def test_trimming_everything_is_refused() -> None:
    with pytest.raises(ImpossibleArgument, match="leaves none"):
        trimmed_mean(read=lambda i, part: np.ones(1), weights=[1.0, 1.0], dimension=1, trim=0.5)
