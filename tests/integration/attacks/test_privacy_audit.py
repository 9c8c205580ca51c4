"""What draws of a release prove about its privacy: less than the ledger says, and more if the noise is halved.

`support.attacks.audit` says what the two lower bounds bound. Noise is seeded, so that a test that passes once always
passes; the long tests draw fresh noise and play every release.
"""

import numpy as np
import pytest

from qidpfl_client.noise import SystemNoise, UnsafeSeededNoise
from qidpfl_shared.core.privacy.conversion import epsilon_from_rho, rho_from_epsilon
from support.attacks.attack import Attack, measure
from support.attacks.audit import (
    PROVEN,
    HalvedNoise,
    LowerBounds,
    ReleaseDraws,
    histogram_statistics,
    lower_bounds,
    played_statistics,
    release_statistics,
    worst_release,
)
from support.attacks.canaries import GUESSES, canary_run, proven_epsilon

DELTA = 1e-5
RHO = rho_from_epsilon(epsilon=1.0, delta=DELTA)
LEDGER = epsilon_from_rho(rho=RHO, delta=DELTA)
DRAWS = 300_000
# Each histogram is a call of its own.
HISTOGRAMS = 20_000
PLAYED = 10_000
MECHANISMS = [name for name in PROVEN if name != "histogram"]
NOISE = UnsafeSeededNoise(11)


@pytest.fixture(scope="module")
def releases() -> dict[str, Attack]:
    return {mechanism: worst_release(mechanism, rho=RHO) for mechanism in MECHANISMS}


def audited(releases: dict[str, Attack], mechanism: str, *, halved: bool) -> LowerBounds:
    if mechanism == "histogram":
        drawn = histogram_statistics(rho=RHO, count=HISTOGRAMS, source=NOISE, halved=halved)
    else:
        drawn = release_statistics(releases[mechanism], count=DRAWS, source=NOISE, halved=halved)
    bounds = lower_bounds(*drawn, delta=DELTA)
    print(f"{mechanism}: ledger {LEDGER:.3f}, proven at least {bounds}{', noise halved' * halved}")
    return bounds


@pytest.mark.parametrize("mechanism", PROVEN)
def test_draws_prove_no_more_than_the_ledger_says(releases: dict[str, Attack], mechanism: str) -> None:
    bounds = audited(releases, mechanism, halved=False)
    assert 0 < bounds.direct <= LEDGER
    assert 0.3 < bounds.gaussian <= LEDGER


@pytest.mark.parametrize("mechanism", PROVEN)
def test_draws_prove_that_half_the_noise_is_too_little(releases: dict[str, Attack], mechanism: str) -> None:
    bounds = audited(releases, mechanism, halved=True)
    assert bounds.gaussian > LEDGER
    if mechanism != "histogram":
        # Without any assumption about the noise; the histogram has too few draws for that.
        assert bounds.direct > LEDGER


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_repeated_noise_is_that_of_the_release(releases: dict[str, Attack], mechanism: str) -> None:
    release = ReleaseDraws(releases[mechanism], other=False, source=NOISE)
    np.testing.assert_allclose(release.draws(3, NOISE)[0], release.released, rtol=1e-12)
    assert not np.isclose(release.draws(3, NOISE)[1:], release.released, rtol=1e-6, atol=0).any()


@pytest.mark.parametrize("mechanism", [name for name in MECHANISMS if name != "noisy_epochs"])
def test_the_audited_pair_almost_attains_the_sensitivity(releases: dict[str, Attack], mechanism: str) -> None:
    assert 0.99 < measure(releases[mechanism]).ratio <= 1


def test_canaries_of_a_whole_run_prove_no_more_than_the_ledger_says() -> None:
    run = canary_run(source=NOISE, seed=1)
    print(run)
    assert 0 < run.proven_epsilon <= run.ledger_epsilon


def test_canaries_are_found_without_noise() -> None:
    run = canary_run(source=NOISE, seed=1, rho=None)
    print(run)
    assert run.right == GUESSES
    assert run.proven_epsilon > 2


def test_random_guesses_prove_nothing() -> None:
    assert proven_epsilon(GUESSES // 2, delta=DELTA) == 0
    # 32 of 32 right guesses rule out all shares below 0.05^(1/32), for a delta of almost 0.
    assert proven_epsilon(32, delta=1e-12, guesses=32) == pytest.approx(np.log(1 / (0.05 ** (-1 / 32) - 1)), rel=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("halved", [False, True], ids=["as asked for", "halved"])
def test_played_releases_prove_the_same(releases: dict[str, Attack], mechanism: str, halved: bool) -> None:
    source = HalvedNoise(SystemNoise()) if halved else SystemNoise()
    bounds = lower_bounds(*played_statistics(releases[mechanism], count=PLAYED, source=source), delta=DELTA)
    print(f"{mechanism}: ledger {LEDGER:.3f}, proven at least {bounds}{', noise halved' * halved}")
    assert bounds.direct <= LEDGER or halved
    assert (bounds.gaussian > LEDGER) == halved
