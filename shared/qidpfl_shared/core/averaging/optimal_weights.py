"""Weights that make the noise of the average small and its labels like the reference: a small quadratic programme.

The weights p minimise Σ a_i·p_i² + κ·|Σ p_i·g_i|² over p ≥ 0, Σ p_i = 1. Here a_i is the expected squared norm of the
noise of update i, d·v_i/ρ_i, and g_i = h_i - P_a the gap between the label shares of client i and the reference. Label
shares are released with noise, so the weights use nothing that is private.

With Q = diag(a) + κ·G·Gᵀ the weights are x/Σx for the only x ≥ 0 with Q·x ≥ 1 where equality holds wherever x > 0. An
active-set method finds it: solve Q·x = 1 on the clients in the set, and exchange all clients that are on the wrong
side. That takes a few steps, but may go in circles. Then a second method goes on from there: each of its steps makes
½·xᵀQx - Σx smaller, so it ends.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from .. import arguments
from ..arguments import ImpossibleArgument, Mask, Numbers, Vector
from .linear_systems import Factorisation, scaled_sum

# κ in units of C², the squared bound of the signal. Chosen on validation records of MNIST.
LABEL_WEIGHT = 5.0
# A client stays out while its gradient is below that of the others by no more than rounding.
_ROUNDING = 1e-13
# Steps with all clients on the wrong side that may fail to make them fewer.
_FAILURES = 10
_REFINEMENTS = 2
# Above this residual rounding has prevented a minimum, and the labels are left out.
_LARGEST_RESIDUAL = 1e-8


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelGaps:
    """The gaps g_i between label shares and reference, one row per client, and κ, what a squared gap costs.

    The unit of κ is that of a squared norm of a signal.

    Raises `ImpossibleArgument` for gaps that are no finite matrix, and for a negative κ.
    """

    rows: Vector
    cost: float

    def __post_init__(self) -> None:
        rows = np.array(self.rows, dtype=np.float64)
        if rows.ndim != 2 or not np.isfinite(rows).all():
            raise ImpossibleArgument("label gaps", self.rows, "must be a finite matrix")
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "cost", arguments.non_negative("cost", self.cost))

    def only(self, clients: Mask | npt.NDArray[np.intp]) -> "LabelGaps":
        """The gaps of some of the clients, given as a mask or as indices."""
        return LabelGaps(rows=self.rows[clients], cost=self.cost)

    def mismatch(self, weights: Numbers) -> float:
        """Return κ·|Σ p_i·g_i|² for these weights.

        >>> LabelGaps(rows=np.array([[0.5, -0.5], [-0.5, 0.5]]), cost=5.0).mismatch([0.75, 0.25])
        0.625
        """
        shares = arguments.non_negative_vector("weights", weights, length=len(self.rows))
        return self.cost * float(np.sum(scaled_sum(shares, self.rows) ** 2))


def label_gap(*, label_counts: Sequence[int], reference: Vector) -> Vector:
    """Return h_i - P_a: the label shares of a client minus the reference distribution.

    >>> label_gap(label_counts=[30, 10], reference=np.array([0.5, 0.5])).tolist()
    [0.25, -0.25]
    """
    counts = arguments.count_vector("label_counts", label_counts, length=reference.size)
    total = arguments.positive("size", float(counts.sum()))
    gap: Vector = counts / total - reference
    return gap


def label_gaps_of(gaps: Sequence[Vector | None], *, signal_bounds: Sequence[float]) -> LabelGaps | None:
    """Return the gaps of several clients with κ = 5·C², where C is the median of the bounds of their signals.

    A client without label counts has the gap 0. None if no client has label counts.

    >>> label_gaps_of([np.array([0.5, -0.5]), None], signal_bounds=[1.0, 1.0]).rows.tolist()
    [[0.5, -0.5], [0.0, 0.0]]
    """
    known = [gap for gap in gaps if gap is not None]
    if not known:
        return None
    rows = np.stack([np.zeros(known[0].size) if gap is None else gap for gap in gaps])
    return LabelGaps(rows=rows, cost=LABEL_WEIGHT * float(np.median(signal_bounds)) ** 2)


@dataclass(frozen=True, kw_only=True, eq=False)
class OptimalWeights:
    """The weights, the objective at them, and how well they fulfil the conditions of a minimum.

    `residual` is the largest violation of the Karush-Kuhn-Tucker conditions, relative to the numbers in them.
    """

    weights: Vector
    noise: float
    mismatch: float
    residual: float

    @property
    def objective(self) -> float:
        """The expected squared norm of the noise of the average, and the cost of its labels."""
        return self.noise + self.mismatch


def optimal_weights(*, noise: Numbers, labels: LabelGaps) -> OptimalWeights:
    """Return the weights for updates whose noise has these expected squared norms, each above 0.

    The result depends on the order of the clients by rounding only, and the same arguments give the same bits.

    >>> gaps = LabelGaps(rows=np.array([[0.5, -0.5], [-0.5, 0.5], [0.5, -0.5]]), cost=5.0)
    >>> optimal_weights(noise=[1.0, 1.0, 1.0], labels=gaps).weights.round(3).tolist()
    [0.261, 0.478, 0.261]
    """
    norms = arguments.positive_vector("noise", noise, length=len(labels.rows))
    if norms.size == 0:
        raise ImpossibleArgument("noise", norms, "must hold at least one update")
    # Powers of two leave the bits of all other numbers unchanged.
    unit = 2.0 ** math.frexp(float(norms.min()))[1]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        problem = _Problem(norms / unit, np.sqrt(labels.cost / unit) * labels.rows)
        weights = _shares(problem.solution())
        residual = math.inf if weights is None else problem.residual(weights)
    if weights is None or not residual <= _LARGEST_RESIDUAL:
        # The gaps cost so much more than the noise that numbers overflow or cancel: 1e15 times as much, or more.
        weights, residual = _least_noise(norms), math.inf
    return OptimalWeights(
        weights=weights,
        noise=math.fsum((norms * weights * weights).tolist()),
        mismatch=labels.mismatch(weights),
        residual=residual,
    )


def _shares(unscaled: Vector) -> Vector | None:
    """The numbers divided by their sum; None if that is not possible."""
    total = math.fsum(unscaled.tolist()) if np.isfinite(unscaled).all() else 0.0
    return unscaled / total if 0 < total < math.inf else None


def _least_noise(norms: Vector) -> Vector:
    """The weights that make the noise as small as possible."""
    inverse = float(norms.min()) / norms
    weights: Vector = inverse / math.fsum(inverse.tolist())
    return weights


@dataclass(frozen=True, eq=False)
class _Problem:
    """x ≥ 0, Q·x ≥ 1, equality where x > 0, for Q = diag(noise) + gaps·gapsᵀ."""

    noise: Vector
    gaps: Vector

    @cached_property
    def _columns(self) -> Vector:
        return np.ascontiguousarray(self.gaps.T)

    def _times(self, clients: npt.NDArray[np.intp], values: Vector) -> Vector:
        """Q·x for an x that is 0 beside these clients."""
        total = scaled_sum(values, self.gaps[clients])
        product = scaled_sum(total, self._columns) if total.size else np.zeros(self.noise.size)
        product[clients] += self.noise[clients] * values
        return product

    def solution(self) -> Vector:
        inside = np.ones(self.noise.size, dtype=np.bool_)
        fewest, failures = inside.size + 1, 0
        while True:
            clients = np.flatnonzero(inside)
            values = self._solved(clients)
            slack = self._times(clients, values) - 1.0
            wrong = ~inside & (slack < -_ROUNDING)
            wrong[clients] = values < 0
            count = int(np.count_nonzero(wrong))
            fewest, failures = (count, 0) if count < fewest else (fewest, failures + 1)
            if count == 0 or failures >= _FAILURES:
                break
            inside ^= wrong
        found = np.zeros(inside.size)
        found[clients] = np.maximum(values, 0.0)
        return found if count == 0 else self._descended(found)

    def _descended(self, start: Vector) -> Vector:
        """The solution, searched from these numbers, of which none is negative.

        On the clients in the set each step goes towards the solution there, until the first client reaches 0 and leaves
        the set. At such a solution the client that is most on the wrong side enters.
        """
        found, inside = start.copy(), start > 0
        refused = np.zeros(inside.size, dtype=np.bool_)
        # In practice as many steps as clients are on the wrong side.
        for _ in range(50 + 10 * inside.size):
            clients = np.flatnonzero(inside)
            values = self._solved(clients)
            falling = values <= 0
            if not falling.any():
                found[clients] = values
                slack = self._times(clients, values) - 1.0
                slack[inside | refused] = 0.0
                entering = int(np.argmin(slack))
                if slack[entering] >= -_ROUNDING:
                    break
                inside[entering] = True
                continue
            now = found[clients]
            parts = np.full(clients.size, np.inf)
            parts[falling] = now[falling] / (now[falling] - values[falling])
            part = float(parts.min())
            leaving = clients[parts <= part]
            found[clients] = now + part * (values - now)
            found[leaving] = 0.0
            inside[leaving] = False
            if part == 0:
                # Rounding alone has brought it in. It must not come back for ever.
                refused[leaving] = True
        return found

    def _solved(self, clients: npt.NDArray[np.intp]) -> Vector:
        """The x on these clients with Q·x = 1 on them."""
        noise, gaps = self.noise[clients], self.gaps[clients]
        solver = _Dense(noise, gaps) if clients.size <= gaps.shape[1] else _Narrow(noise, gaps)
        values = solver.solve(np.ones(clients.size))
        for _ in range(_REFINEMENTS):
            values += solver.solve(1.0 - self._times(clients, values)[clients])
        return values

    def residual(self, weights: Vector) -> float:
        everyone = np.arange(weights.size)
        slopes = self._times(everyone, weights)
        common = math.fsum((weights * slopes).tolist())
        sizes = scaled_sum(weights, np.abs(self.gaps))
        scales = self.noise * weights + common
        if sizes.size:
            scales += scaled_sum(sizes, np.abs(self._columns))
        violations = np.where(weights > 0, np.abs(slopes - common), np.maximum(common - slopes, 0.0))
        return max(float((violations / scales).max()), abs(math.fsum(weights.tolist()) - 1.0))


class _Dense:
    """Solves (diag(noise) + gaps·gapsᵀ)·x = b with a matrix of clients x clients: for few clients with many labels."""

    def __init__(self, noise: Vector, gaps: Vector) -> None:
        columns = np.ascontiguousarray(gaps.T)
        matrix = np.stack([scaled_sum(row, columns) for row in gaps])
        matrix[np.diag_indices(noise.size)] += noise
        self._factors = Factorisation.of(matrix)

    def solve(self, right: Vector) -> Vector:
        return self._factors.solve(right)


class _Narrow:
    """Solves the same system with a matrix of labels x labels (Woodbury): x = (b - gaps·z)/noise."""

    def __init__(self, noise: Vector, gaps: Vector) -> None:
        self._noise, self._columns = noise, np.ascontiguousarray(gaps.T)
        self._scaled = gaps / noise[:, None]
        matrix = np.stack([scaled_sum(column, self._scaled) for column in self._columns]) if gaps.shape[1] else gaps[:0]
        matrix[np.diag_indices(gaps.shape[1])] += 1.0
        self._factors = Factorisation.of(matrix)

    def solve(self, right: Vector) -> Vector:
        inner = self._factors.solve(scaled_sum(right, self._scaled))
        return (right - scaled_sum(inner, self._columns)) / self._noise if inner.size else right / self._noise
