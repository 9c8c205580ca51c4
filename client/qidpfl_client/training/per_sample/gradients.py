"""The per-record parts of the gradient of one parameter, in the form that is cheapest to clip.

Clipping needs the squared norm of each part, and the sum of the parts weighted by the clip factors. If the parts are
products, both can be computed without the parts themselves.
"""

from typing import Protocol

import torch
from torch import Tensor

from ..devices import wide_dtype

_BLOCK = 1 << 18
_NARROW = 2048


class Contribution(Protocol):
    """The per-record parts of one gradient. `width` is how many numbers are stored per record."""

    width: int

    def squared_norms(self) -> Tensor:
        """|part|² of each record."""

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Σ factor·part over the records, flat."""


class Rows:
    """The parts themselves, one row per record."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows.flatten(1)
        self.width = self._rows.shape[1]

    def squared_norms(self) -> Tensor:
        return _squared_lengths(self._rows)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        return factors @ self._rows


class Products:
    """Each part is the outer product of two vectors: |g·aᵀ| = |g|·|a|."""

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self._left = left
        self._right = right
        self.width = left[0].numel() + right[0].numel()

    def squared_norms(self) -> Tensor:
        return _squared_lengths(self._left) * _squared_lengths(self._right)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        return ((self._left * factors[:, None]).T @ self._right).reshape(-1)


class SummedProducts:
    """Each part is a sum of few outer products: |Σ g·aᵀ|² = Σ (g·g')(a·a') over all pairs of them."""

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self._left = left
        self._right = right
        self.width = left[0].numel() + right[0].numel()

    def squared_norms(self) -> Tensor:
        # In the widest type, because the terms may cancel.
        left, right = (side.to(wide_dtype(side.device)) for side in (self._left, self._right))
        pairs = torch.bmm(left, left.mT) * torch.bmm(right, right.mT)
        return pairs.sum((1, 2)).clamp(min=0).to(self._left.dtype)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        left = self._left * factors[:, None, None]
        return (left.flatten(0, 1).T @ self._right.flatten(0, 1)).reshape(-1)


class Lookups:
    """Each part has one gradient per looked-up row of a table; gradients of the same row are added."""

    def __init__(self, indices: Tensor, gradients: Tensor, *, rows: int) -> None:
        self._indices = indices
        self._gradients = gradients
        self._rows = rows
        self.width = indices[0].numel() + gradients[0].numel()

    def squared_norms(self) -> Tensor:
        wide = self._gradients.to(wide_dtype(self._gradients.device))
        same = self._indices[:, :, None] == self._indices[:, None, :]
        return (torch.bmm(wide, wide.mT) * same).sum((1, 2)).clamp(min=0).to(self._gradients.dtype)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        weighted = (self._gradients * factors[:, None, None]).flatten(0, 1)
        table = weighted.new_zeros(self._rows, weighted.shape[1])
        return table.index_add_(0, self._indices.flatten(), weighted).reshape(-1)


def sum_of_products(left: Tensor, right: Tensor) -> Contribution:
    """The cheapest form of Σ_t left[:, t]·right[:, t]ᵀ, for tensors (record, t, width)."""
    terms, widths = left.shape[1], (left.shape[2], right.shape[2])
    if terms == 1:
        return Products(left[:, 0], right[:, 0])
    if summed_is_better(terms=terms, widths=widths):
        return SummedProducts(left, right)
    return Rows(torch.bmm(left.mT, right))


def summed_is_better(*, terms: int, widths: tuple[int, int]) -> bool:
    """Whether all pairs of the terms cost less than the sum of their products."""
    return terms * terms * sum(widths) < widths[0] * widths[1]


def _squared_lengths(rows: Tensor) -> Tensor:
    if rows.shape[1] <= _NARROW:
        lengths: Tensor = torch.linalg.vector_norm(rows, dim=1)
        return lengths.square()
    # For long rows the error of torch's norm is too large for clipping. Blocks keep the squares in the cache.
    block = max(1, _BLOCK // rows.shape[1])
    return torch.cat([part.square().sum(1) for part in torch.split(rows, block)])
