"""`bolt_on`: local training of softmax regression, whose convexity alone bounds what one record can change."""

import torch
from torch import Tensor

from qidpfl_shared.protocol.mechanism_specs import BoltOn

from ..errors import ClientError
from .local_sgd import local_sgd
from .noising import Noising
from .objective import Problem

# Below this norm no record's scores overflow in float32, so that an overflow cannot say anything about a record.
_LARGEST_MODEL = 1e15
_AGREEMENT = 1e-4


def bolt_on(problem: Problem, mechanism: BoltOn, noising: Noising) -> Tensor:
    """A finished update on bounded features. Gradients are not clipped: that would break the proof."""
    core = mechanism.build()
    if float(torch.linalg.vector_norm(problem.parameters.vector)) > _LARGEST_MODEL:
        raise ClientError(f"bolt_on: the model's norm exceeds {_LARGEST_MODEL:g}, beyond which its proof fails")
    update = local_sgd(problem, mechanism, release=noising.release)
    return noising.added_to(update, std=lambda rho: core.noise_std(rho=rho, size=problem.size))


def check_softmax_regression(problem: Problem) -> None:
    """Refuse a network that is not, for any parameters, the records' features times a matrix, plus a bias."""
    weight, *biases = problem.parameters.tensors
    if weight.ndim != 2 or [tuple(bias.shape) for bias in biases] not in ([], [(len(weight),)]):
        raise ClientError("bolt_on is proven for softmax regression only: one matrix, and a bias or none")
    inputs = problem.examples().inputs.flatten(1)
    given = problem.parameters.vector.clone()
    # Any model will do that has no symmetry; the one given may be zero.
    problem.parameters.vector.copy_(torch.linspace(-1, 1, given.numel()).sin())
    with torch.no_grad():
        answers = problem.network(problem.examples().inputs)
        fits = inputs.shape[1] == weight.shape[1]
        same = fits and torch.allclose(answers, inputs @ weight.T + sum(biases), rtol=_AGREEMENT, atol=_AGREEMENT)
    problem.parameters.vector.copy_(given)
    if not same:
        raise ClientError("bolt_on is proven for softmax regression only: this network computes something else")
