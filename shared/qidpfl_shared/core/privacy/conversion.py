"""Conversion of rho-zCDP to (epsilon, delta), and back.

`simple` and `tight` hold for every rho-zCDP mechanism. `gaussian` holds only for Gaussian noise on one fixed query, so
not for `noisy_epochs`. At a given delta, `simple` gives the largest epsilon and `gaussian` the smallest.

All functions raise `ImpossibleArgument` for a number outside its range.
"""

import importlib
import math
from collections.abc import Callable
from enum import StrEnum
from types import ModuleType

from .. import arguments

# Newton's steps double the number of right digits; in tests at most ten are needed.
_MAX_STEPS = 60
_PRECISION = 1e-13


class Reading(StrEnum):
    """Which conversion from rho to epsilon is used."""

    SIMPLE = "simple"
    TIGHT = "tight"
    GAUSSIAN = "gaussian"


def epsilon_from_rho(*, rho: float, delta: float, reading: Reading = Reading.TIGHT) -> float:
    """Return the smallest epsilon that this reading proves for rho-zCDP; infinite for an unprotected release.

    >>> [round(epsilon_from_rho(rho=0.1, delta=1e-5, reading=reading), 3) for reading in Reading]
    [2.246, 1.914, 1.76]
    """
    rho = arguments.limit("rho", rho)
    delta = arguments.probability("delta", delta)
    reading = arguments.choice("reading", reading, Reading)
    if rho == 0 or math.isinf(rho):
        return rho
    return max(0.0, _EPSILON[reading](rho, delta))


def rho_from_epsilon(*, epsilon: float, delta: float, reading: Reading = Reading.TIGHT) -> float:
    """Return the largest rho whose epsilon under this reading does not exceed the given one.

    >>> round(rho_from_epsilon(epsilon=1.0, delta=1e-5), 4)
    0.0306
    """
    epsilon = arguments.non_negative("epsilon", epsilon)
    delta = arguments.probability("delta", delta)
    reading = arguments.choice("reading", reading, Reading)
    log_inverse = -math.log(delta)
    # (sqrt(L + ε) - sqrt(L))² without cancellation: the inverse of the simple reading.
    simple = (epsilon / (math.sqrt(log_inverse + epsilon) + math.sqrt(log_inverse))) ** 2
    if reading is Reading.SIMPLE:
        return simple

    def excess(rho: float) -> float:
        if reading is Reading.TIGHT:
            return _tight(rho, delta) - epsilon
        return _log_gaussian_delta(math.sqrt(2 * rho), epsilon) + log_inverse

    return _root_above(max(simple, delta * delta / 2, 1e-300), excess)


def gaussian_delta(*, rho: float, epsilon: float) -> float:
    """Return the exact delta of a Gaussian rho-zCDP release at epsilon (Balle & Wang 2018), with μ = sqrt(2·rho).

    >>> round(gaussian_delta(rho=0.1, epsilon=1.0), 5)
    0.00319
    """
    rho = arguments.positive("rho", rho)
    return math.exp(_log_gaussian_delta(math.sqrt(2 * rho), arguments.non_negative("epsilon", epsilon)))


def _simple(rho: float, delta: float) -> float:
    return rho + 2 * math.sqrt(rho * -math.log(delta))


def _tight(rho: float, delta: float) -> float:
    """min over a > 1 of a·ρ + ln((a-1)/a) + (ln(1/δ) - ln a)/(a-1) (Canonne, Kamath & Steinke 2020).

    The derivative is 0 where ρ·(a-1)² + ln a = ln(1/δ). The left side grows, so there is one minimum. In u = ln(a-1) it
    is convex too, so Newton's steps fall to the root from the upper bound, where one term equals the right side.
    """
    log_inverse = -math.log(delta)
    b = math.exp(min(0.5 * math.log(log_inverse / rho), _log_expm1(log_inverse)))
    for _ in range(_MAX_STEPS):
        excess = rho * b * b + math.log1p(b) - log_inverse
        step = excess / (2 * rho * b * b + b / (1 + b))
        if step <= _PRECISION:
            break
        b *= math.exp(-step)
    return rho * (1 + b) - math.log1p(1 / b) + (log_inverse - math.log1p(b)) / b


def _log_expm1(exponent: float) -> float:
    return exponent + math.log(-math.expm1(-exponent))


def _gaussian(rho: float, delta: float) -> float:
    if rho > 1e15:
        # Here the exact curve and the tight bound are the same in floating point.
        return _tight(rho, delta)
    mu = math.sqrt(2 * rho)
    log_delta = math.log(delta)
    if _log_gaussian_delta(mu, 0.0) <= log_delta:
        return 0.0
    highest = _simple(rho, delta)
    return float(
        _scipy("optimize").brentq(
            lambda epsilon: _log_gaussian_delta(mu, epsilon) - log_delta, 0.0, highest, xtol=1e-300, rtol=1e-13
        )
    )


_EPSILON: dict[Reading, Callable[[float, float], float]] = {
    Reading.SIMPLE: _simple,
    Reading.TIGHT: _tight,
    Reading.GAUSSIAN: _gaussian,
}


def _log_gaussian_delta(mu: float, epsilon: float) -> float:
    """Return ln(Φ(μ/2 - ε/μ) - e^ε·Φ(-μ/2 - ε/μ)). Logarithms, because the terms underflow before their ratio does."""
    z = -epsilon / mu
    first = float(_scipy("special").log_ndtr(z + mu / 2))
    if mu < 1e-5:
        # The two terms agree in all digits of a float. Use the derivative φ/Φ of ln Φ, exact to O(μ²).
        hazard = math.exp(-z * z / 2 - 0.5 * math.log(2 * math.pi) - float(_scipy("special").log_ndtr(z)))
        gap = mu * (z + hazard)
    else:
        gap = first - epsilon - float(_scipy("special").log_ndtr(z - mu / 2))
    return first + math.log(-math.expm1(-gap)) if gap > 0 else -math.inf


def _root_above(low: float, excess: Callable[[float], float]) -> float:
    """Return the root of an increasing function, searched upwards from a point where it is negative."""
    high = 2 * low
    while excess(high) <= 0:
        low, high = high, 2 * high
    if excess(low) > 0:
        return low
    return float(_scipy("optimize").brentq(excess, low, high, xtol=1e-300, rtol=1e-13))


def _scipy(name: str) -> ModuleType:
    """Import a part of scipy when it is first used: it takes longer than this package."""
    return importlib.import_module(f"scipy.{name}")
