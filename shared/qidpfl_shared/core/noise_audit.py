"""The noise audit: whether an upload is consistent with the noise of its declared budget.

An upload is a signal of norm at most B plus Gaussian noise of standard deviation σ in each of d coordinates. Its energy
Q = |u|²/σ² is then noncentral chi-square with d degrees of freedom and a noncentrality between 0 and B²/σ². Q grows
stochastically with the noncentrality, so thresholds at the two ends hold for *every* admissible signal.

The audit shows only that the energy is consistent. It cannot show that a release is private: reused, known or
deterministic noise has the same energy, and so has noise without any training.

All functions and classes raise `ImpossibleArgument` for a number outside its range and for sequences of different
lengths.
"""

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from types import ModuleType

import numpy as np

from . import arguments
from .arguments import Numbers, Vector
from .privacy.mechanisms import Mechanism

# Above this sum of degrees of freedom and noncentrality the normal approximation is used.
_NORMAL_FROM = 2e5
# The verdict `consistent` needs at least this probability of detecting missing and doubled noise.
_DECISIVE_POWER = 0.5


class NoiseVerdict(StrEnum):
    """What the energy of an upload says about its noise."""

    CONSISTENT = "consistent"
    TOO_LITTLE_NOISE = "too_little_noise"
    TOO_MUCH_NOISE = "too_much_noise"
    UNDECIDABLE = "undecidable"


@dataclass(frozen=True, kw_only=True)
class NoiseAudit:
    """The test of one upload: its noise, its signal bound, and its false-positive rate `alpha`.

    With `feedback` the signal may depend on the noise, because early noise changes later gradients. The distribution of
    the energy is then unknown. The thresholds come from the triangle inequality: they are wider and still valid.

    >>> audit = NoiseAudit(dimension=1000, noise_std=0.1, signal_bound=1.0, alpha=1e-3)
    >>> audit.verdict(squared_norm=10.5).value, audit.verdict(squared_norm=1.0).value
    ('consistent', 'too_little_noise')
    """

    dimension: int
    noise_std: float
    signal_bound: float
    alpha: float
    feedback: bool = False

    def __post_init__(self) -> None:
        arguments.whole("dimension", self.dimension, minimum=1)
        arguments.magnitude("noise_std", self.noise_std)
        arguments.non_negative("signal_bound", self.signal_bound)
        arguments.probability("alpha", self.alpha)

    @classmethod
    def of_upload(cls, *, mechanism: Mechanism, rho: float, size: int, dimension: int, alpha: float) -> "NoiseAudit":
        """Return the test for an upload of this mechanism with the declared budget."""
        return _known_audit(
            cls(
                dimension=dimension,
                noise_std=mechanism.noise_std(rho=rho, size=size),
                signal_bound=mechanism.signal_bound(size=size),
                alpha=alpha,
                feedback=mechanism.feedback,
            )
        )

    @property
    def noncentrality(self) -> float:
        """The largest admissible noncentrality B²/σ²."""
        return (self.signal_bound / self.noise_std) ** 2

    @cached_property
    def lower(self) -> float:
        """The squared norm below which there is too little noise."""
        quiet = _lower_quantile(self.alpha / 2, self.dimension)
        if self.feedback:
            return max(0.0, self.noise_std * math.sqrt(quiet) - self.signal_bound) ** 2
        return self.noise_std**2 * quiet

    @cached_property
    def upper(self) -> float:
        """The squared norm above which there is too much noise."""
        if self.feedback:
            loud = _upper_quantile(self.alpha / 2, self.dimension, 0.0)
            return (self.noise_std * math.sqrt(loud) + self.signal_bound) ** 2
        return self.noise_std**2 * _upper_quantile(self.alpha / 2, self.dimension, self.noncentrality)

    def power(self, *, noise_factor: float, signal_fraction: float) -> float:
        """Return the probability of detecting noise that is `noise_factor` times as strong as declared (0: no noise).

        `signal_fraction` is the norm of the signal as a part of the bound. With `feedback` the result is a lower bound.
        """
        factor = arguments.non_negative("noise_factor", noise_factor)
        signal = arguments.non_negative("signal_fraction", signal_fraction) * self.signal_bound
        if factor == 0:
            return 0.0 if self.lower <= signal**2 <= self.upper else 1.0
        std = factor * self.noise_std
        if self.feedback:
            quiet = max(0.0, math.sqrt(self.lower) - signal) / std
            loud = (math.sqrt(self.upper) + signal) / std
            return _below(quiet**2, self.dimension, 0.0) + _above(loud**2, self.dimension, 0.0)
        noncentrality = (signal / std) ** 2
        below = _below(self.lower / std**2, self.dimension, noncentrality)
        return below + _above(self.upper / std**2, self.dimension, noncentrality)

    @cached_property
    def decisive(self) -> bool:
        """Whether missing noise and doubled noise are likely to be detected for every signal.

        The worst cases are the largest signal without noise, and no signal with doubled noise. Roughly: B²/σ² < d.
        """
        missing = self.power(noise_factor=0.0, signal_fraction=1.0)
        doubled = self.power(noise_factor=2.0, signal_fraction=1.0 if self.feedback else 0.0)
        return min(missing, doubled) >= _DECISIVE_POWER

    def verdict(self, *, squared_norm: float) -> NoiseVerdict:
        """Return the verdict on the squared norm of an upload. An honest one fails with probability at most `alpha`."""
        energy = arguments.non_negative("squared_norm", squared_norm)
        if energy < self.lower:
            return NoiseVerdict.TOO_LITTLE_NOISE
        if energy > self.upper:
            return NoiseVerdict.TOO_MUCH_NOISE
        return NoiseVerdict.CONSISTENT if self.decisive else NoiseVerdict.UNDECIDABLE


@lru_cache(maxsize=4096)
def _known_audit(audit: NoiseAudit) -> NoiseAudit:
    """Return the first of several equal tests: clients bid alike from round to round, and quantiles are slow."""
    return audit


def alpha_per_upload(*, alpha: float, clients: int, rounds: int) -> float:
    """Return the rate for one upload that keeps the chance of any false accusation in a task below `alpha`.

    >>> alpha_per_upload(alpha=1e-3, clients=10, rounds=20)
    5e-06
    """
    uploads = arguments.whole("clients", clients, minimum=1) * arguments.whole("rounds", rounds, minimum=1)
    return arguments.probability("alpha", alpha) / uploads


@dataclass(frozen=True, kw_only=True)
class RoundMoments:
    """Inner products of the uploads u_i of one round. Two passes over the uploads compute them.

    `sum_products` are <u_i, Σ_j u_j>, and `sum_squared_norm` is |Σ_j u_j|².
    """

    squared_norms: Vector
    sum_products: Vector
    sum_squared_norm: float


def noise_ratio(*, moments: RoundMoments, dimension: int, noise_stds: Numbers) -> Vector:
    """Estimate (true noise / declared noise)² of each upload. A soft flag without a guaranteed false-positive rate.

    The mean inner product of the *other* uploads estimates the squared signal that they share. Honest clients have
    values around 1 to 1.3. Values outside [0.7, 1.6] over three rounds deserve a closer look. The result is NaN for
    fewer than three uploads.

    >>> moments = RoundMoments(
    ...     squared_norms=np.array([10.0, 10.0, 40.0]), sum_products=np.array([10.0, 10.0, 40.0]), sum_squared_norm=60.0
    ... )
    >>> noise_ratio(moments=moments, dimension=1000, noise_stds=[0.1, 0.1, 0.1]).round(3).tolist()
    [1.0, 1.0, 4.0]
    """
    norms = arguments.non_negative_vector("squared_norms", moments.squared_norms)
    products = arguments.vector("sum_products", moments.sum_products, length=norms.size)
    stds = arguments.positive_vector("noise_stds", noise_stds, length=norms.size)
    dimension = arguments.whole("dimension", dimension, minimum=1)
    pairs = (norms.size - 1) * (norms.size - 2)
    if pairs <= 0:
        return norms * math.nan
    others = arguments.non_negative("sum_squared_norm", moments.sum_squared_norm) - 2 * products + norms
    shared_signal = (others - (norms.sum() - norms)) / pairs
    ratio: Vector = (norms - shared_signal) / (dimension * stds**2)
    return ratio


def alignment(*, moments: RoundMoments, dimension: int) -> Vector:
    """Return how well each upload agrees with the sum of the others: √d times the cosine. A soft flag.

    The score of a random direction, such as pure noise, is about N(0, 1). Honest clients score high in early rounds
    only, and about 0 if their noise is large. An honest client with unusual data scores low too. The result is 0 where
    the upload is 0 or the others add up to 0.

    >>> moments = RoundMoments(
    ...     squared_norms=np.array([1.0, 1.0]), sum_products=np.array([1.5, 1.5]), sum_squared_norm=3.0
    ... )
    >>> alignment(moments=moments, dimension=100).round(3).tolist()
    [5.0, 5.0]
    """
    norms = arguments.non_negative_vector("squared_norms", moments.squared_norms)
    products = arguments.vector("sum_products", moments.sum_products, length=norms.size)
    dimension = arguments.whole("dimension", dimension, minimum=1)
    others = arguments.non_negative("sum_squared_norm", moments.sum_squared_norm) - 2 * products + norms
    lengths = np.sqrt(norms * np.maximum(others, 0.0))
    cosines: Vector = np.zeros(norms.size)
    np.divide(products - norms, lengths, out=cosines, where=lengths > 0)
    return math.sqrt(dimension) * np.clip(cosines, -1.0, 1.0)


def alignment_score(scores: Sequence[float]) -> float:
    """Return the alignment of one client over several rounds: the sum over √n, again N(0, 1) for random directions.

    >>> alignment_score([1.0, 2.0, 3.0, 2.0])
    4.0
    """
    return math.fsum(scores) / math.sqrt(len(scores)) if scores else 0.0


def _lower_quantile(tail: float, dimension: int) -> float:
    """Return the energy that noise alone falls below with probability `tail`."""
    if dimension > _NORMAL_FROM:
        return max(0.0, dimension + float(_special().ndtri(tail)) * math.sqrt(2 * dimension))
    return 2 * float(_special().gammaincinv(dimension / 2, tail))


def _upper_quantile(tail: float, dimension: int, noncentrality: float) -> float:
    """Return the energy that the largest admissible signal with noise exceeds with probability `tail`."""
    if dimension + noncentrality > _NORMAL_FROM:
        spread = math.sqrt(2 * dimension + 4 * noncentrality)
        return dimension + noncentrality - float(_special().ndtri(tail)) * spread
    if noncentrality > 0:
        # A tail below 1e-10 loses digits in the difference, but the energy changes by less than a part in 10,000.
        return float(_special().chndtrix(1 - tail, dimension, noncentrality))
    return float(_special().chdtri(dimension, tail))


def _below(energy: float, dimension: int, noncentrality: float) -> float:
    if dimension + noncentrality > _NORMAL_FROM:
        return float(_special().ndtr(_standardised(energy, dimension, noncentrality)))
    if noncentrality > 0:
        return float(_special().chndtr(energy, dimension, noncentrality))
    return float(_special().chdtr(dimension, energy))


def _above(energy: float, dimension: int, noncentrality: float) -> float:
    if dimension + noncentrality > _NORMAL_FROM:
        return float(_special().ndtr(-_standardised(energy, dimension, noncentrality)))
    if noncentrality > 0:
        return max(0.0, 1 - float(_special().chndtr(energy, dimension, noncentrality)))
    return float(_special().chdtrc(dimension, energy))


def _standardised(energy: float, dimension: int, noncentrality: float) -> float:
    return (energy - dimension - noncentrality) / math.sqrt(2 * dimension + 4 * noncentrality)


def _special() -> ModuleType:
    """Import scipy.special when it is first used. `scipy.stats` would take a second and 50 MB more."""
    return importlib.import_module("scipy.special")
