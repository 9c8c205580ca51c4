"""Mechanisms: sensitivities reached by real computations on neighbouring data, noise, and what is really proven."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.privacy.mechanisms import (
    BoltOnMechanism,
    GradientOnceMechanism,
    Mechanism,
    MechanismName,
    NoisyEpochsMechanism,
    PaperLiteralMechanism,
    UpdateClipMechanism,
    UploadKind,
    batch_sizes,
)

MECHANISMS: list[Mechanism] = [
    GradientOnceMechanism(clip_norm=1.5),
    NoisyEpochsMechanism(clip_norm=1.5, learning_rate=0.1, epochs=3, batch_size=20),
    UpdateClipMechanism(clip_norm=1.5),
    PaperLiteralMechanism(clip_norm=1.5),
    BoltOnMechanism.softmax_regression(feature_norm=1.0, learning_rate=0.5, epochs=2, batch_size=20),
]
rhos = st.floats(1e-6, 100)
sizes = st.integers(1, 100_000)


@given(st.sampled_from(MECHANISMS), rhos, sizes)
def test_noise_follows_from_the_noise_scale(mechanism: Mechanism, rho: float, size: int) -> None:
    scale = mechanism.noise_scale(size=size)
    assert mechanism.noise_std(rho=rho, size=size) ** 2 * rho == pytest.approx(scale, rel=1e-12)


@given(st.sampled_from([m for m in MECHANISMS if not m.heuristic]), rhos, sizes)
def test_a_proven_mechanism_guarantees_what_it_declares(mechanism: Mechanism, rho: float, size: int) -> None:
    assert mechanism.proven_rho(rho=rho, size=size) == pytest.approx(rho, rel=1e-12)


@given(rhos, sizes)
def test_the_literal_mechanism_guarantees_nearly_nothing(rho: float, size: int) -> None:
    literal = PaperLiteralMechanism(clip_norm=2.0)
    assert literal.heuristic
    assert literal.proven_rho(rho=rho, size=size) == pytest.approx(rho * size**2, rel=1e-9)
    same_noise = GradientOnceMechanism(clip_norm=2.0)
    assert literal.noise_std(rho=rho, size=size) == pytest.approx(same_noise.noise_std(rho=rho, size=size))


def test_the_papers_noise_is_that_of_gradient_once() -> None:
    assert GradientOnceMechanism(clip_norm=3).noise_std(rho=0.01, size=600) ** 2 == pytest.approx(
        2 * 9 / (0.01 * 600**2)
    )
    assert GradientOnceMechanism(clip_norm=3).sensitivity(size=600) == pytest.approx(2 * 3 / 600)


def test_update_clip_needs_as_much_noise_for_one_record_as_for_a_million() -> None:
    mechanism = UpdateClipMechanism(clip_norm=1)
    assert mechanism.noise_std(rho=0.01, size=1) == mechanism.noise_std(rho=0.01, size=10**6) == pytest.approx(200**0.5)


def test_declared_one_hundredth_with_600_records_is_3600_for_the_literal_mechanism() -> None:
    assert PaperLiteralMechanism(clip_norm=1).proven_rho(rho=0.01, size=600) == pytest.approx(3600)


@given(st.integers(1, 10_000), st.integers(1, 500))
def test_batches_cover_the_data_and_none_is_small(size: int, batch_size: int) -> None:
    batches = batch_sizes(size=size, batch_size=batch_size)
    assert sum(batches) == size
    assert max(batches) - min(batches) <= 1
    assert min(batches) >= min(batch_size, size)


def clipped(vectors: np.ndarray, norm: float) -> np.ndarray:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    shortened: np.ndarray = vectors * np.minimum(1, norm / np.maximum(lengths, 1e-300))
    return shortened


def test_replacing_a_record_moves_the_mean_of_clipped_gradients_by_its_sensitivity_at_most() -> None:
    rng = np.random.default_rng(0)
    mechanism, size = GradientOnceMechanism(clip_norm=0.7), 40
    worst = 0.0
    for _ in range(200):
        gradients = rng.normal(size=(size, 5)) * rng.exponential(5)
        neighbour = gradients.copy()
        neighbour[0] = rng.normal(size=5) * 100
        moved = clipped(gradients, 0.7).mean(axis=0) - clipped(neighbour, 0.7).mean(axis=0)
        worst = max(worst, float(np.linalg.norm(moved)))
    opposite = np.array([[7.0, 0], [-7.0, 0]])
    attained = np.linalg.norm(clipped(opposite, 0.7)[0] - clipped(opposite, 0.7)[1]) / size
    assert worst <= mechanism.sensitivity(size=size)
    assert attained == pytest.approx(mechanism.sensitivity(size=size))


def quadratic_sgd(centres: np.ndarray, *, learning_rate: float, epochs: int) -> float:
    """SGD with batches of one record on Σ (w - c)²/2, from 0."""
    w = 0.0
    for _ in range(epochs):
        for centre in centres:
            w -= learning_rate * (w - centre)
    return w


def test_one_record_can_move_a_clipped_update_across_the_whole_ball() -> None:
    """The counterexample to the literal mechanism: its noise assumes 2C/D, and this quadratic moves by 2C."""
    clip_norm, size = 1.0, 50
    centres = np.zeros(size)
    ends = []
    for extreme in (1000.0, -1000.0):
        centres[-1] = extreme
        update = quadratic_sgd(centres, learning_rate=0.5, epochs=1)
        ends.append(float(clipped(np.array([update]), clip_norm)[0]))
    moved = abs(ends[0] - ends[1])
    assert moved == pytest.approx(UpdateClipMechanism(clip_norm=clip_norm).sensitivity(size=size))
    assert moved > 10 * GradientOnceMechanism(clip_norm=clip_norm).sensitivity(size=size)


def softmax_sgd(features: np.ndarray, labels: np.ndarray, mechanism: BoltOnMechanism, start: np.ndarray) -> np.ndarray:
    """L epochs of mini-batch SGD of softmax regression with bias, batches in their given order."""
    inputs = np.hstack([features, np.ones((len(features), 1))])
    weights = start.copy()
    edges = np.cumsum((0, *batch_sizes(size=len(features), batch_size=mechanism.batch_size)))
    for _ in range(mechanism.epochs):
        for low, high in itertools.pairwise(edges):
            scores = inputs[low:high] @ weights
            odds = np.exp(scores - scores.max(axis=1, keepdims=True))
            odds /= odds.sum(axis=1, keepdims=True)
            odds[np.arange(high - low), labels[low:high]] -= 1
            weights -= mechanism.learning_rate * inputs[low:high].T @ odds / (high - low)
    return weights


def test_local_sgd_never_moves_more_than_the_bolt_on_sensitivity() -> None:
    rng = np.random.default_rng(1)
    mechanism = BoltOnMechanism.softmax_regression(feature_norm=1.0, learning_rate=2.0, epochs=3, batch_size=8)
    size, worst = 30, 0.0
    for _ in range(300):
        features = clipped(rng.normal(size=(size, 4)) * 3, 1.0)
        labels = rng.integers(0, 3, size)
        other_features, other_labels = features.copy(), labels.copy()
        index = int(rng.integers(size))
        other_features[index] = clipped(-features[index] * 10, 1.0)
        other_labels[index] = (labels[index] + 1) % 3
        start = rng.normal(size=(5, 3))
        moved = softmax_sgd(features, labels, mechanism, start) - softmax_sgd(
            other_features, other_labels, mechanism, start
        )
        worst = max(worst, float(np.linalg.norm(moved)) / mechanism.sensitivity(size=size))
    # The bound holds, and it is of the right size: a factor of ten smaller would be broken.
    assert 0.1 < worst <= 1


def test_the_papers_learning_rate_is_admissible_on_mnist() -> None:
    mechanism = BoltOnMechanism.softmax_regression(feature_norm=10, learning_rate=0.01, epochs=1, batch_size=64)
    assert mechanism.gradient_bound == pytest.approx(math.sqrt(202))
    assert mechanism.sensitivity(size=3000) == pytest.approx(2 * 0.01 * math.sqrt(202) / 64)
    assert mechanism.sensitivity(size=10) == pytest.approx(2 * 0.01 * math.sqrt(202) / 10)
    with pytest.raises(ImpossibleArgument, match="learning_rate"):
        BoltOnMechanism.softmax_regression(feature_norm=10, learning_rate=0.05, epochs=1, batch_size=64)


def test_noisy_epochs_spend_their_budget_over_the_steps_that_touch_a_record() -> None:
    mechanism, rho, size = NoisyEpochsMechanism(clip_norm=2, learning_rate=0.3, epochs=4, batch_size=30), 0.05, 100
    batches = batch_sizes(size=size, batch_size=30)
    assert batches == (34, 33, 33)
    for batch in batches:
        per_step = (2 * 2 / batch) ** 2 / (2 * mechanism.step_noise_std(rho=rho, batch=batch) ** 2)
        assert 4 * per_step == pytest.approx(rho)
    variance = sum(4 * (0.3 * mechanism.step_noise_std(rho=rho, batch=batch)) ** 2 for batch in batches)
    assert mechanism.noise_std(rho=rho, size=size) ** 2 == pytest.approx(variance)
    assert mechanism.signal_bound(size=size) == pytest.approx(0.3 * 2 * 3 * 4)
    assert mechanism.sensitivity(size=size) == pytest.approx(2 * 2 / 33)


def test_more_batches_cost_their_square_root() -> None:
    size, rho = 1200, 0.1
    once = GradientOnceMechanism(clip_norm=1)
    for batches in (1, 2, 4, 12):
        mechanism = NoisyEpochsMechanism(clip_norm=1, learning_rate=0.1, epochs=3, batch_size=size // batches)
        noisy = mechanism.noise_std(rho=rho, size=size) / mechanism.signal_bound(size=size)
        plain = once.noise_std(rho=rho, size=size) / once.signal_bound(size=size)
        assert noisy / plain == pytest.approx(math.sqrt(batches))


def test_kinds_names_and_labels() -> None:
    assert {mechanism.name for mechanism in MECHANISMS} == set(MechanismName)
    assert [m.name for m in MECHANISMS if m.kind is UploadKind.GRADIENT] == [MechanismName.GRADIENT_ONCE]
    assert [m.name for m in MECHANISMS if m.heuristic] == [MechanismName.PAPER_LITERAL]
    assert [m.name for m in MECHANISMS if m.feedback] == [MechanismName.NOISY_EPOCHS]
    assert all(isinstance(mechanism, Mechanism) for mechanism in MECHANISMS)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("rho", [0.0, -1.0, math.nan, math.inf])
def test_no_budget_means_no_upload_and_no_noise_to_size(mechanism: Mechanism, rho: float) -> None:
    with pytest.raises(ImpossibleArgument, match="rho"):
        mechanism.noise_std(rho=rho, size=10)
    with pytest.raises(ImpossibleArgument, match="rho"):
        mechanism.proven_rho(rho=rho, size=10)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("size", [0, -5, 2.5, True])
def test_a_data_set_has_at_least_one_record(mechanism: Mechanism, size: int) -> None:
    for method in (mechanism.sensitivity, mechanism.noise_scale, mechanism.signal_bound):
        with pytest.raises(ImpossibleArgument, match="size"):
            method(size=size)
