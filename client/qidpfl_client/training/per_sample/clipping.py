"""Clipping: of the gradient of every single record, and of an update as a whole.

Either way the norm is that of all parameters together. What has no finite norm counts as zero, so that no model,
however hostile, makes a record count for more than the bound.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..devices import wide_dtype
from ..flat_parameters import FlatParameters
from .chunk_size import advised_chunk, bytes_kept
from .functional import one_by_one, transformed
from .gradients import Contribution
from .hooks import captured

Contributions = list[Contribution | None]
Method = Callable[[nn.Module, Tensor, Tensor], Contributions | None]

# The fastest first; the last is the definition.
METHODS: tuple[Method, ...] = (captured, transformed, one_by_one)
# A hair below the bound, so that rounding cannot lift a vector above it.
_BELOW = 1 - 1e-6
_AGREEMENT = 1e-3


@dataclass(frozen=True, kw_only=True)
class Clipper:
    """Sums of clipped gradients of a network, by one of the methods."""

    network: nn.Module
    parameters: FlatParameters
    method: Method
    advised_chunk: int

    def clipped_sum(self, inputs: Tensor, labels: Tensor, *, bound: float) -> Tensor:
        """The sum of the records' gradients, each clipped to the bound: flat, in wide numbers."""
        contributions = self.method(self.network, inputs, labels)
        if contributions is None:
            # The network took another way for these records than for the examples.
            contributions = one_by_one(self.network, inputs, labels)
        with torch.no_grad():
            squared = squared_norms(contributions, like=inputs)
            usable = squared.isfinite()
            if bool(usable.all()):
                factors = clip_factors(squared, bound=bound)
                sums = [None if part is None else part.weighted_sum(factors) for part in contributions]
                return self.parameters.flatten(sums).to(wide_dtype(inputs.device))
        # Zero times infinity is not zero: such records are left out, not weighted.
        if bool(usable.any()):
            return self.clipped_sum(inputs[usable], labels[usable], bound=bound)
        return torch.zeros_like(self.parameters.vector, dtype=wide_dtype(inputs.device))


def fastest_clipper(network: nn.Module, parameters: FlatParameters, inputs: Tensor, labels: Tensor) -> Clipper:
    """A clipper by the first of the methods that agrees with the definition on these few records."""
    truth = squared_norms(one_by_one(network, inputs, labels), like=inputs)
    for method in METHODS:
        try:
            found = method(network, inputs, labels)
        except (RuntimeError, NotImplementedError):
            # What torch cannot transform, such as a choice that depends on the data, is done one by one.
            continue
        if found is not None and _agree(squared_norms(found, like=inputs), truth):
            break
    held = sum(part.width for part in found or () if part is not None)
    chunk = advised_chunk(
        activations=bytes_kept(network, inputs, besides=parameters.vector) // len(inputs),
        gradients=held * inputs.element_size(),
        device=inputs.device,
    )
    return Clipper(network=network, parameters=parameters, method=method, advised_chunk=chunk)


def squared_norms(contributions: Contributions, *, like: Tensor) -> Tensor:
    """The squared norm of every record's gradient, over all parameters."""
    total = like.new_zeros(len(like))
    for part in contributions:
        if part is not None:
            total = total + part.squared_norms()
    return total


def clip_factors(squared: Tensor, *, bound: float) -> Tensor:
    """What to multiply vectors of these squared norms with, so that none is longer than the bound."""
    return (bound * _BELOW / squared.sqrt().clamp(min=torch.finfo(squared.dtype).tiny)).clamp(max=1)


def clipped_update(update: Tensor, *, bound: float) -> Tensor:
    """The whole vector, shortened to the bound if it is longer."""
    norm = float(torch.linalg.vector_norm(update))
    if not math.isfinite(norm):
        return torch.zeros_like(update)
    return update * min(1.0, bound * _BELOW / norm) if norm > 0 else update


def _agree(squared: Tensor, truth: Tensor) -> bool:
    return torch.allclose(squared, truth, rtol=_AGREEMENT, atol=0, equal_nan=True)
