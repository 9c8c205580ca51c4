"""Linear systems and sums in a fixed order: the same numbers give the same bits on every machine.

BLAS and LAPACK choose the order of a sum by the processor. Models that are computed from weights must be computed again
by an audit, so the systems behind the weights are solved here, by elementwise operations in a fixed order.
"""

from dataclasses import dataclass

import numpy as np

from ..arguments import Vector


def summed_rows(rows: Vector) -> Vector:
    """Return the sum of the rows of a matrix, added from the first to the last.

    >>> summed_rows(np.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [4.0, 6.0]
    """
    total: Vector = np.add.reduce(np.ascontiguousarray(rows), axis=0)
    return total


def scaled_sum(factors: Vector, rows: Vector) -> Vector:
    """Return Σ factors_i·rows_i.

    >>> scaled_sum(np.array([1.0, 10.0]), np.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [31.0, 42.0]
    """
    return summed_rows(factors[:, None] * rows)


@dataclass(frozen=True, eq=False)
class Factorisation:
    """A symmetric positive definite matrix as L·D·Lᵀ with ones on the diagonal of L."""

    lower: Vector
    diagonal: Vector

    @classmethod
    def of(cls, matrix: Vector) -> "Factorisation":
        """Factorise a matrix, of which only the values on and above the diagonal count."""
        rest = np.array(matrix)
        size = rest.shape[0]
        lower, diagonal = np.eye(size), np.empty(size)
        for place in range(size):
            diagonal[place] = rest[place, place]
            row = rest[place, place + 1 :]
            column = row / diagonal[place]
            lower[place + 1 :, place] = column
            rest[place + 1 :, place + 1 :] -= column[:, None] * row
        return cls(lower, diagonal)

    def solve(self, right: Vector) -> Vector:
        """Return x with L·D·Lᵀ·x = right.

        >>> Factorisation.of(np.array([[4.0, 2.0], [2.0, 3.0]])).solve(np.array([2.0, 5.0])).tolist()
        [-0.5, 2.0]
        """
        found = np.array(right)
        size = found.size
        for place in range(size):
            found[place + 1 :] -= self.lower[place + 1 :, place] * found[place]
        found /= self.diagonal
        for place in range(size - 1, 0, -1):
            found[:place] -= self.lower[place, :place] * found[place]
        return found
