"""The statistical checks of the kit, on clients that are computed here: correct ones pass, wrong ones are found."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from qidpfl_client.conformance.noise_checks import ReceivedUpdate, check_releases
from qidpfl_client.conformance.report import CheckVerdict, ConformanceReport
from qidpfl_client.conformance.scenarios import SCENARIOS

SPEC = SCENARIOS[0].spec()
RECORDS = np.loadtxt(Path(__file__).parents[4] / "docs" / "conformance" / "records.csv", delimiter=",")
SIZE = len(RECORDS)
X, Y = np.insert(RECORDS[:, :64], 64, 1.0, axis=1), np.eye(10)[RECORDS[:, 64].astype(int)]
RHOS, LABELS = (0.03, 0.025, 0.02, 0.015, 0.02, 0.015, 0.045), (3, 3, 3, 3, 7, 7, 7)
Matrix = npt.NDArray[np.float64]


def gradients(label: int) -> Matrix:
    """The gradient of every record, at the model that is certain of this label: errors times features."""
    certain = np.eye(10)[label]
    gradient: Matrix = (certain - Y)[:, :, None] * X[:, None, :]
    return gradient


def flat(gradient: Matrix) -> Matrix:
    return np.append(gradient[:, :64], gradient[:, 64])


def clipped_mean(label: int) -> Matrix:
    each = gradients(label)
    norms = np.linalg.norm(each.reshape(SIZE, -1), axis=1)
    return flat((each / np.maximum(1.0, norms)[:, None, None]).mean(axis=0))


MEANS = {label: clipped_mean(label) for label in {*LABELS, 0}}


def releases(
    seed: int,
    *,
    noise: float = 1.0,
    sign: float = 1.0,
    means: dict[int, Matrix] | None = None,
    silent: slice | None = None,
) -> list[ReceivedUpdate]:
    """The updates of a client; `silent` coordinates have no noise."""
    rng = np.random.default_rng(seed)
    found = []
    for rho, label in zip(RHOS, LABELS, strict=True):
        drawn = 2 / SIZE / np.sqrt(2 * rho) * noise * rng.standard_normal(650)
        if silent is not None:
            drawn[silent] = 0.0
        update = sign * (means or MEANS)[label] + drawn
        found.append(ReceivedUpdate(update=update, rho=rho, size=SIZE, label=label))
    return found


def verdicts(updates: list[ReceivedUpdate]) -> dict[str, CheckVerdict]:
    report = ConformanceReport()
    check_releases(report, updates, SPEC)
    return {finding.check: finding.verdict for finding in report.findings}


def test_correct_clients_pass() -> None:
    # The stated probability of a false alarm is one in a million for each check. The seeds are fixed.
    for seed in range(500):
        assert set(verdicts(releases(seed)).values()) == {CheckVerdict.HOLDS}


def test_the_energy_of_the_noise_is_chi_square() -> None:
    """The stated probability needs the distribution, not only its tails: the measured ratio has the right spread."""
    ratios = []
    for seed in range(200):
        report = ConformanceReport()
        check_releases(report, releases(seed), SPEC)
        (noise,) = [finding.detail for finding in report.findings if finding.check == "noise.size"]
        ratios.append(float(noise.split("weight: ")[1].split(" ")[0]))
    # 640 weights and 5 spare updates: 3,200 degrees of freedom, and the spread of a standard deviation is 1/√(2·3200).
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.003)
    assert np.std(ratios) == pytest.approx(1 / np.sqrt(6400), rel=0.3)


@pytest.mark.parametrize("noise", [0.0, 0.5, 0.7071, 0.9, 1.1, 2.0])
def test_wrong_noise_is_found(noise: float) -> None:
    assert all(verdicts(releases(seed, noise=noise))["noise.size"] is CheckVerdict.FAILS for seed in range(20))


@pytest.mark.parametrize("silent", [slice(0, 640), slice(640, 650)], ids=["weight", "bias"])
def test_a_tensor_without_noise_is_found(silent: slice) -> None:
    assert verdicts(releases(0, silent=silent))["noise.size"] is CheckVerdict.FAILS


def test_the_wrong_sign_is_found() -> None:
    assert all(verdicts(releases(seed, sign=-1.0))["update.sign"] is CheckVerdict.FAILS for seed in range(20))


def test_the_gradient_of_another_model_is_found() -> None:
    stale = MEANS | {7: MEANS[3]}
    found = [verdicts(releases(seed, means=stale))["update.sign"] is CheckVerdict.FAILS for seed in range(100)]
    assert np.mean(found) > 0.98


def test_an_update_without_a_gradient_is_not_judged() -> None:
    nothing = {label: np.zeros(650) for label in MEANS}
    assert verdicts(releases(0, means=nothing))["update.sign"] is CheckVerdict.NOT_CHECKED


def test_missing_clipping_is_found() -> None:
    unclipped = {label: flat(gradients(label).mean(axis=0)) for label in MEANS}
    of_the_mean = {label: mean / max(1.0, float(np.linalg.norm(mean))) for label, mean in unclipped.items()}
    summed = {label: SIZE * mean for label, mean in MEANS.items()}
    for means in (unclipped, of_the_mean, summed):
        assert all(verdicts(releases(seed, means=means))["update.clipping"] is CheckVerdict.FAILS for seed in range(20))


def test_one_update_cannot_show_its_noise() -> None:
    assert verdicts(releases(0)[:1])["noise.size"] is CheckVerdict.NOT_CHECKED
