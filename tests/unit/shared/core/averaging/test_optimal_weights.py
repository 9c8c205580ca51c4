"""Optimal weights: the minimum of the quadratic programme, found again by other methods, in a fixed order of sums."""

import hashlib
from itertools import chain, combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from qidpfl_shared.core.arguments import ImpossibleArgument, Vector
from qidpfl_shared.core.averaging.linear_systems import Factorisation
from qidpfl_shared.core.averaging.optimal_weights import LabelGaps, label_gap, label_gaps_of, optimal_weights


def problem(seed: int, clients: int, labels: int, *, cost: float = 5.0, spread: float = 1.0) -> tuple[Vector, Vector]:
    """Noise and gaps of clients with Dirichlet labels; the noise is spread over so many decades."""
    rng = np.random.default_rng(seed)
    noise = 10.0 ** rng.uniform(-spread / 2, spread / 2, clients)
    shares = rng.dirichlet(np.full(labels, 0.3), clients)
    return noise, shares - np.full(labels, 1 / labels)


def matrix_of(noise: Vector, gaps: Vector, cost: float) -> npt.NDArray[Any]:
    return np.diag(noise) + cost * gaps @ gaps.T


def best_subset(noise: Vector, gaps: Vector, cost: float) -> Vector:
    """The minimum by trying every set of clients with a weight: the linear conditions, solved for each set."""
    quadratic, best, least = matrix_of(noise, gaps, cost), np.zeros(noise.size), np.inf
    everyone = range(noise.size)
    for chosen in chain.from_iterable(combinations(everyone, count) for count in range(1, noise.size + 1)):
        part = quadratic[np.ix_(chosen, chosen)]
        system = np.block([[part, -np.ones((len(chosen), 1))], [np.ones((1, len(chosen))), np.zeros((1, 1))]])
        solved = np.linalg.solve(system, np.r_[np.zeros(len(chosen)), 1.0])[:-1]
        if (solved >= 0).all() and solved @ part @ solved < least:
            least, best = float(solved @ part @ solved), np.zeros(noise.size)
            best[list(chosen)] = solved
    return best


@given(st.integers(0, 2**31), st.integers(1, 7), st.integers(1, 12), st.floats(0, 50), st.floats(0, 4))
def test_the_weights_are_those_of_the_best_set_of_clients(
    seed: int, clients: int, labels: int, cost: float, spread: float
) -> None:
    noise, gaps = problem(seed, clients, labels, spread=spread)
    found = optimal_weights(noise=noise, labels=LabelGaps(rows=gaps, cost=cost))
    np.testing.assert_allclose(found.weights, best_subset(noise, gaps, cost), atol=1e-9)
    assert found.residual <= 1e-10


@given(st.integers(0, 2**31), st.integers(2, 60), st.integers(1, 80), st.floats(0.01, 100))
def test_the_conditions_of_a_minimum_hold_to_ten_digits(seed: int, clients: int, labels: int, cost: float) -> None:
    """Computed here from the matrix itself, without the scaling that the residual has."""
    noise, gaps = problem(seed, clients, labels, spread=2)
    found = optimal_weights(noise=noise, labels=LabelGaps(rows=gaps, cost=cost))
    slopes = matrix_of(noise, gaps, cost) @ found.weights
    common = float(found.weights @ slopes)
    assert found.weights.min() >= 0 and found.weights.sum() == pytest.approx(1, abs=1e-14)
    assert np.abs(slopes - common)[found.weights > 0].max() <= 1e-10
    assert (slopes >= common - 1e-10).all()
    assert found.objective == pytest.approx(common, rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_no_weights_of_non_negative_least_squares_are_better(seed: int) -> None:
    noise, gaps = problem(seed, clients=40, labels=10, spread=3)
    found = optimal_weights(noise=noise, labels=LabelGaps(rows=gaps, cost=20.0))
    # The sum of 1 as an equation that counts a million times as much as the others.
    rows = np.vstack([np.diag(np.sqrt(noise)), np.sqrt(20.0) * gaps.T, np.full(40, 1e6)])
    theirs = nnls(rows, np.r_[np.zeros(50), 1e6], maxiter=10_000)[0]
    theirs /= theirs.sum()
    assert found.objective <= float(theirs @ matrix_of(noise, gaps, 20.0) @ theirs) * (1 + 1e-9)
    np.testing.assert_allclose(found.weights, theirs, atol=1e-6)


@given(st.integers(0, 2**31), st.integers(1, 30), st.integers(1, 30), st.floats(0, 16))
def test_extreme_spreads_of_noise_are_solved_too(seed: int, clients: int, labels: int, spread: float) -> None:
    noise, gaps = problem(seed, clients, labels, spread=spread)
    found = optimal_weights(noise=noise, labels=LabelGaps(rows=gaps, cost=5.0))
    assert found.residual <= 1e-10
    assert np.isfinite(found.weights).all()


def test_without_a_cost_of_labels_the_weights_are_those_of_inverse_variance() -> None:
    noise, gaps = problem(1, clients=9, labels=4)
    found = optimal_weights(noise=noise, labels=LabelGaps(rows=gaps, cost=0.0))
    np.testing.assert_allclose(found.weights, (1 / noise) / (1 / noise).sum(), rtol=1e-13)


def test_with_a_high_cost_of_labels_the_average_has_the_labels_of_the_reference() -> None:
    gaps = np.array([[0.5, -0.5], [0.4, -0.4], [-0.1, 0.1]])
    found = optimal_weights(noise=np.ones(3), labels=LabelGaps(rows=gaps, cost=1e9))
    np.testing.assert_allclose(found.weights @ gaps, 0, atol=1e-8)


def test_a_client_that_only_worsens_labels_and_noise_has_the_weight_zero() -> None:
    gaps = np.array([[0.5, -0.5], [0.0, 0.0]])
    found = optimal_weights(noise=[1.0, 0.001], labels=LabelGaps(rows=gaps, cost=1000.0))
    assert 0 < found.weights[0] < 1e-5
    found = optimal_weights(noise=[1.0, 1.0, 1.0], labels=LabelGaps(rows=np.array([[3.0], [-0.1], [1.0]]), cost=50.0))
    assert found.weights.tolist().count(0.0) == 1


def test_one_update_has_the_whole_weight() -> None:
    found = optimal_weights(noise=[2.0], labels=LabelGaps(rows=np.array([[1.0, -1.0]]), cost=3.0))
    assert found.weights.tolist() == [1.0] and found.noise == 2.0 and found.mismatch == 6.0


@pytest.mark.parametrize(("clients", "labels"), [(20, 10), (10, 62)])
def test_the_bits_are_those_of_other_machines(clients: int, labels: int) -> None:
    """A model is computed from the weights, and an audit on another machine computes it again."""
    rng = np.random.Generator(np.random.PCG64(3))
    # Whole numbers only: the input has the same bits everywhere.
    noise = rng.integers(1, 1000, clients) / 512
    counts = rng.integers(0, 200, (clients, labels))
    reference = np.full(labels, 1 / labels)
    gaps = [label_gap(label_counts=row.tolist(), reference=reference) for row in counts]
    found = optimal_weights(noise=noise, labels=LabelGaps(rows=np.stack(gaps), cost=5.0))
    digest = hashlib.sha256(found.weights.astype("<f8").tobytes()).hexdigest()[:16]
    assert digest == {20: "f3e299bf78b85530", 10: "8b7ce35fd2ccec81"}[clients]


def test_clients_without_label_counts_count_as_the_reference() -> None:
    known = label_gap(label_counts=[3, 1], reference=np.array([0.5, 0.5]))
    labels = label_gaps_of([known, None], signal_bounds=[2.0, 2.0])
    assert labels is not None and labels.rows.tolist() == [[0.25, -0.25], [0.0, 0.0]] and labels.cost == 20.0
    assert label_gaps_of([None, None], signal_bounds=[2.0, 2.0]) is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"noise": [1.0, 0.0]},
        {"noise": [1.0]},
        {"noise": [1.0, np.nan]},
        {"noise": [], "labels": LabelGaps(rows=np.zeros((0, 2)), cost=1.0)},
    ],
)
def test_impossible_noise_is_refused(arguments: dict[str, Any]) -> None:
    given: dict[str, Any] = {"noise": [1.0, 1.0], "labels": LabelGaps(rows=np.zeros((2, 2)), cost=1.0)} | arguments
    with pytest.raises(ImpossibleArgument):
        optimal_weights(**given)


@pytest.mark.parametrize(("rows", "cost"), [(np.zeros(3), 1.0), (np.full((2, 2), np.nan), 1.0), (np.zeros((2, 2)), -1)])
def test_impossible_gaps_are_refused(rows: Vector, cost: float) -> None:
    with pytest.raises(ImpossibleArgument):
        LabelGaps(rows=rows, cost=cost)


@given(st.integers(0, 2**31), st.integers(1, 40))
def test_a_factorisation_solves_its_system(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((size, size + 3))
    matrix, right = root @ root.T, rng.standard_normal(size)
    found = Factorisation.of(np.triu(matrix)).solve(right)
    np.testing.assert_allclose(matrix @ found, right, atol=1e-7)


@pytest.mark.parametrize(("clients", "labels", "records", "rho"), [(100, 47, 30_000, 0.1), (70, 47, 30_000, 0.1)])
@pytest.mark.parametrize("skewed", [False, True], ids=["equal noise", "a quarter with little noise"])
def test_many_skewed_clients_with_many_labels_reach_the_minimum(
    clients: int, labels: int, records: int, rho: float, skewed: bool
) -> None:
    """Exchanging all clients on the wrong side goes in circles for some of these."""
    for seed in range(52, 64):
        rng = np.random.default_rng(seed)
        gaps = LabelGaps(rows=rng.dirichlet(np.full(labels, 0.1), clients) - 1 / labels, cost=5.0)
        noise = np.full(clients, 2 * 785 * labels / (rho * records**2))
        if skewed:
            noise[: clients // 4] /= rng.uniform(10, 1e4, clients // 4)
        found = optimal_weights(noise=noise, labels=gaps)
        equal = np.full(clients, 1 / clients)
        assert found.residual <= 1e-10
        assert found.objective <= float(noise @ equal**2) + gaps.mismatch(equal)


@pytest.mark.parametrize("cost", [1e15, 1e40, 1e300, 1e308])
def test_labels_that_cost_far_more_than_noise_give_finite_weights(cost: float) -> None:
    rows = np.random.default_rng(1).dirichlet(np.ones(10), 8) - 0.1
    found = optimal_weights(noise=np.full(8, 1e-12), labels=LabelGaps(rows=rows, cost=cost))
    assert np.isfinite(found.weights).all() and found.weights.sum() == pytest.approx(1)
