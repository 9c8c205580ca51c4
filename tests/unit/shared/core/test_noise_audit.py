"""The noise audit: false accusations stay below alpha for every admissible signal, and real cheats are seen."""

import math

import numpy as np
import pytest

from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.noise_audit import (
    NoiseAudit,
    NoiseVerdict,
    RoundMoments,
    alignment,
    alpha_per_upload,
    noise_ratio,
)
from qidpfl_shared.core.privacy.mechanisms import (
    GradientOnceMechanism,
    Mechanism,
    NoisyEpochsMechanism,
    UpdateClipMechanism,
)

ONCE = GradientOnceMechanism(clip_norm=1.0)
ACCUSED = (NoiseVerdict.TOO_LITTLE_NOISE, NoiseVerdict.TOO_MUCH_NOISE)


def audit(rho: float, size: int, dimension: int, alpha: float = 1e-3, mechanism: Mechanism = ONCE) -> NoiseAudit:
    return NoiseAudit.of_upload(mechanism=mechanism, rho=rho, size=size, dimension=dimension, alpha=alpha)


def energies(test: NoiseAudit, *, signal: float, factor: float, draws: int, seed: int) -> np.ndarray:
    """Squared norms of simulated uploads: a signal of that part of the bound plus noise of that factor."""
    rng = np.random.default_rng(seed)
    uploads = factor * test.noise_std * rng.standard_normal((draws, test.dimension))
    uploads[:, 0] += signal * test.signal_bound
    squares: np.ndarray = np.sum(uploads**2, axis=1)
    return squares


@pytest.mark.parametrize("signal", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize(
    ("rho", "size", "dimension"), [(0.05, 140, 650), (0.1, 600, 50), (1e-4, 100, 20), (2.0, 300, 5)]
)
def test_honest_uploads_are_accused_at_most_alpha_of_the_time(
    signal: float, rho: float, size: int, dimension: int
) -> None:
    alpha, draws = 0.05, 4000
    test = audit(rho, size, dimension, alpha)
    found = energies(test, signal=signal, factor=1, draws=draws, seed=dimension)
    accused = np.mean((found < test.lower) | (found > test.upper))
    # Four standard deviations of the estimate above the stated rate.
    assert accused <= alpha + 4 * math.sqrt(alpha * (1 - alpha) / draws)


def test_the_rate_is_used_up_where_the_signal_is_at_its_bounds() -> None:
    test = audit(0.05, 140, 650, alpha=0.1)
    quiet = energies(test, signal=0, factor=1, draws=5000, seed=1)
    loud = energies(test, signal=1, factor=1, draws=5000, seed=2)
    assert np.mean(quiet < test.lower) == pytest.approx(0.05, abs=0.0125)
    assert np.mean(loud > test.upper) == pytest.approx(0.05, abs=0.0125)


@pytest.mark.parametrize(
    ("dimension", "size", "rho", "factor", "signal", "power"),
    [
        (7850, 600, 0.01, 0, 0.9, 1.0),
        (7850, 600, 0.01, 1.5, 0.0, 1.0),
        (7850, 600, 0.1, 0, 0.3, 1.0),
        (7850, 600, 0.1, 0, 0.9, 0.0),
        (7850, 600, 0.1, 1.5, 0.3, 0.0),
        (7850, 600, 0.1, 1.5, 0.9, 1.0),
        (7850, 3000, 0.01, 2, 0.3, 0.0),
        (7850, 3000, 0.01, 2, 0.9, 1.0),
        (7850, 6000, 0.01, 0, 0.0, 1.0),
        (7850, 6000, 0.01, 0, 0.3, 0.0),
        (61706, 1000, 0.1, 1.5, 0.0, 1.0),
    ],
)
def test_the_power_is_as_tabulated(
    dimension: int, size: int, rho: float, factor: float, signal: float, power: float
) -> None:
    test = audit(rho, size, dimension)
    assert test.power(noise_factor=factor, signal_fraction=signal) == pytest.approx(power, abs=0.01)


@pytest.mark.parametrize(("factor", "signal"), [(0.9, 0.5), (1.1, 0.0), (1.1, 1.0), (1.3, 0.2)])
def test_the_power_is_what_simulation_shows(factor: float, signal: float) -> None:
    test = audit(0.05, 140, 300, alpha=0.05)
    found = energies(test, signal=signal, factor=factor, draws=4000, seed=3)
    caught = np.mean((found < test.lower) | (found > test.upper))
    assert test.power(noise_factor=factor, signal_fraction=signal) == pytest.approx(caught, abs=0.03)


def test_verdicts_name_what_was_found() -> None:
    test = audit(0.01, 600, 7850)
    honest = energies(test, signal=0.5, factor=1, draws=1, seed=0)[0]
    assert test.verdict(squared_norm=honest) is NoiseVerdict.CONSISTENT
    assert test.verdict(squared_norm=0.25) is NoiseVerdict.TOO_LITTLE_NOISE
    assert test.verdict(squared_norm=4 * honest) is NoiseVerdict.TOO_MUCH_NOISE


def test_no_verdict_is_given_if_the_signal_can_hide_the_noise() -> None:
    test = audit(0.01, 6000, 7850)
    assert not test.decisive
    honest = energies(test, signal=0.5, factor=1, draws=1, seed=0)[0]
    assert test.verdict(squared_norm=honest) is NoiseVerdict.UNDECIDABLE
    assert test.verdict(squared_norm=0.0) is NoiseVerdict.TOO_LITTLE_NOISE


def test_update_clip_is_always_decidable_at_real_sizes() -> None:
    assert audit(0.01, 100_000, 650, mechanism=UpdateClipMechanism(clip_norm=1.0)).decisive


def noisy_epochs_upload(
    mechanism: NoisyEpochsMechanism, *, rho: float, size: int, dimension: int, seed: int
) -> np.ndarray:
    """Local training whose signal runs after its own noise as hard as clipping allows: the worst kind of feedback."""
    rng = np.random.default_rng(seed)
    w = np.zeros(dimension)
    for _ in range(mechanism.epochs):
        step_std = mechanism.step_noise_std(rho=rho, batch=size)
        norm = np.linalg.norm(w)
        gradient = -w / norm * mechanism.clip_norm if norm > 0 else np.zeros(dimension)
        w = w - mechanism.learning_rate * (gradient + step_std * rng.standard_normal(dimension))
    return w


def test_feedback_of_noise_into_the_signal_accuses_no_client() -> None:
    mechanism = NoisyEpochsMechanism(clip_norm=1.0, learning_rate=0.1, epochs=5, batch_size=200)
    test = audit(0.05, 200, 300, alpha=0.05, mechanism=mechanism)
    assert test.feedback
    uploads = [noisy_epochs_upload(mechanism, rho=0.05, size=200, dimension=300, seed=seed) for seed in range(400)]
    found = np.array([upload @ upload for upload in uploads])
    assert np.mean((found < test.lower) | (found > test.upper)) <= 0.05
    plain = NoiseAudit(
        dimension=300, noise_std=test.noise_std, signal_bound=test.signal_bound, alpha=0.05, feedback=False
    )
    assert test.lower < plain.lower
    assert test.upper > plain.upper


def test_with_feedback_the_power_is_a_promise() -> None:
    mechanism = NoisyEpochsMechanism(clip_norm=1.0, learning_rate=0.1, epochs=1, batch_size=50)
    test = audit(0.01, 50, 5000, mechanism=mechanism)
    assert test.decisive
    assert test.power(noise_factor=2.0, signal_fraction=1.0) == pytest.approx(1)
    assert test.power(noise_factor=0.0, signal_fraction=1.0) == 1
    assert not audit(1.0, 5000, 10, mechanism=mechanism).decisive


def test_large_models_use_the_normal_approximation_without_a_jump() -> None:
    below, above = audit(1e-9, 10, 199_999), audit(1e-9, 10, 200_001)
    assert above.lower / below.lower == pytest.approx(1, rel=1e-3)
    assert above.upper / below.upper == pytest.approx(1, rel=1e-3)
    large = audit(1e-3, 1000, 10_000_000, alpha=1e-6)
    assert large.verdict(squared_norm=large.noise_std**2 * 10_000_000) is NoiseVerdict.CONSISTENT


def test_alpha_is_shared_out_over_the_uploads_of_a_task() -> None:
    assert alpha_per_upload(alpha=1e-3, clients=20, rounds=30) == pytest.approx(1e-3 / 600)


def moments(uploads: np.ndarray) -> RoundMoments:
    total = uploads.sum(axis=0)
    return RoundMoments(
        squared_norms=np.sum(uploads**2, axis=1), sum_products=uploads @ total, sum_squared_norm=float(total @ total)
    )


def test_the_plug_in_estimate_sees_the_noise_through_a_shared_signal() -> None:
    rng = np.random.default_rng(0)
    dimension, std = 5000, 0.02
    signal = rng.standard_normal(dimension)
    signal /= np.linalg.norm(signal)
    factors = np.array([1, 1, 1, 1, 1, 1, 2.0, 0.0])
    uploads = 0.8 * signal + std * factors[:, None] * rng.standard_normal((8, dimension))
    estimate = noise_ratio(moments=moments(uploads), dimension=dimension, noise_stds=[std] * 8)
    assert estimate[:6] == pytest.approx([1] * 6, abs=0.2)
    assert estimate[6] == pytest.approx(4, abs=0.4)
    assert estimate[7] == pytest.approx(0, abs=0.2)
    by_hand = np.mean([uploads[j] @ uploads[k] for j in range(1, 8) for k in range(1, 8) if j != k])
    assert estimate[0] == pytest.approx((uploads[0] @ uploads[0] - by_hand) / (dimension * std**2))


def test_two_uploads_estimate_nothing() -> None:
    assert np.isnan(noise_ratio(moments=moments(np.ones((2, 3))), dimension=3, noise_stds=[1, 1])).all()


def test_a_free_rider_does_not_align_with_the_others() -> None:
    rng = np.random.default_rng(1)
    dimension, std = 5000, 0.02
    signal = np.ones(dimension) / math.sqrt(dimension)
    uploads = signal + std * rng.standard_normal((6, dimension))
    uploads[5] -= signal
    scores = alignment(moments=moments(uploads), dimension=dimension)
    assert (scores[:5] > 10).all()
    assert abs(scores[5]) < 4


@pytest.mark.parametrize(
    "broken",
    [
        {"dimension": 0},
        {"noise_std": 0.0},
        {"noise_std": math.nan},
        {"signal_bound": -1.0},
        {"alpha": 0.0},
        {"alpha": 1.0},
    ],
)
def test_impossible_audits_are_refused(broken: dict[str, float]) -> None:
    arguments: dict[str, float] = {"dimension": 10, "noise_std": 1.0, "signal_bound": 1.0, "alpha": 0.01}
    with pytest.raises(ImpossibleArgument, match=next(iter(broken))):
        NoiseAudit(**(arguments | broken))  # type: ignore[arg-type]
