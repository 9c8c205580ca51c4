"""The label histogram under differential privacy.

Replacing a record moves one count down and one up: Δ = √2. Discrete Gaussian noise of standard deviation 1/sqrt(rho)
per cell is therefore rho-zCDP. All later steps are post-processing without privacy cost. A histogram without noise is
an unprotected release, although the paper calls it "only label frequencies".

All functions raise `ImpossibleArgument` for a number outside its range and for sequences of different lengths.
"""

import math

import numpy as np

from .. import arguments
from ..arguments import ImpossibleArgument, Numbers, Vector
from .discrete_gaussian import add_noise, grid_slack

# The noise is wider by this part, which pays for moving the counts to the grid of the noise.
_GRID_SLACK = 2.0**-20


def histogram_noise_std(*, rho: float) -> float:
    """Return the standard deviation of the noise on every count: 1/sqrt(rho).

    >>> histogram_noise_std(rho=0.25)
    2.0
    """
    return 1 / math.sqrt(arguments.positive("rho", rho))


def private_histogram(*, counts: Numbers, rho: float, standard_noise: Numbers) -> tuple[int, ...]:
    """Return the counts under rho-zCDP: noised, then rounded to whole numbers with the same public sum.

    `standard_noise` holds one fresh value of `discrete_gaussian` per label. Raises `ImpossibleArgument` also if `rho`
    is so small that the grid of the noise would matter.

    >>> private_histogram(counts=[10, 20, 30], rho=0.25, standard_noise=[1.0, -1.0, 0.0])
    (12, 18, 30)
    """
    exact = arguments.count_vector("counts", counts)
    if grid_slack(dimension=max(1, exact.size), rho=rho) > _GRID_SLACK / 2:
        raise ImpossibleArgument("rho", rho, f"must be larger for a histogram of {exact.size} labels")
    std = histogram_noise_std(rho=rho) * (1 + _GRID_SLACK)
    return clean_histogram(noisy=add_noise(values=exact, std=std, standard_noise=standard_noise), size=int(exact.sum()))


def clean_histogram(*, noisy: Numbers, size: int) -> tuple[int, ...]:
    """Return the nearest non-negative counts that add up to `size`, rounded by largest remainder.

    Raises `ImpossibleArgument` also if there is no label.

    >>> clean_histogram(noisy=[-3.0, 7.0, 8.0], size=10)
    (0, 5, 5)
    """
    values = arguments.vector("noisy", noisy)
    size = arguments.whole("size", size)
    if values.size == 0:
        raise ImpossibleArgument("noisy", noisy, "must have at least one label")
    projected = _project_on_simplex(values, float(size))
    counts = np.floor(projected)
    left = size - int(counts.sum())
    order = np.argsort(counts - projected, kind="stable")
    counts[order[:left]] += 1
    return tuple(int(count) for count in counts)


def distance_error(*, size: int, labels: int, rho: float) -> float:
    """Return the approximate standard deviation of a label distance: 0.92·sqrt(P)/(D·sqrt(rho)), measured.

    >>> round(distance_error(size=100, labels=10, rho=0.1), 3)
    0.092
    """
    size = arguments.whole("size", size, minimum=1)
    labels = arguments.whole("labels", labels, minimum=1)
    return 0.92 * math.sqrt(labels) / size * histogram_noise_std(rho=rho)


def _project_on_simplex(values: Vector, total: float) -> Vector:
    """Return the Euclidean projection on {x >= 0, Σx = total}: subtract a constant and cut at 0."""
    shifted = values - values.max()
    descending = np.sort(shifted)[::-1]
    thresholds = (np.cumsum(descending) - total) / np.arange(1, values.size + 1)
    inside = np.flatnonzero(descending - thresholds > 0)
    threshold = thresholds[inside[-1]] if inside.size else thresholds[0]
    projected: Vector = np.maximum(shifted - threshold, 0.0)
    return projected
