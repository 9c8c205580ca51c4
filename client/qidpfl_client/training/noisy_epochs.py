"""`noisy_epochs`: local epochs over disjoint batches, with noise on the clipped mean gradient of every batch."""

from functools import partial

from torch import Tensor

from qidpfl_shared.core.privacy.mechanisms import NoisyEpochsMechanism
from qidpfl_shared.protocol.mechanism_specs import NoisyEpochs

from .batches import epoch_batches
from .flat_parameters import Walk
from .noising import Noising
from .objective import Problem


def noisy_epochs(problem: Problem, mechanism: NoisyEpochs, noising: Noising) -> Tensor:
    """A finished update: where the model was, minus where the noisy steps have taken it."""
    core = mechanism.build()
    walk = Walk(problem.parameters)
    for epoch in range(core.epochs):
        batches = epoch_batches(size=problem.size, batch_size=core.batch_size, release=noising.release, epoch=epoch)
        for number, batch in enumerate(batches):
            mean = problem.clipped_mean(batch, bound=core.clip_norm)
            std = partial(_step_std, core, batch=len(batch))
            walk.step(noising.added_to(mean, std=std, part=f"/epoch {epoch}/batch {number}"), length=core.learning_rate)
    return walk.moved


def _step_std(core: NoisyEpochsMechanism, rho: float, *, batch: int) -> float:
    return core.step_noise_std(rho=rho, batch=batch)
