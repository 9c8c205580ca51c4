"""A program that trains by itself: what the client makes of the model that it returns."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qidpfl_client.errors import ClientError, Misconfigured
from qidpfl_client.noise import UnsafeSeededNoise
from qidpfl_client.participant.program import ProgramData, ProgramLearner, ProgramRecords
from qidpfl_shared.core.privacy.rounding import SLACK
from qidpfl_shared.protocol.mechanism_specs import GradientOnce, NoisyEpochs, PaperLiteral, UpdateClip
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.wire import Vector32

CLIP_NORM = 0.5
TRAINING: dict[str, Any] = {"learning_rate": 0.1, "batch_size": 16}
CLIPPED = UpdateClip(clip_norm=CLIP_NORM, **TRAINING)
MODEL = np.random.default_rng(4).standard_normal(650).astype(np.float32)
RECORDS = ProgramRecords(label_counts=np.full(10, 11), fingerprint="these records")
NOISE = UnsafeSeededNoise(seed=1)


@dataclass
class Program:
    """Applies a function to the model that it gets, and keeps what it was told."""

    change: Callable[[Vector32], npt.NDArray[Any]]
    told: tuple[int, float | None] | None = None

    def train(self, model: Vector32, *, round_number: int, rho: float | None) -> npt.NDArray[Any]:
        self.told = round_number, rho
        return self.change(model)


def opened(change: Callable[[Vector32], npt.NDArray[Any]], mechanism: Any = CLIPPED, **fields: Any) -> ProgramLearner:
    privacy = {"mechanism": mechanism.model_dump(), "noise": fields.pop("noise", True)}
    step = {"learning_rate": 1.0, "momentum": 0.0}
    game = {} if privacy["noise"] else {"game": {"policy": "none"}}
    spec = preset("digits", {"privacy": privacy, "aggregation": step} | game)
    return ProgramData(spec=spec, program=Program(change), records=RECORDS, **fields).learner(0)


def upload(learner: ProgramLearner, *, rho: float | None = 2.0) -> npt.NDArray[np.float64]:
    privacy = learner.data.spec.privacy
    return learner.release(privacy=privacy, model=MODEL, rho=rho, noise=NOISE, name="round/3")


def test_an_update_is_the_sent_minus_the_returned_parameters() -> None:
    """The coordinator subtracts an update: without clipping and noise the next model is the returned one."""
    step = np.linspace(-0.01, 0.01, MODEL.size)
    learner = opened(lambda model: model + step, noise=False)
    assert np.linalg.norm(step) < CLIP_NORM
    np.testing.assert_allclose(MODEL - upload(learner, rho=None), MODEL + step, atol=1e-9)


@pytest.mark.parametrize("returned", ["float32", "float64"])
def test_a_large_update_is_clipped_as_a_whole(returned: str) -> None:
    learner = opened(lambda model: (model + 3.0).astype(returned), noise=False)
    update = upload(learner, rho=None)
    assert np.linalg.norm(update) == pytest.approx(CLIP_NORM * (1 - SLACK), rel=1e-9)
    assert np.ptp(update) < 1e-6 and update[0] < 0


@pytest.mark.parametrize("mechanism", [CLIPPED, PaperLiteral(clip_norm=CLIP_NORM, **TRAINING)])
def test_the_noise_is_that_of_the_mechanism(mechanism: Any) -> None:
    learner = opened(lambda model: model + 3.0, mechanism)
    drawn = upload(learner) - upload(opened(lambda model: model + 3.0, mechanism, noise=False), rho=None)
    std = mechanism.build().noise_std(rho=2.0, size=110)
    assert np.std(drawn) == pytest.approx(std, rel=0.1)
    expected = std * NOISE.standard_normal(650, release="round/3")
    np.testing.assert_allclose(drawn, expected, atol=1e-9 * std)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_a_model_without_a_finite_norm_counts_as_no_change(bad: float) -> None:
    """An error would tell the coordinator something about the records."""
    learner = opened(lambda model: np.full(model.shape, bad), noise=False)
    assert not upload(learner, rho=None).any()


def test_a_program_cannot_change_the_model_of_the_client() -> None:
    def in_place(model: Vector32) -> npt.NDArray[Any]:
        model += 0.001
        return model

    assert upload(opened(in_place, noise=False), rho=None) == pytest.approx(-0.001, rel=1e-3)


def test_claimed_noise_is_sent_as_the_program_returned_it() -> None:
    mechanism = NoisyEpochs(clip_norm=CLIP_NORM, **TRAINING)
    learner = opened(lambda model: model + 3.0, mechanism, claimed=True)
    np.testing.assert_allclose(upload(learner), -3.0, atol=1e-6)
    assert isinstance(learner.data.program, Program) and learner.data.program.told == (3, 2.0)
    assert learner.claimed and learner.size == 110 and learner.fingerprint == "these records"


def test_a_claimed_update_must_be_finite() -> None:
    with pytest.raises(ClientError, match="NaN or infinite"):
        upload(opened(lambda model: model * np.nan, claimed=True))


@pytest.mark.parametrize("returned", [np.zeros(649), np.zeros(650, dtype=np.int64), np.zeros((650, 1))])
def test_what_is_not_a_model_of_the_task_is_refused(returned: npt.NDArray[Any]) -> None:
    with pytest.raises(ClientError, match="not floats of shape"):
        upload(opened(lambda _: returned))


def test_noise_and_budget_go_together() -> None:
    with pytest.raises(ClientError, match="needs a budget"):
        upload(opened(lambda model: model), rho=None)


@pytest.mark.parametrize("mechanism", [GradientOnce(clip_norm=1.0), NoisyEpochs(clip_norm=1.0, **TRAINING)])
def test_a_mechanism_that_bounds_every_step_is_refused(mechanism: Any) -> None:
    with pytest.raises(Misconfigured, match="takes part in tasks with update_clip"):
        opened(lambda model: model, mechanism)


def test_a_program_cannot_claim_to_upload_gradients() -> None:
    with pytest.raises(Misconfigured, match="uploads gradients"):
        opened(lambda model: model, GradientOnce(clip_norm=1.0), claimed=True)
