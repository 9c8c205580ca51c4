"""The per-record parts of the gradient of one parameter, in the form that is cheapest to clip.

Clipping needs the norm of each part, and the sum of the parts weighted by the clip factors. One rule makes the norms
hold for every model and record: the vector whose norm is measured is the vector that is added. A part that is a sum of
many terms is therefore computed first, even if its terms cancel; only a single outer product stays in its two factors.

All parts are finite: the callers replace what is not by the largest float32, whose square overflows. A norm that
overflows is infinite, and the record of such a part counts as zero. The work is the same for all records.
"""

from typing import Protocol

import torch
from torch import Tensor

from qidpfl_shared.core.privacy.rounding import BLOCK, LARGEST_GRADIENT_NORM, LARGEST_INPUT_NORM, NORM_BLOCK

from ..devices import wide_dtype


class Contribution(Protocol):
    """The per-record parts of one gradient. `width` is how many numbers are stored per record."""

    width: int

    def squared_norms(self) -> Tensor:
        """|part|² of each record, in the widest type; infinite for a record that must count as zero."""

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Σ factor·part over the records, flat; in the widest type, unless all records are in one block."""


class Rows:
    """The parts themselves, one row per record. The caller may know their |row|², if they are finite."""

    def __init__(self, rows: Tensor, *, squared: Tensor | None = None) -> None:
        flat = rows.reshape(len(rows), -1)
        self._rows = finite(flat) if squared is None else flat
        self._squared = squared_lengths(self._rows) if squared is None else squared
        self.width = self._rows.shape[1]

    def squared_norms(self) -> Tensor:
        return self._squared

    def weighted_sum(self, factors: Tensor) -> Tensor:
        return _sum_of_rows(factors, self._rows).reshape(-1)


class Kernels:
    """The parts of the kernels of a convolution, as (line of the kernel, record, output channel · place · channel).

    The parameter has the order (output channel, channel, line, place). The caller has measured the rows with
    `measured_in_place`, while they were in the cache.
    """

    def __init__(self, rows: Tensor, squared: Tensor, *, outputs: int, channels: int) -> None:
        self._rows = rows
        self._squared = squared
        self._shape = (len(rows), outputs, -1, channels)
        self.width = rows.shape[0] * rows.shape[2]

    def squared_norms(self) -> Tensor:
        return self._squared

    def weighted_sum(self, factors: Tensor) -> Tensor:
        lines = torch.stack([_sum_of_rows(factors, line) for line in self._rows])
        return lines.view(self._shape).permute(1, 3, 0, 2).reshape(-1)


class Products:
    """Each part is the outer product of a gradient and an input: |g·aᵀ| = |g|·|a|. Both must be finite."""

    def __init__(self, gradients: Tensor, inputs: Tensor) -> None:
        self._gradients = gradients
        self._inputs = inputs
        self._squared = squared_lengths(gradients)
        self._squared_inputs: Tensor | None = None
        self.width = gradients.shape[1] + inputs.shape[1]

    def bias(self) -> Rows:
        """The part of the bias of the same layer: the gradient itself, whose norm is known."""
        return Rows(self._gradients, squared=self._squared)

    def know_inputs(self, squared: Tensor) -> None:
        """Take the |input|² that the caller measured with `squared_lengths`, on the same numbers."""
        self._squared_inputs = squared

    def squared_norms(self) -> Tensor:
        gradients, inputs = self._squared, self._squared_inputs
        if inputs is None:
            inputs = squared_lengths(self._inputs)
        too_large = (gradients > LARGEST_GRADIENT_NORM**2) | (inputs > LARGEST_INPUT_NORM**2)
        return (gradients * inputs).masked_fill(too_large, torch.inf)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        return _sum_of_products(self._gradients * factors[:, None], self._inputs).reshape(-1)


class Lookups:
    """Each part has one gradient per looked-up row of a table; gradients of the same row are added."""

    def __init__(self, indices: Tensor, gradients: Tensor, *, rows: int) -> None:
        same = indices[:, :, None] == indices[:, None, :]
        # The first look-up of a row gets the gradients of all look-ups of it, the others get none.
        is_first = same.to(torch.uint8).argmax(2) == torch.arange(indices.shape[1], device=indices.device)
        added = torch.bmm((same & is_first[:, :, None]).to(gradients.dtype), gradients)
        self._indices = indices
        self._added = finite(added)
        self._rows = rows
        self.width = indices.shape[1] + added[0].numel()

    def squared_norms(self) -> Tensor:
        return squared_lengths(self._added.flatten(1))

    def weighted_sum(self, factors: Tensor) -> Tensor:
        weighted = (self._added * factors[:, None, None]).flatten(0, 1).to(wide_dtype(factors.device))
        table = weighted.new_zeros(self._rows, weighted.shape[1])
        return table.index_add_(0, self._indices.flatten(), weighted).reshape(-1)


def finite(values: Tensor) -> Tensor:
    """The values, with the largest number of their type for each one that is infinite or not a number."""
    return values.nan_to_num(nan=torch.finfo(values.dtype).max) if values.is_floating_point() else values


def measured_in_place(rows: Tensor) -> Tensor:
    """Make rows (line, record, number) that no other tensor shares finite, and return |row|² of each record."""
    torch.nan_to_num(rows, nan=torch.finfo(rows.dtype).max, out=rows)
    return squared_lengths(rows)


def squared_lengths(rows: Tensor) -> Tensor:
    """|row|² in the widest type. Few squares are added in float32, so that the error does not grow with the row.

    Rows may have a third dimension before the others, over which squares are added too.
    """
    wide, whole = wide_dtype(rows.device), rows.shape[-1] // NORM_BLOCK * NORM_BLOCK
    if not whole and rows.ndim == 2 and rows.stride(0) == 1:
        # By columns: torch measures rows whose numbers are not next to each other many times slower.
        return rows.T.square().sum(0).to(wide)
    norms: Tensor = torch.linalg.vector_norm(rows[..., whole:], dim=-1)
    total = norms.to(wide).square()
    if whole:
        blocks = torch.unflatten(rows[..., :whole], -1, (-1, NORM_BLOCK))
        total += torch.linalg.vector_norm(blocks, dim=-1).to(wide).square().sum(-1)
    return total.sum(0) if rows.ndim == 3 else total


def _sum_of_rows(factors: Tensor, rows: Tensor) -> Tensor:
    """Σ factor·row, added like the products below."""
    if rows.stride(0) != 1 or len(rows) % BLOCK:
        return _sum_of_products(factors[:, None], rows)
    by_block = (rows.T * factors).view(rows.shape[1], -1, BLOCK)
    return by_block.sum(2).sum(1, dtype=wide_dtype(rows.device))


def _sum_of_products(left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ·right: products of few records are added in float32, and the sums of these blocks in the widest type."""
    whole = len(right) // BLOCK * BLOCK
    if whole == 0:
        return left.T @ right
    if whole < len(right):
        return _sum_of_products(left[:whole], right[:whole]).add_(left[whole:].T @ right[whole:])
    by_block = torch.bmm(left.reshape(-1, BLOCK, left.shape[1]).mT, right.reshape(-1, BLOCK, right.shape[1]))
    return by_block.sum(0, dtype=wide_dtype(right.device))
