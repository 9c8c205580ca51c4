"""Clipping of the gradient of each record, and of an update as a whole.

The norm is that of all parameters together. A vector without a finite norm counts as zero, so that even a hostile
model cannot make a record contribute more than the bound.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..devices import wide_dtype
from ..flat_parameters import FlatParameters
from .chunk_size import advised_chunk, bytes_kept
from .functional import gradients_by_vmap, gradients_one_by_one
from .gradients import Contribution
from .hooks import gradients_by_hooks

Contributions = list[Contribution | None]
Method = Callable[[nn.Module, Tensor, Tensor], Contributions | None]

# The fastest method first; the last one is the definition.
METHODS: tuple[Method, ...] = (gradients_by_hooks, gradients_by_vmap, gradients_one_by_one)
# Slightly below the bound, so that rounding cannot move a vector above it.
_BELOW = 1 - 1e-6
_AGREEMENT = 1e-3


@dataclass(frozen=True, kw_only=True)
class Clipper:
    """Computes sums of clipped gradients with one of the methods."""

    network: nn.Module
    parameters: FlatParameters
    method: Method
    advised_chunk: int

    def clipped_sum(self, inputs: Tensor, labels: Tensor, *, bound: float) -> Tensor:
        """The sum of the per-record gradients, each clipped to `bound`: a flat vector of the widest type."""
        contributions = self.method(self.network, inputs, labels)
        if contributions is None:
            # The network computed these records in another way than the examples.
            contributions = gradients_one_by_one(self.network, inputs, labels)
        with torch.no_grad():
            squared = squared_norms(contributions, like=inputs)
            usable = squared.isfinite()
            if bool(usable.all()):
                factors = clip_factors(squared, bound=bound)
                sums = [None if part is None else part.weighted_sum(factors) for part in contributions]
                return self.parameters.flatten(sums).to(wide_dtype(inputs.device))
        # Leave such records out instead of giving them weight 0: zero times infinity is not zero.
        if bool(usable.any()):
            return self.clipped_sum(inputs[usable], labels[usable], bound=bound)
        return torch.zeros_like(self.parameters.vector, dtype=wide_dtype(inputs.device))


def fastest_clipper(network: nn.Module, parameters: FlatParameters, inputs: Tensor, labels: Tensor) -> Clipper:
    """A clipper with the first method that agrees with the definition on these few records."""
    truth = squared_norms(gradients_one_by_one(network, inputs, labels), like=inputs)
    for method in METHODS:
        try:
            found = method(network, inputs, labels)
        except (RuntimeError, NotImplementedError):
            # Torch cannot transform this network, for example because it branches on the data.
            continue
        if found is not None and _agree(squared_norms(found, like=inputs), truth):
            break
    kept = sum(part.width for part in found or () if part is not None)
    chunk = advised_chunk(
        activations=bytes_kept(network, inputs, besides=parameters.vector) // len(inputs),
        gradients=kept * inputs.element_size(),
        device=inputs.device,
    )
    return Clipper(network=network, parameters=parameters, method=method, advised_chunk=chunk)


def squared_norms(contributions: Contributions, *, like: Tensor) -> Tensor:
    """The squared norm of the gradient of each record, over all parameters."""
    total = like.new_zeros(len(like))
    for part in contributions:
        if part is not None:
            total = total + part.squared_norms()
    return total


def clip_factors(squared: Tensor, *, bound: float) -> Tensor:
    """The factors that shorten vectors of these squared norms to at most `bound`."""
    return (bound * _BELOW / squared.sqrt().clamp(min=torch.finfo(squared.dtype).tiny)).clamp(max=1)


def clipped_update(update: Tensor, *, bound: float) -> Tensor:
    """The vector, shortened to `bound` if it is longer."""
    norm = float(torch.linalg.vector_norm(update))
    if not math.isfinite(norm):
        return torch.zeros_like(update)
    return update * min(1.0, bound * _BELOW / norm) if norm > 0 else update


def _agree(squared: Tensor, truth: Tensor) -> bool:
    return torch.allclose(squared, truth, rtol=_AGREEMENT, atol=0, equal_nan=True)
