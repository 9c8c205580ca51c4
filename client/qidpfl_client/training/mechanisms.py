"""The mechanisms: each one computes the vector that a client uploads in a round, with its noise."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from qidpfl_shared.core.privacy.discrete_gaussian import grid_slack
from qidpfl_shared.core.privacy.mechanisms import NoisyEpochsMechanism, batch_sizes
from qidpfl_shared.core.privacy.rounding import SLACK, clipped_update_slack
from qidpfl_shared.protocol.mechanism_specs import BoltOn, GradientOnce, NoisyEpochs, PaperLiteral, UpdateClip

from ..errors import ClientError
from ..noise import NoiseSource, noised
from .data_loader import epoch_batches
from .flat_parameters import LocalUpdate
from .objective import Objective
from .per_sample.clipping import clipped_update
from .softmax_regression import SoftmaxRegression


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
        exact = values.to("cpu", torch.float64).numpy()
        return torch.from_numpy(noised(exact, std=std(self.rho), source=self.source, release=f"{self.release}{part}"))

    def slack(self, *, dimension: int, parts: int = 1) -> float:
        """The slack for the grid of the noise, if the budget is divided among `parts` additions of noise."""
        return 0.0 if self.rho is None else grid_slack(dimension=dimension, rho=self.rho / parts)


def gradient_once(objective: Objective, mechanism: GradientOnce, noise: ReleaseNoise) -> Tensor:
    """`gradient_once`: the mean of the clipped gradients of all records, with noise.

    The result is a gradient: the server applies its own learning rate.
    """
    core = mechanism.build()
    _require_slack(objective.rounding_slack(size=objective.size), noise.slack(dimension=objective.dimension))
    mean = objective.clipped_mean(bound=core.clip_norm)
    return noise.add_to(mean, std=lambda rho: core.noise_std(rho=rho, size=objective.size))


def noisy_epochs(objective: Objective, mechanism: NoisyEpochs, noise: ReleaseNoise) -> Tensor:
    """`noisy_epochs`: local epochs over disjoint batches, with noise on the clipped mean gradient of each batch.

    The result is an update: the start model minus the model after the noisy steps.
    """
    core = mechanism.build()
    largest = max(batch_sizes(size=objective.size, batch_size=core.batch_size))
    _require_slack(
        objective.rounding_slack(size=largest), noise.slack(dimension=objective.dimension, parts=core.epochs)
    )
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
    _require_clipping_slack(objective.dimension, noise)
    return clipped_with_noise(
        _local_sgd(objective, mechanism, release=noise.release), mechanism, noise, size=objective.size
    )


def clipped_with_noise(
    update: Tensor, mechanism: UpdateClip | PaperLiteral, noise: ReleaseNoise, *, size: int
) -> Tensor:
    """An update of any local training of `size` records in float64, clipped as a whole, then noise.

    An update that is not finite counts as zero.
    """
    _require_clipping_slack(update.numel(), noise)
    core = mechanism.build()
    clipped = clipped_update(update, bound=core.clip_norm)
    return noise.add_to(clipped, std=lambda rho: core.noise_std(rho=rho, size=size))


def _require_clipping_slack(dimension: int, noise: ReleaseNoise) -> None:
    _require_slack(clipped_update_slack(dimension=dimension), noise.slack(dimension=dimension))


def bolt_on(regression: SoftmaxRegression, mechanism: BoltOn, noise: ReleaseNoise) -> Tensor:
    """`bolt_on`: local training of softmax regression on bounded features, then noise.

    Convexity alone bounds what one record can change. Gradients are not clipped: that would break the proof.
    """
    core, objective = mechanism.build(), regression.objective
    regression.check_rounding(core, slack=noise.slack(dimension=objective.dimension))
    update = regression.update(core, release=noise.release)
    return noise.add_to(update, std=lambda rho: core.noise_std(rho=rho, size=objective.size))


def _local_sgd(objective: Objective, mechanism: UpdateClip | PaperLiteral, *, release: str) -> Tensor:
    """The start model minus the model after plain gradient steps over the batches of all epochs; without noise."""
    update = LocalUpdate(objective.parameters)
    for epoch in range(mechanism.epochs):
        for batch in epoch_batches(size=objective.size, batch_size=mechanism.batch_size, release=release, epoch=epoch):
            update.step(objective.mean_gradient(batch), length=mechanism.learning_rate)
    return update.total


def _require_slack(*slacks: float) -> None:
    """Refuse a release for which the proof leaves no room for rounding. Only public numbers decide this."""
    if sum(slacks) > SLACK:
        raise ClientError(
            "the task has too many records or parameters, or too small a budget, for its guarantee to survive rounding"
        )
