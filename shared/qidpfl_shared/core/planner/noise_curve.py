"""Accuracy from the noise of the average: a - b·x^c, fitted to runs that have ended, with a prediction interval.

x is the expected norm of the noise of the average in units of the bound C of one update's signal, √(d·Σp_i²·σ_i²)/C: it
is known before a run, and includes clients, sizes, weights and budgets. Over several rounds it is the root of the mean
square, because the bound of the loss adds up squared norms. A curve holds for one workload, one local computation, one
server step and one number of rounds, between the smallest and the largest noise of its runs.
"""

import math
from dataclasses import dataclass

import numpy as np

from .. import arguments
from ..arguments import ImpossibleArgument, Numbers, Vector

# With fewer runs the spread of the residuals says nothing.
FEWEST_RUNS = 5
# The largest noise of the runs must be at least this multiple of the smallest.
SMALLEST_RANGE = 1.25
_EXPONENTS = (0.25, 4.0)
_GRID_POINTS = 60
# An answer of a search may miss the ends of the range because of rounding.
_ROUNDING = 1e-4


class NoCurve(Exception):
    """The runs do not determine a curve. The message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """An expected accuracy, and the interval in which a new run lies with the confidence of the curve."""

    low: float
    expected: float
    high: float


@dataclass(frozen=True, kw_only=True, eq=False)
class NoiseCurve:
    """accuracy = a - b·x^c between two noises, with the spread of single runs around it.

    `covariance` is that of (a, b, c) in units of the squared spread, and `quantile` the factor of the interval.
    """

    ceiling: float
    slope: float
    exponent: float
    noise_min: float
    noise_max: float
    spread: float
    quantile: float
    covariance: Vector
    runs: int

    def covers(self, noise: float) -> bool:
        """Whether the runs had such a noise."""
        return self.noise_min * (1 - _ROUNDING) <= noise <= self.noise_max * (1 + _ROUNDING)

    def predict(self, noise: float) -> Prediction:
        """Return the accuracy at this noise. Raises `ImpossibleArgument` outside the range of the runs."""
        noise = arguments.positive("noise", noise)
        if not self.covers(noise):
            requirement = f"must lie in the calibrated range [{self.noise_min:.4g}, {self.noise_max:.4g}]"
            raise ImpossibleArgument("noise", noise, requirement)
        expected = self._value(noise)
        gradient = _gradient(np.array([noise]), self.slope, self.exponent)[0]
        width = self.quantile * self.spread * math.sqrt(1 + float(gradient @ self.covariance @ gradient))
        return Prediction(low=expected - width, expected=expected, high=expected + width)

    def noise_for(self, accuracy: float) -> float | None:
        """Return the noise with this expected accuracy; None if the runs do not cover it."""
        gap = (self.ceiling - arguments.real("accuracy", accuracy)) / self.slope
        noise = math.exp(math.log(gap) / self.exponent) if gap > 0 else 0.0
        return noise if self.covers(noise) else None

    @property
    def accuracies(self) -> tuple[float, float]:
        """The smallest and the largest expected accuracy of the range."""
        return self._value(self.noise_max), self._value(self.noise_min)

    def _value(self, noise: float) -> float:
        return self.ceiling - self.slope * math.pow(noise, self.exponent)


def mean_noise(noises: Numbers) -> float:
    """Return the root of the mean square of the noises of several rounds.

    >>> mean_noise([3.0, 4.0, 0.0, 0.0])
    2.5
    """
    values = arguments.non_negative_vector("noises", noises)
    return math.sqrt(math.fsum((values**2).tolist()) / values.size) if values.size else 0.0


def fit_noise_curve(*, noises: Numbers, accuracies: Numbers, confidence: float = 0.9) -> NoiseCurve:
    """Fit the least-squares curve to the noises and accuracies of runs. Repeats of a run are what shows its spread.

    For a given exponent the other two constants solve a linear problem, so only the exponent is searched: 0.25 to 4.

    Raises `NoCurve` if there are too few runs, if their noises are too much alike, or if accuracy does not fall with
    noise; `ImpossibleArgument` for impossible numbers.

    >>> noises = [0.2, 0.2, 0.3, 0.4, 0.5, 0.6]
    >>> curve = fit_noise_curve(noises=noises, accuracies=[0.9 - 0.2 * noise**2 for noise in noises])
    >>> round(curve.ceiling, 3), round(curve.slope, 3), round(curve.exponent, 2)
    (0.9, 0.2, 2.0)
    """
    known = arguments.positive_vector("noises", noises)
    measured = arguments.vector("accuracies", accuracies, length=known.size)
    arguments.probability("confidence", confidence)
    if known.size < FEWEST_RUNS:
        raise NoCurve(f"{known.size} runs do not determine a curve: at least {FEWEST_RUNS} are needed")
    lowest, highest = float(known.min()), float(known.max())
    if highest < lowest * SMALLEST_RANGE or np.unique(known).size < 3:
        raise NoCurve(
            f"the noises of the runs, {lowest:.4g} to {highest:.4g}, are too much alike: run tasks with other rewards"
        )
    exponent = _best_exponent(known, measured)
    ceiling, slope, error = _linear_fit(exponent, known, measured)
    if slope <= 0:
        raise NoCurve("the accuracy of the runs does not fall with their noise: run tasks with other rewards")
    # scipy.special alone loads faster than the distributions of scipy.stats.
    from scipy.special import stdtrit

    freedom = known.size - 3
    jacobian = _gradient(known, slope, exponent)
    covariance: Vector = np.asarray(np.linalg.pinv(jacobian.T @ jacobian, hermitian=True), dtype=np.float64)
    return NoiseCurve(
        ceiling=ceiling,
        slope=slope,
        exponent=exponent,
        noise_min=lowest,
        noise_max=highest,
        spread=math.sqrt(error / freedom),
        quantile=float(stdtrit(freedom, (1 + confidence) / 2)),
        covariance=covariance,
        runs=known.size,
    )


def _best_exponent(noises: Vector, measured: Vector) -> float:
    from scipy.optimize import minimize_scalar

    def error(logarithm: float) -> float:
        return _linear_fit(math.exp(logarithm), noises, measured)[2]

    grid = np.linspace(math.log(_EXPONENTS[0]), math.log(_EXPONENTS[1]), _GRID_POINTS)
    best = int(np.argmin([error(float(point)) for point in grid]))
    bounds = (float(grid[max(0, best - 1)]), float(grid[min(grid.size - 1, best + 1)]))
    found = minimize_scalar(error, bounds=bounds, method="bounded", options={"xatol": 1e-9})
    return math.exp(float(found.x))


def _linear_fit(exponent: float, noises: Vector, measured: Vector) -> tuple[float, float, float]:
    """The best ceiling and slope for this exponent, and the sum of the squared errors."""
    powers = noises**exponent
    centred = powers - powers.mean()
    slope = -float(centred @ measured) / float(centred @ centred)
    ceiling = float(measured.mean()) + slope * float(powers.mean())
    return ceiling, slope, float(np.sum((ceiling - slope * powers - measured) ** 2))


def _gradient(noises: Vector, slope: float, exponent: float) -> Vector:
    """The derivatives of the curve by its three constants, one row per noise."""
    powers = noises**exponent
    return np.stack([np.ones(noises.size), -powers, -slope * powers * np.log(noises)], axis=1)
