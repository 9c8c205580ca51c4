"""Clipping of the gradient of each record, and of an update as a whole.

The norm is that of all parameters together. A gradient without a finite norm counts as zero, so that even a hostile
model cannot make a record contribute more than the bound. The bound holds for the computed numbers, with all rounding:
`qidpfl_shared.core.privacy.rounding` has the arithmetic.
"""

import functools
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from qidpfl_shared.core.privacy.rounding import SLACK

from ..devices import wide_dtype
from ..flat_parameters import FlatParameters
from .chunk_size import advised_chunk, bytes_kept
from .functional import NETWORK_FAILURES, gradients_by_vmap, gradients_one_by_one
from .gradients import Contribution
from .hooks import gradients_by_hooks, gradients_by_place

Contributions = Sequence[Contribution | None]
# Inputs and labels, and the squared norms of the inputs, where they are known.
RecordChunk = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor | None]


class GradientMethod(Protocol):
    """Computes the gradients of the records of a chunk, multiplied by `scale`; None if it cannot.

    A method may use `input_norms`, the squared norms of the inputs, instead of measuring inputs.
    """

    def __call__(
        self,
        network: nn.Module,
        inputs: Tensor,
        labels: Tensor,
        *,
        scale: float = 1.0,
        input_norms: Tensor | None = None,
    ) -> Contributions | None: ...


# The fastest method first; the last one is the definition.
METHODS: tuple[GradientMethod, ...] = (
    gradients_by_place,
    gradients_by_hooks,
    gradients_by_vmap,
    gradients_one_by_one,
)
# Methods may differ by the rounding of float32, in sums of any order.
_AGREEMENT = 1e-3


@dataclass(frozen=True, kw_only=True)
class ClippingMethod:
    """The fastest method that is right for a network, and the number of records in one pass."""

    method: GradientMethod
    advised_chunk: int


@dataclass(frozen=True, kw_only=True)
class Clipper:
    """Computes sums of clipped gradients with one of the methods.

    `substitute` is an input that the network accepts, in place of a record that it does not accept.
    """

    network: nn.Module
    parameters: FlatParameters
    method: GradientMethod
    substitute: Tensor

    def clipped_sum(self, chunks: Iterable[RecordChunk], *, bound: float) -> Tensor:
        """The sum of the per-record gradients of all chunks, each clipped to `bound`: a flat vector of the widest type.

        A chunk has inputs, which must be finite, and labels. It may have the squared norms of its inputs, measured with
        `squared_lengths`.
        """
        # Compute gradients relative to the bound, so that a small bound stays far from the smallest numbers.
        scale = 2.0 ** -math.floor(math.log2(bound))
        total = torch.zeros_like(self.parameters.vector, dtype=wide_dtype(self.parameters.device))
        parts = self.parameters.split(total)
        for chunk in chunks:
            self._add_to(parts, chunk, bound=bound * scale, scale=scale)
        return total.div_(scale)

    def _add_to(self, parts: Sequence[Tensor], chunk: RecordChunk, *, bound: float, scale: float) -> None:
        inputs, labels, *known = chunk
        try:
            contributions, refused = self._contributions(inputs, labels, *known, scale=scale), None
        except torch.OutOfMemoryError:
            raise
        except NETWORK_FAILURES:
            inputs, refused = self._with_substitutes(inputs)
            contributions = self._contributions(inputs, labels, scale=scale)
        with torch.no_grad():
            squared = squared_norms(contributions, records=len(inputs))
            if refused is not None:
                squared = squared.masked_fill(refused, torch.inf)
            factors = clip_factors(squared, bound=bound).to(torch.float32)
            for part, contribution in zip(parts, contributions, strict=True):
                if contribution is not None:
                    part.add_(contribution.weighted_sum(factors))

    def _contributions(
        self, inputs: Tensor, labels: Tensor, input_norms: Tensor | None = None, *, scale: float
    ) -> Contributions:
        found = self.method(self.network, inputs, labels, scale=scale, input_norms=input_norms)
        # Without a result, the network computes so many records in another way than those of the check.
        return gradients_one_by_one(self.network, inputs, labels, scale=scale) if found is None else found

    def _with_substitutes(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs, with the substitute for each record for which the network fails, and which ones these are.

        The other records stay in their places and keep their method. Another method would round their gradients in
        another way, and a hostile model could make such a difference large.
        """
        refused = torch.tensor([not self._accepts(entered[None]) for entered in inputs], device=inputs.device)
        substituted = inputs.clone()
        substituted[refused] = self.substitute
        return substituted, refused

    def _accepts(self, entered: Tensor) -> bool:
        try:
            with torch.no_grad():
                self.network(entered)
        except torch.OutOfMemoryError:
            raise
        except NETWORK_FAILURES:
            return False
        return True


def fastest_method(
    network: nn.Module, parameters: FlatParameters, inputs: Tensor, labels: Tensor, *, models: Sequence[Tensor]
) -> ClippingMethod:
    """The first method that agrees with the definition on these records, with each of these models as parameters."""
    for method in METHODS:
        if all(_is_right(method, network, parameters, inputs, labels, model) for model in models):
            break
    # The rules may decline a network, but then another method has been chosen.
    kept = sum(part.width for part in method(network, inputs, labels) or () if part is not None)
    chunk = advised_chunk(
        activations=bytes_kept(network, inputs, besides=parameters.vector) // len(inputs),
        gradients=kept * inputs.element_size(),
        device=inputs.device,
    )
    return ClippingMethod(method=method, advised_chunk=chunk)


def squared_norms(contributions: Contributions, *, records: int) -> Tensor:
    """The squared norm of the gradient of each record, over all parameters; infinite for one that counts as zero."""
    norms = [part.squared_norms() for part in contributions if part is not None]
    return functools.reduce(torch.add, norms) if norms else torch.zeros(records)


def clip_factors(squared: Tensor, *, bound: float) -> Tensor:
    """The factors that shorten vectors of these squared norms to `bound`, less the slack; 0 for an infinite norm."""
    # The inverse root of 0 is infinite, and that of an infinite norm 0.
    return squared.rsqrt().mul_(bound * (1 - SLACK)).clamp_(max=1).nan_to_num_(nan=0)


def clipped_update(update: Tensor, *, bound: float) -> Tensor:
    """The vector, shortened to `bound`, less the slack, if it is longer."""
    norm = float(torch.linalg.vector_norm(update))
    if not math.isfinite(norm):
        return torch.zeros_like(update)
    return update * min(1.0, bound * (1 - SLACK) / norm) if norm > 0 else update


def _is_right(
    method: GradientMethod,
    network: nn.Module,
    parameters: FlatParameters,
    inputs: Tensor,
    labels: Tensor,
    model: Tensor,
) -> bool:
    parameters.vector.copy_(model)
    if method is gradients_one_by_one:
        return True
    try:
        with warnings.catch_warnings():
            # Torch warns about networks that it transforms slowly.
            warnings.simplefilter("ignore")
            found = method(network, inputs, labels)
    except (RuntimeError, NotImplementedError, AttributeError):
        # Torch cannot transform this network, for example because it branches on the data.
        return False
    if found is None:
        return False
    truth = gradients_one_by_one(network, inputs, labels)
    rows, expected = (_rows(parts, parameters, records=len(inputs)) for parts in (found, truth))
    return bool((_lengths(rows - expected) <= _AGREEMENT * _lengths(expected)).all())


def _rows(contributions: Contributions, parameters: FlatParameters, *, records: int) -> Tensor:
    """The gradient of each record as a row: the sum in which only this record has a weight."""
    return torch.stack(
        [
            parameters.flatten([None if part is None else part.weighted_sum(only) for part in contributions])
            for only in torch.eye(records, device=parameters.device)
        ]
    )


def _lengths(rows: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return lengths
