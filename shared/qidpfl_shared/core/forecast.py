"""Forecast: the accuracy and the loss for a total budget, and the rewards for a target accuracy (Remark 1).

The curve is a calibration for one set of clients and one schedule. In fact, accuracy depends on Σ p_i²/(D_i²·ρ_i) and
on all earlier rounds. The curve is good over about one decade of budgets. It stores the range on which it was fitted
and refuses to extrapolate.

All functions and classes raise `ImpossibleArgument` for a number outside its range and for sequences of different
lengths.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from . import arguments
from .arguments import ImpossibleArgument, Numbers, Vector
from .equilibrium import reward_for_total
from .reward import RewardRange

_GRID_POINTS = 200
# A budget from an inversion may miss the ends of the calibrated range because of rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class AccuracyCurve:
    """I(ρ) = I1 - J·exp(-I3·ρ): concave and increasing in the total budget of a round.

    Of the paper's I2 and I4 only J = I2·exp(-I4) can be identified.

    >>> curve = AccuracyCurve(ceiling=0.9, drop=0.8, rate=1.0)
    >>> round(curve.accuracy(total=2.0), 3), round(curve.needed_total(accuracy=0.8), 3)
    (0.792, 2.079)
    """

    ceiling: float
    drop: float
    rate: float
    total_min: float = 0.0
    total_max: float = math.inf

    def __post_init__(self) -> None:
        arguments.real("ceiling", self.ceiling)
        arguments.positive("drop", self.drop)
        arguments.positive("rate", self.rate)
        arguments.non_negative("total_min", self.total_min)
        if not self.total_min < arguments.limit("total_max", self.total_max):
            raise ImpossibleArgument("total_max", self.total_max, f"must exceed total_min = {self.total_min}")

    @classmethod
    def from_paper(cls, *, i1: float, i2: float, i3: float, i4: float) -> "AccuracyCurve":
        """Return the curve of the paper's four constants."""
        exponent = -arguments.real("i4", i4)
        if abs(exponent) > 600:
            raise ImpossibleArgument("i4", i4, "must lie between -600 and 600")
        return cls(ceiling=i1, drop=arguments.positive("i2", i2) * math.exp(exponent), rate=i3)

    def accuracy(self, *, total: float) -> float:
        """Return the accuracy at this total budget. Raises `ImpossibleArgument` outside the calibrated range."""
        total = arguments.non_negative("total", total)
        if not self.covers(total):
            raise ImpossibleArgument(
                "total", total, f"must lie in the calibrated range [{self.total_min:g}, {self.total_max:g}]"
            )
        return self.ceiling - self.drop * math.exp(-self.rate * total)

    def covers(self, total: float) -> bool:
        """Whether the curve was calibrated at this total budget."""
        total = arguments.limit("total", total)
        return self.total_min * (1 - _ROUNDING) <= total <= self.total_max * (1 + _ROUNDING)

    def needed_total(self, *, accuracy: float) -> float:
        """Return the total budget for an accuracy: 0 if the curve starts above it, infinity if it never reaches it."""
        gap = self.ceiling - arguments.real("accuracy", accuracy)
        return max(0.0, math.log(self.drop / gap) / self.rate) if gap > 0 else math.inf


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """L(ρ) = L1 + J·exp(-L3·ρ): convex and falling in the total budget of a round.

    The paper has no such curve. It is the form of the accuracy curve, turned over, and no more than a fit.

    >>> round(LossCurve(floor=0.2, rise=1.0, rate=1.0).loss(total=2.0), 3)
    0.335
    """

    floor: float
    rise: float
    rate: float
    total_min: float = 0.0
    total_max: float = math.inf

    def __post_init__(self) -> None:
        self._turned_over()

    def loss(self, *, total: float) -> float:
        """Return the loss at this total budget. Raises `ImpossibleArgument` outside the calibrated range."""
        return -self._turned_over().accuracy(total=total)

    def _turned_over(self) -> AccuracyCurve:
        return AccuracyCurve(
            ceiling=-arguments.real("floor", self.floor),
            drop=arguments.positive("rise", self.rise),
            rate=self.rate,
            total_min=self.total_min,
            total_max=self.total_max,
        )


class FitStatus(StrEnum):
    """Whether the measurements determine a curve."""

    FITTED = "fitted"
    NOT_IDENTIFIABLE = "not_identifiable"


@dataclass(frozen=True, kw_only=True)
class CurveFit:
    """A fitted curve with its error, or the reason why there is none. `decades` is the width of its range."""

    status: FitStatus
    curve: AccuracyCurve | None
    rmse: float
    decades: float


def fit_accuracy_curve(*, totals: Numbers, accuracies: Numbers) -> CurveFit:
    """Fit the least-squares curve to measured accuracies. It is valid between the smallest and the largest budget.

    For a given rate the other two constants solve a linear problem, so only the rate is searched. Measurements that do
    not rise and bend (flat, falling, straight, or fewer than three budgets) do not determine a curve.

    >>> fit = fit_accuracy_curve(totals=[0.5, 1.0, 2.0, 4.0], accuracies=[0.415, 0.606, 0.792, 0.885])
    >>> fit.status.value, round(fit.curve.ceiling, 2), round(fit.curve.rate, 2)
    ('fitted', 0.9, 1.0)
    """
    budgets = arguments.positive_vector("totals", totals)
    measured = arguments.vector("accuracies", accuracies, length=budgets.size)
    if np.unique(budgets).size < 3:
        return _no_curve(rmse=math.inf, decades=0.0)
    lowest, highest = float(budgets.min()), float(budgets.max())

    def error(log_rate: float) -> float:
        return _linear_fit(math.exp(log_rate), budgets, measured)[2]

    # With a slower rate the curve is a straight line over the range; with a faster one it is flat after one budget.
    grid = np.linspace(math.log(1e-3 / (highest - lowest)), math.log(40 / _smallest_gap(budgets)), _GRID_POINTS)
    errors = np.array([error(float(point)) for point in grid])
    best = int(np.argmin(errors))
    decades = math.log10(highest / lowest)
    # The error is smallest at one end: a straight line or a step, for which the data do not determine the rate.
    if min(errors[0], errors[-1]) <= errors[best] * (1 + 1e-6) + 1e-12 * float(np.ptp(measured)):
        return _no_curve(rmse=float(errors[best]), decades=decades)
    # scipy.optimize takes longer to import than this package.
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(error, bounds=(grid[best - 1], grid[best + 1]), method="bounded", options={"xatol": 1e-9})
    rate = math.exp(float(found.x))
    ceiling, drop, rmse = _linear_fit(rate, budgets, measured)
    # The curve is almost flat at the first budget, so its value at 0 cannot be determined.
    if not 0 < drop < 1e12:
        return _no_curve(rmse=rmse, decades=decades)
    curve = AccuracyCurve(ceiling=ceiling, drop=drop, rate=rate, total_min=lowest, total_max=highest)
    return CurveFit(status=FitStatus.FITTED, curve=curve, rmse=rmse, decades=decades)


@dataclass(frozen=True, kw_only=True)
class LossFit:
    """A fitted curve of the loss with its error, or the reason why there is none."""

    status: FitStatus
    curve: LossCurve | None
    rmse: float


def fit_loss_curve(*, totals: Numbers, losses: Numbers) -> LossFit:
    """Fit the least-squares curve to measured losses, by the rules of `fit_accuracy_curve`.

    >>> fit = fit_loss_curve(totals=[0.5, 1.0, 2.0, 4.0], losses=[0.807, 0.568, 0.335, 0.218])
    >>> fit.status.value, round(fit.curve.floor, 2), round(fit.curve.rate, 2)
    ('fitted', 0.2, 1.0)
    """
    found = fit_accuracy_curve(totals=totals, accuracies=-arguments.vector("losses", losses))
    curve = found.curve
    if curve is None:
        return LossFit(status=found.status, curve=None, rmse=found.rmse)
    falling = LossCurve(
        floor=-curve.ceiling,
        rise=curve.drop,
        rate=curve.rate,
        total_min=curve.total_min,
        total_max=curve.total_max,
    )
    return LossFit(status=found.status, curve=falling, rmse=found.rmse)


def _no_curve(*, rmse: float, decades: float) -> CurveFit:
    return CurveFit(status=FitStatus.NOT_IDENTIFIABLE, curve=None, rmse=rmse, decades=decades)


class RangeStatus(StrEnum):
    """Whether there are admissible rewards; if not, the reason."""

    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    EMPTY = "empty"
    OUTSIDE_CALIBRATION = "outside_calibration"
    TOO_FEW_CLIENTS = "too_few_clients"


@dataclass(frozen=True, kw_only=True)
class RewardForecast:
    """The admissible rewards, or the reason why there are none."""

    status: RangeStatus
    reward_range: RewardRange | None


def reward_range(
    *,
    curve: AccuracyCurve,
    target: float,
    target_max: float | None,
    privacy_values: Numbers,
    privacy_weight: float,
    caps: Numbers | None = None,
) -> RewardForecast:
    """Return the rewards for an accuracy between `target` and `target_max` (eq. 33); None: no upper end.

    A target is infeasible if it is not below the curve's ceiling, or if the caps do not allow it. If `target_max` is
    not below the ceiling, the range has no upper end. All logarithms are natural.

    >>> curve = AccuracyCurve(ceiling=0.9, drop=0.8, rate=1.0)
    >>> found = reward_range(
    ...     curve=curve, target=0.7, target_max=0.8, privacy_values=[1.0, 1.0, 1.0], privacy_weight=1.0
    ... )
    >>> found.status.value, round(found.reward_range.minimum, 3), round(found.reward_range.maximum, 3)
    ('feasible', 2.079, 3.119)
    """
    values = arguments.positive_vector("privacy_values", privacy_values)
    limits = arguments.cap_vector(caps, length=values.size)
    needed = curve.needed_total(accuracy=arguments.real("target", target))
    needed_max = math.inf
    if target_max is not None:
        needed_max = curve.needed_total(accuracy=arguments.real("target_max", target_max))
    if np.count_nonzero(limits > 0) < 2:
        return RewardForecast(status=RangeStatus.TOO_FEW_CLIENTS, reward_range=None)
    if math.isinf(needed):
        return RewardForecast(status=RangeStatus.INFEASIBLE, reward_range=None)
    if any(0 < total < math.inf and not curve.covers(total) for total in (needed, needed_max)):
        return RewardForecast(status=RangeStatus.OUTSIDE_CALIBRATION, reward_range=None)
    if needed > needed_max:
        return RewardForecast(status=RangeStatus.EMPTY, reward_range=None)

    def price(total: float) -> float:
        return reward_for_total(total=total, privacy_values=values, privacy_weight=privacy_weight, caps=limits)

    minimum = price(needed)
    if math.isinf(minimum):
        return RewardForecast(status=RangeStatus.INFEASIBLE, reward_range=None)
    maximum = max(minimum, price(needed_max)) if math.isfinite(needed_max) else math.inf
    admissible = RewardRange(minimum=minimum, maximum=maximum)
    return RewardForecast(status=RangeStatus.FEASIBLE, reward_range=admissible)


def _linear_fit(rate: float, budgets: Vector, measured: Vector) -> tuple[float, float, float]:
    """Return the best ceiling and drop for this rate by linear regression, and the root mean square error."""
    start = float(budgets.min())
    # Relative to the smallest budget: otherwise all exponentials of a fast curve would underflow.
    decay = np.exp(-rate * (budgets - start))
    centred = decay - decay.mean()
    drop = -float(centred @ measured) / float(centred @ centred)
    ceiling = float(measured.mean()) + drop * float(decay.mean())
    rmse = float(np.sqrt(np.mean((ceiling - drop * decay - measured) ** 2)))
    return ceiling, drop * math.exp(min(rate * start, 700.0)), rmse


def _smallest_gap(budgets: Vector) -> float:
    return float(np.diff(np.unique(budgets)).min())
