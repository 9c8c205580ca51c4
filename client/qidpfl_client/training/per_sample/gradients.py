"""What the records of a batch contribute to the gradient of one parameter, in the form that is cheapest to clip.

Clipping asks for two things: the squared norm of every record's part, and the sum of the parts weighted by the clip
factors. Neither needs the parts themselves where they are products.
"""

from typing import Protocol

import torch
from torch import Tensor

from ..devices import wide_dtype

_BLOCK = 1 << 18
_NARROW = 2048


class Contribution(Protocol):
    """The parts of a gradient that belong to the records of a batch; `width` numbers are held of each."""

    width: int

    def squared_norms(self) -> Tensor:
        """|part|² of every record."""

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
    """Every record's part is the outer product of two vectors: |g·aᵀ| = |g|·|a|."""

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self._left = left
        self._right = right
        self.width = left[0].numel() + right[0].numel()

    def squared_norms(self) -> Tensor:
        return _squared_lengths(self._left) * _squared_lengths(self._right)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        return ((self._left * factors[:, None]).T @ self._right).reshape(-1)


class SummedProducts:
    """Every record's part is a sum of few outer products: |Σ g·aᵀ|² = Σ (g·g')(a·a') over all pairs of them."""

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self._left = left
        self._right = right
        self.width = left[0].numel() + right[0].numel()

    def squared_norms(self) -> Tensor:
        # Wide, because the terms may cancel.
        left, right = (side.to(wide_dtype(side.device)) for side in (self._left, self._right))
        pairs = torch.bmm(left, left.mT) * torch.bmm(right, right.mT)
        return pairs.sum((1, 2)).clamp(min=0).to(self._left.dtype)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        left = self._left * factors[:, None, None]
        return (left.flatten(0, 1).T @ self._right.flatten(0, 1)).reshape(-1)


class Lookups:
    """Every record's part has one gradient in each of the rows of a table that it looked up, added where they agree."""

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
    """The best form of Σ_t left[:, t]·right[:, t]ᵀ, for tensors (record, t, width): by what each would multiply."""
    terms, widths = left.shape[1], (left.shape[2], right.shape[2])
    if terms == 1:
        return Products(left[:, 0], right[:, 0])
    if summed_is_better(terms=terms, widths=widths):
        return SummedProducts(left, right)
    return Rows(torch.bmm(left.mT, right))


def summed_is_better(*, terms: int, widths: tuple[int, int]) -> bool:
    """Whether the pairs of so many terms are fewer numbers than the sum of their products has."""
    return terms * terms * sum(widths) < widths[0] * widths[1]


def _squared_lengths(rows: Tensor) -> Tensor:
    if rows.shape[1] <= _NARROW:
        lengths: Tensor = torch.linalg.vector_norm(rows, dim=1)
        return lengths.square()
    # Torch's norm of a long row is wrong by more than clipping allows, and all squares at once do not fit the cache.
    block = max(1, _BLOCK // rows.shape[1])
    return torch.cat([part.square().sum(1) for part in torch.split(rows, block)])
