"""The mechanisms: each one computes the vector that a client uploads in a round, with its noise."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from qidpfl_shared.core.privacy.mechanisms import NoisyEpochsMechanism
from qidpfl_shared.protocol.mechanism_specs import BoltOn, GradientOnce, NoisyEpochs, PaperLiteral, UpdateClip

from ..errors import ClientError
from ..noise import NoiseSource
from .data_loader import epoch_batches
from .flat_parameters import LocalUpdate
from .objective import Objective
from .per_sample.clipping import clipped_update

# Below this norm no score of any record overflows in float32. An overflow would reveal something about a record.
_LARGEST_MODEL_NORM = 1e15
_TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True)
class ReleaseNoise:
    """The noise of one release, for a declared budget; `rho` None means no noise."""

    source: NoiseSource
    rho: float | None
    release: str

    def add_to(self, values: Tensor, *, std: Callable[[float], float], part: str = "") -> Tensor:
        """The values plus fresh noise, in float64 on the CPU. `std` gives the standard deviation for a budget."""
        if self.rho is None:
            return values
        draws = self.source.standard_normal(values.numel(), release=f"{self.release}{part}")
        draws *= std(self.rho)
        return values.to("cpu", torch.float64) + torch.from_numpy(draws)


def gradient_once(objective: Objective, mechanism: GradientOnce, noise: ReleaseNoise) -> Tensor:
    """`gradient_once`: the mean of the clipped gradients of all records, with noise.

    The result is a gradient: the server applies its own learning rate.
    """
    core = mechanism.build()
    mean = objective.clipped_mean(bound=core.clip_norm)
    return noise.add_to(mean, std=lambda rho: core.noise_std(rho=rho, size=objective.size))


def noisy_epochs(objective: Objective, mechanism: NoisyEpochs, noise: ReleaseNoise) -> Tensor:
    """`noisy_epochs`: local epochs over disjoint batches, with noise on the clipped mean gradient of each batch.

    The result is an update: the start model minus the model after the noisy steps.
    """
    core = mechanism.build()
    update = LocalUpdate(objective.parameters)
    for epoch in range(core.epochs):
        batches = epoch_batches(size=objective.size, batch_size=core.batch_size, release=noise.release, epoch=epoch)
        for number, batch in enumerate(batches):
            mean = objective.clipped_mean(batch, bound=core.clip_norm)
            std = partial(_step_std, core, batch=len(batch))
            step = noise.add_to(mean, std=std, part=f"/epoch {epoch}/batch {number}")
            update.step(step, length=core.learning_rate)
    return update.total


def _step_std(core: NoisyEpochsMechanism, rho: float, *, batch: int) -> float:
    return core.step_noise_std(rho=rho, batch=batch)


def clipped_training(objective: Objective, mechanism: UpdateClip | PaperLiteral, noise: ReleaseNoise) -> Tensor:
    """`update_clip` and `paper_literal`: local training, its update clipped as a whole, then noise."""
    core = mechanism.build()
    update = clipped_update(_local_sgd(objective, mechanism, release=noise.release), bound=core.clip_norm)
    return noise.add_to(update, std=lambda rho: core.noise_std(rho=rho, size=objective.size))


def bolt_on(objective: Objective, mechanism: BoltOn, noise: ReleaseNoise) -> Tensor:
    """`bolt_on`: local training of softmax regression on bounded features, then noise.

    Convexity alone bounds what one record can change. Gradients are not clipped: that would break the proof.
    """
    core = mechanism.build()
    if float(torch.linalg.vector_norm(objective.parameters.vector)) > _LARGEST_MODEL_NORM:
        raise ClientError(f"bolt_on: the model's norm exceeds {_LARGEST_MODEL_NORM:g}, beyond which its proof fails")
    update = _local_sgd(objective, mechanism, release=noise.release)
    return noise.add_to(update, std=lambda rho: core.noise_std(rho=rho, size=objective.size))


def check_softmax_regression(objective: Objective) -> None:
    """Refuse a network that does not compute features times a matrix, plus a bias, for all parameters."""
    weight, *biases = objective.parameters.tensors
    if weight.ndim != 2 or [tuple(bias.shape) for bias in biases] not in ([], [(len(weight),)]):
        raise ClientError("bolt_on is proven for softmax regression only: one matrix, and a bias or none")
    inputs = objective.examples().inputs.flatten(1)
    given = objective.parameters.vector.clone()
    # The check uses a model without symmetry, because the given one may be zero.
    objective.parameters.vector.copy_(torch.linspace(-1, 1, given.numel()).sin())
    with torch.no_grad():
        answers = objective.network(objective.examples().inputs)
        fits = inputs.shape[1] == weight.shape[1]
        same = fits and torch.allclose(answers, inputs @ weight.T + sum(biases), rtol=_TOLERANCE, atol=_TOLERANCE)
    objective.parameters.vector.copy_(given)
    if not same:
        raise ClientError("bolt_on is proven for softmax regression only: this network computes something else")


def _local_sgd(objective: Objective, mechanism: UpdateClip | PaperLiteral | BoltOn, *, release: str) -> Tensor:
    """The start model minus the model after plain gradient steps over the batches of all epochs; without noise."""
    update = LocalUpdate(objective.parameters)
    for epoch in range(mechanism.epochs):
        for batch in epoch_batches(size=objective.size, batch_size=mechanism.batch_size, release=release, epoch=epoch):
            update.step(objective.mean_gradient(batch), length=mechanism.learning_rate)
    return update.total
