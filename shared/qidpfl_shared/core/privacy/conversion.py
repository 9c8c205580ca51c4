"""rho-zCDP read as (epsilon, delta), and back: simple >= tight >= exact.

`simple` and `tight` hold for every rho-zCDP mechanism, `gaussian` only for Gaussian noise on one fixed query (not for
`noisy_epochs`). For a given delta each reading is a smaller epsilon than the one before.
"""

import math
from collections.abc import Callable
from enum import StrEnum

from scipy.optimize import brentq
from scipy.special import log_ndtr

from .. import arguments


class Reading(StrEnum):
    """Which conversion turns rho into epsilon."""

    SIMPLE = "simple"
    TIGHT = "tight"
    GAUSSIAN = "gaussian"


def epsilon_from_rho(*, rho: float, delta: float, reading: Reading = Reading.TIGHT) -> float:
    """The smallest epsilon that this reading proves for rho-zCDP; infinite for an unprotected release."""
    rho = arguments.limit("rho", rho)
    delta = arguments.probability("delta", delta)
    reading = arguments.choice("reading", reading, Reading)
    if rho == 0 or math.isinf(rho):
        return rho
    return max(0.0, _EPSILON[reading](rho, delta))


def rho_from_epsilon(*, epsilon: float, delta: float, reading: Reading = Reading.TIGHT) -> float:
    """The largest rho whose epsilon under this reading does not exceed the given one."""
    epsilon = arguments.non_negative("epsilon", epsilon)
    delta = arguments.probability("delta", delta)
    reading = arguments.choice("reading", reading, Reading)
    log_inverse = -math.log(delta)
    # (sqrt(L + ε) - sqrt(L))² without cancellation: the inverse of the simple reading, which is the largest.
    simple = (epsilon / (math.sqrt(log_inverse + epsilon) + math.sqrt(log_inverse))) ** 2
    if reading is Reading.SIMPLE:
        return simple

    def excess(rho: float) -> float:
        if reading is Reading.TIGHT:
            return _tight(rho, delta) - epsilon
        return _log_gaussian_delta(math.sqrt(2 * rho), epsilon) + log_inverse

    return _root_above(max(simple, delta * delta / 2, 1e-300), excess)


def gaussian_delta(*, rho: float, epsilon: float) -> float:
    """The exact delta of a Gaussian release of rho-zCDP at epsilon (Balle & Wang 2018), with μ = sqrt(2·rho)."""
    rho = arguments.positive("rho", rho)
    return math.exp(_log_gaussian_delta(math.sqrt(2 * rho), arguments.non_negative("epsilon", epsilon)))


def _simple(rho: float, delta: float) -> float:
    return rho + 2 * math.sqrt(rho * -math.log(delta))


def _tight(rho: float, delta: float) -> float:
    """min over a > 1 of a·ρ + ln((a-1)/a) + (ln(1/δ) - ln a)/(a-1) (Canonne, Kamath & Steinke 2020).

    The derivative vanishes where ρ·(a-1)² + ln a = ln(1/δ). The left side grows, so there is one minimum; it is found
    in ln(a-1), between the values at which both terms are at most a half of the right side and one is the whole.
    """
    log_inverse = -math.log(delta)
    lowest = min(0.5 * math.log(log_inverse / 2 / rho), _log_expm1(log_inverse / 2))
    highest = min(0.5 * math.log(log_inverse / rho), _log_expm1(log_inverse))

    def slope(logarithm: float) -> float:
        b = math.exp(logarithm)
        return rho * b * b + math.log1p(b) - log_inverse

    b = math.exp(float(brentq(slope, lowest - 1e-9, highest + 1e-9, rtol=1e-13)))
    return rho * (1 + b) - math.log1p(1 / b) + (log_inverse - math.log1p(b)) / b


def _log_expm1(exponent: float) -> float:
    return exponent + math.log(-math.expm1(-exponent))


def _gaussian(rho: float, delta: float) -> float:
    if rho > 1e15:
        # The exact curve cannot be told from the tight bound in a float any more.
        return _tight(rho, delta)
    mu = math.sqrt(2 * rho)
    log_delta = math.log(delta)
    if _log_gaussian_delta(mu, 0.0) <= log_delta:
        return 0.0
    highest = _simple(rho, delta)
    return float(
        brentq(lambda epsilon: _log_gaussian_delta(mu, epsilon) - log_delta, 0.0, highest, xtol=1e-300, rtol=1e-13)
    )


_EPSILON: dict[Reading, Callable[[float, float], float]] = {
    Reading.SIMPLE: _simple,
    Reading.TIGHT: _tight,
    Reading.GAUSSIAN: _gaussian,
}


def _log_gaussian_delta(mu: float, epsilon: float) -> float:
    """ln(Φ(μ/2 - ε/μ) - e^ε·Φ(-μ/2 - ε/μ)), in logarithms because both terms underflow long before their ratio."""
    z = -epsilon / mu
    first = float(log_ndtr(z + mu / 2))
    if mu < 1e-5:
        # The two terms agree to more digits than a float has: use the derivative φ/Φ of ln Φ, exact to O(μ²).
        hazard = math.exp(-z * z / 2 - 0.5 * math.log(2 * math.pi) - float(log_ndtr(z)))
        gap = mu * (z + hazard)
    else:
        gap = first - epsilon - float(log_ndtr(z - mu / 2))
    return first + math.log(-math.expm1(-gap)) if gap > 0 else -math.inf


def _root_above(low: float, excess: Callable[[float], float]) -> float:
    """The root of an increasing function, searched upwards from where it is negative."""
    high = 2 * low
    while excess(high) <= 0:
        low, high = high, 2 * high
    if excess(low) > 0:
        return low
    return float(brentq(excess, low, high, xtol=1e-300, rtol=1e-13))
