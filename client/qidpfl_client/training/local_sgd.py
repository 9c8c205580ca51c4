"""Local training without noise: what `update_clip`, `paper_literal` and `bolt_on` add noise to the result of."""

from torch import Tensor

from qidpfl_shared.protocol.mechanism_specs import BoltOn, PaperLiteral, UpdateClip

from .batches import epoch_batches
from .flat_parameters import Walk
from .noising import Noising
from .objective import Problem
from .per_sample.clipping import clipped_update


def local_sgd(problem: Problem, mechanism: UpdateClip | PaperLiteral | BoltOn, *, release: str) -> Tensor:
    """Where the model was, minus where plain gradient steps over the batches of all epochs have taken it."""
    walk = Walk(problem.parameters)
    for epoch in range(mechanism.epochs):
        for batch in epoch_batches(size=problem.size, batch_size=mechanism.batch_size, release=release, epoch=epoch):
            walk.step(problem.mean_gradient(batch), length=mechanism.learning_rate)
    return walk.moved


def clipped_training(problem: Problem, mechanism: UpdateClip | PaperLiteral, noising: Noising) -> Tensor:
    """`update_clip` and `paper_literal`: the update, clipped as a whole, with the noise that each declares."""
    core = mechanism.build()
    update = clipped_update(local_sgd(problem, mechanism, release=noising.release), bound=core.clip_norm)
    return noising.added_to(update, std=lambda rho: core.noise_std(rho=rho, size=problem.size))
