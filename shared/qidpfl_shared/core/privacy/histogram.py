"""The label histogram under differential privacy.

Replacing a record moves one count down and one up: Δ = √2, so that Gaussian noise of standard deviation 1/sqrt(rho)
per cell is rho-zCDP. What follows is post-processing and free. A histogram sent without noise is an unprotected
release, whatever the paper says of "only label frequencies".
"""

import math

import numpy as np

from .. import arguments
from ..arguments import ImpossibleArgument, Numbers, Vector


def histogram_noise_std(*, rho: float) -> float:
    """The noise on every count: 1/sqrt(rho)."""
    return 1 / math.sqrt(arguments.positive("rho", rho))


def private_histogram(*, counts: Numbers, rho: float, standard_noise: Numbers) -> tuple[int, ...]:
    """The counts under rho-zCDP: noised, then cleaned to whole numbers with the same, public, sum.

    `standard_noise` holds one draw of a standard Gaussian for each label, fresh for this release.
    """
    exact = arguments.count_vector("counts", counts)
    draws = arguments.vector("standard_noise", standard_noise, length=exact.size)
    return clean_histogram(noisy=exact + histogram_noise_std(rho=rho) * draws, size=int(exact.sum()))


def clean_histogram(*, noisy: Numbers, size: int) -> tuple[int, ...]:
    """The nearest non-negative counts that add up to `size`, rounded to whole numbers by largest remainder."""
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
    """Roughly the standard deviation that the noise gives a label distance: 0.92·sqrt(P)/(D·sqrt(rho)), measured."""
    size = arguments.whole("size", size, minimum=1)
    labels = arguments.whole("labels", labels, minimum=1)
    return 0.92 * math.sqrt(labels) / size * histogram_noise_std(rho=rho)


def _project_on_simplex(values: Vector, total: float) -> Vector:
    """The Euclidean projection on {x >= 0, Σx = total}: subtract one constant and cut at 0."""
    shifted = values - values.max()
    descending = np.sort(shifted)[::-1]
    thresholds = (np.cumsum(descending) - total) / np.arange(1, values.size + 1)
    inside = np.flatnonzero(descending - thresholds > 0)
    threshold = thresholds[inside[-1]] if inside.size else thresholds[0]
    projected: Vector = np.maximum(shifted - threshold, 0.0)
    return projected
