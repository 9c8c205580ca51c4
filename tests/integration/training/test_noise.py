"""The noise of every mechanism is the declared one: Gaussian, of the core's deviation, fresh and independent.

What is looked at is the release minus the same release without noise, over the deviation that the core asks for.
Tolerances: estimates may be five and a half of their own standard deviations off, Kolmogorov-Smirnov must not find
less than 1e-7. Noise is seeded, so that a test that passes once always passes; one test draws real noise.
"""

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats
from torch import nn

from qidpfl_client.noise import NoiseSource, Normals, SystemNoise, UnsafeSeededNoise
from qidpfl_client.training.trainer import Trainer
from qidpfl_shared.core.arguments import Vector
from qidpfl_shared.core.privacy.mechanisms import batch_sizes
from qidpfl_shared.protocol.mechanism_specs import MechanismSpec, NoisyEpochs
from support.training.cases import BATCH, CLIP, EPOCHS, MECHANISMS, RATE, random_records, records_of, trainer_of, upload

DEVIATIONS = 5.5
LEAST_PROBABILITY = 1e-7
SIZE = 21
WIDTH = 400
LABELS = 10
RHO = 0.02
ROUNDS = 4
MODEL = np.zeros(WIDTH * LABELS)


def still_trainer(size: int = SIZE) -> Trainer:
    """Records without features: no gradient ever moves, so that a release is its noise, in `noisy_epochs` too."""
    return trainer_of(nn.Linear(WIDTH, LABELS, bias=False), records_of(np.zeros((size, WIDTH)), np.zeros(size)))


def scaled_noise(mechanism: MechanismSpec, *, noise: NoiseSource, rho: float | None = RHO, size: int = SIZE) -> Vector:
    """What several rounds added, a row for each, over the deviation that the budget asks for."""
    trainer = still_trainer(size)
    std = mechanism.build().noise_std(rho=RHO, size=size)
    exact = upload(trainer, mechanism, MODEL)
    rounds = [
        upload(trainer, mechanism, MODEL, rho=rho, noise=noise, name=f"round {number}") for number in range(ROUNDS)
    ]
    return (np.stack(rounds) - exact) / std


def faults(rows: Vector) -> list[str]:
    """What tells these rows from independent rows of independent standard normal values."""
    values = rows.ravel()
    allowed = DEVIATIONS / np.sqrt(values.size)
    covariances = rows @ rows.T / rows.shape[1]
    between = np.abs(covariances - np.diag(np.diag(covariances))).max()
    found = {
        "mean": abs(values.mean()) > allowed,
        "deviation": abs(values.std() - 1) > allowed / np.sqrt(2),
        "shape": stats.kstest(values, "norm").pvalue < LEAST_PROBABILITY,
        "coordinates": abs(np.mean(rows[:, 1:] * rows[:, :-1])) > allowed * 1.01,
        "rounds": between > DEVIATIONS / np.sqrt(rows.shape[1]),
    }
    return [name for name, wrong in found.items() if wrong]


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("noise", [UnsafeSeededNoise(5), SystemNoise()], ids=["seeded", "system"])
def test_the_noise_is_what_the_budget_asks_for(name: str, noise: NoiseSource) -> None:
    assert faults(scaled_noise(MECHANISMS[name], noise=noise)) == []


@pytest.mark.parametrize("name", MECHANISMS)
def test_fewer_records_than_a_batch_need_more_noise(name: str) -> None:
    assert faults(scaled_noise(MECHANISMS[name], noise=UnsafeSeededNoise(5), size=BATCH // 2)) == []


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_check_finds_noise_that_was_left_out(name: str) -> None:
    assert "deviation" in faults(scaled_noise(MECHANISMS[name], noise=UnsafeSeededNoise(5), rho=None))


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_check_finds_noise_of_another_budget(name: str) -> None:
    assert "deviation" in faults(scaled_noise(MECHANISMS[name], noise=UnsafeSeededNoise(5), rho=1.1 * RHO))


class SameEveryRound:
    """Noise that is drawn once and used again."""

    def standard_normal(self, count: int, *, release: str) -> Normals:
        return UnsafeSeededNoise(5).standard_normal(count, release="the only one")


class OneForAll:
    """One draw for all coordinates."""

    def standard_normal(self, count: int, *, release: str) -> Normals:
        return np.repeat(UnsafeSeededNoise(5).standard_normal(1, release=release), count)


@pytest.mark.parametrize(("noise", "fault"), [(SameEveryRound(), "rounds"), (OneForAll(), "coordinates")])
@pytest.mark.parametrize("name", MECHANISMS)
def test_the_check_finds_noise_that_is_not_independent(name: str, noise: NoiseSource, fault: str) -> None:
    assert fault in faults(scaled_noise(MECHANISMS[name], noise=noise))


def test_every_step_of_noisy_epochs_has_noise_of_its_own() -> None:
    asked: list[tuple[int, str]] = []

    class Noted:
        def standard_normal(self, count: int, *, release: str) -> Normals:
            asked.append((count, release))
            return np.ones(count)

    mechanism = MECHANISMS["noisy_epochs"]
    released = upload(still_trainer(), mechanism, MODEL, rho=RHO, noise=Noted())
    lengths = batch_sizes(size=SIZE, batch_size=BATCH) * EPOCHS
    assert [count for count, _ in asked] == [WIDTH * LABELS] * len(lengths)
    assert len({release for _, release in asked}) == len(lengths)
    # The deviation of a step follows from its own batch: sqrt(2L/rho)·C/b.
    expected = sum(RATE * np.sqrt(2 * EPOCHS / RHO) * CLIP / length for length in lengths)
    np.testing.assert_allclose(released, expected, rtol=1e-12)


def test_noise_of_an_early_step_changes_the_gradients_of_later_ones() -> None:
    records = random_records(SIZE, 6, 3)
    mechanism = NoisyEpochs(clip_norm=1.0, learning_rate=1.0, epochs=2, batch_size=10)
    trainer = trainer_of(nn.Linear(6, 3), records)
    exact = upload(trainer, mechanism, np.zeros(21))

    class OnlyTheFirstStep:
        def standard_normal(self, count: int, *, release: str) -> Normals:
            return np.arange(count, dtype=np.float64) * ("epoch 0/batch 0" in release)

    first = mechanism.build().step_noise_std(rho=1.0, batch=11) * np.arange(21)
    moved = upload(trainer, mechanism, np.zeros(21), rho=1.0, noise=OnlyTheFirstStep()) - exact
    assert np.abs(moved - first).max() > 1e-3


@pytest.mark.parametrize("name", MECHANISMS)
def test_seeded_releases_repeat_and_others_do_not(name: str) -> None:
    trainer = trainer_of(nn.Linear(6, 3), random_records(SIZE, 6, 3))
    release: Callable[..., Vector] = lambda **options: upload(  # noqa: E731
        trainer, MECHANISMS[name], np.zeros(21), rho=RHO, **options
    )
    first = release(noise=UnsafeSeededNoise(1))
    np.testing.assert_array_equal(first, release(noise=UnsafeSeededNoise(1)))
    assert not np.isclose(first, release(noise=UnsafeSeededNoise(2)), rtol=1e-9).any()
    assert not np.isclose(first, release(noise=UnsafeSeededNoise(1), name="round 2"), rtol=1e-9).any()
    assert not np.isclose(release(noise=SystemNoise()), release(noise=SystemNoise()), rtol=1e-9).any()
