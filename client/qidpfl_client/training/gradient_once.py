"""`gradient_once`: the mean of the clipped gradients of all records, with noise, once per round."""

from torch import Tensor

from qidpfl_shared.protocol.mechanism_specs import GradientOnce

from .noising import Noising
from .objective import Problem


def gradient_once(problem: Problem, mechanism: GradientOnce, noising: Noising) -> Tensor:
    """A gradient: the server applies its own learning rate."""
    core = mechanism.build()
    mean = problem.clipped_mean(bound=core.clip_norm)
    return noising.added_to(mean, std=lambda rho: core.noise_std(rho=rho, size=problem.size))
