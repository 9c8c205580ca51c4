"""The accuracy curve, its fit, and the rewards it implies."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.equilibrium import equilibrium
from qidpfl_shared.core.forecast import (
    AccuracyCurve,
    FitStatus,
    RangeStatus,
    fit_accuracy_curve,
    fit_loss_curve,
    reward_range,
)

CURVE = AccuracyCurve(ceiling=0.9, drop=0.5, rate=20.0)
VALUES = [0.95, 1.0, 1.05, 1.02]


@given(st.floats(0.6, 1), st.floats(0.1, 0.6), st.floats(-3, 4).map(lambda x: 10**x))
def test_a_fit_recovers_the_curve_it_was_sampled_from(ceiling: float, drop: float, rate: float) -> None:
    totals = np.geomspace(0.2, 4, 9) / rate
    fit = fit_accuracy_curve(totals=totals, accuracies=ceiling - drop * np.exp(-rate * totals))
    assert fit.status is FitStatus.FITTED
    assert fit.curve is not None
    assert fit.curve.ceiling == pytest.approx(ceiling, rel=1e-5)
    assert fit.curve.drop == pytest.approx(drop, rel=1e-5)
    assert fit.curve.rate == pytest.approx(rate, rel=1e-5)
    assert fit.decades == pytest.approx(math.log10(20))


def test_a_fit_of_noisy_measurements_is_as_good_as_the_noise() -> None:
    rng = np.random.default_rng(0)
    totals = np.geomspace(0.01, 0.2, 12)
    fit = fit_accuracy_curve(totals=totals, accuracies=0.9 - 0.5 * np.exp(-20 * totals) + rng.normal(0, 0.003, 12))
    assert fit.curve is not None
    assert fit.rmse < 0.005
    assert fit.curve.ceiling == pytest.approx(0.9, abs=0.01)


def test_the_papers_second_and_fourth_constants_cannot_be_distinguished() -> None:
    one = AccuracyCurve.from_paper(i1=0.9, i2=0.5, i3=3, i4=0.2)
    other = AccuracyCurve.from_paper(i1=0.9, i2=0.5 * math.exp(0.3), i3=3, i4=0.5)
    assert one.accuracy(total=0.7) == pytest.approx(other.accuracy(total=0.7))
    assert one.accuracy(total=0.7) == pytest.approx(0.9 - 0.5 * math.exp(-3 * 0.7 - 0.2))


@pytest.mark.parametrize(
    ("totals", "accuracies"),
    [
        ([1, 2, 3, 4], [0.5, 0.5, 0.5, 0.5]),
        ([1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4]),
        ([1, 2, 3, 4], [0.4, 0.3, 0.25, 0.24]),
        ([1, 1, 2, 2], [0.1, 0.2, 0.3, 0.4]),
        ([1, 2], [0.1, 0.2]),
        # A step: any fast enough rate fits as well as any other.
        ([1, 2, 3, 4], [0.1, 0.9, 0.9, 0.9]),
        # A real curve, but so far from 0 that its drop cannot be written down.
        ([1000, 1000.5, 1001, 1002, 1004], [0.6, 0.718, 0.7896, 0.8594, 0.8945]),
        ([], []),
    ],
)
def test_measurements_that_determine_no_curve_are_a_status(totals: list[float], accuracies: list[float]) -> None:
    fit = fit_accuracy_curve(totals=totals, accuracies=accuracies)
    assert fit.status is FitStatus.NOT_IDENTIFIABLE
    assert fit.curve is None


def test_a_fitted_curve_refuses_to_extrapolate() -> None:
    totals = np.geomspace(0.01, 0.1, 6)
    curve = fit_accuracy_curve(totals=totals, accuracies=0.9 - 0.5 * np.exp(-20 * totals)).curve
    assert curve is not None
    assert curve.accuracy(total=0.1) == pytest.approx(0.9 - 0.5 * math.exp(-2))
    for total in (0.009, 0.11):
        with pytest.raises(ImpossibleArgument, match="calibrated range"):
            curve.accuracy(total=total)


def test_the_curve_of_the_loss_falls_to_its_floor_and_refuses_to_extrapolate() -> None:
    totals = np.geomspace(0.01, 0.1, 6)
    fit = fit_loss_curve(totals=totals, losses=0.3 + 2.0 * np.exp(-20 * totals))
    assert fit.status is FitStatus.FITTED and fit.curve is not None
    assert (fit.curve.floor, fit.curve.rise, fit.curve.rate) == pytest.approx((0.3, 2.0, 20.0))
    assert fit.curve.loss(total=0.1) == pytest.approx(0.3 + 2.0 * math.exp(-2))
    assert fit.rmse == pytest.approx(0.0, abs=1e-8)
    with pytest.raises(ImpossibleArgument, match="calibrated range"):
        fit.curve.loss(total=0.2)


def test_a_loss_that_does_not_fall_has_no_curve() -> None:
    fit = fit_loss_curve(totals=[0.1, 0.2, 0.3, 0.4], losses=[1.0, 1.2, 1.3, 1.35])
    assert (fit.status, fit.curve) == (FitStatus.NOT_IDENTIFIABLE, None)


@given(st.floats(0.001, 0.3), st.floats(0.001, 0.3))
def test_the_range_buys_exactly_the_targets(first: float, second: float) -> None:
    low, high = sorted((CURVE.accuracy(total=first), CURVE.accuracy(total=second)))
    found = reward_range(curve=CURVE, target=low, target_max=high, privacy_values=VALUES, privacy_weight=30)
    assert found.status is RangeStatus.FEASIBLE
    assert found.reward_range is not None
    ends = ((found.reward_range.minimum, low), (found.reward_range.maximum, high))
    for reward, target in ends:
        bought = equilibrium(reward=reward, privacy_values=VALUES, privacy_weight=30).total
        assert CURVE.accuracy(total=bought) == pytest.approx(target)


def test_the_range_is_the_papers_formula() -> None:
    found = reward_range(curve=CURVE, target=0.8, target_max=0.85, privacy_values=VALUES, privacy_weight=30)
    unit = 30 * sum(VALUES) / 3
    assert found.reward_range is not None
    assert found.reward_range.minimum == pytest.approx(math.log(0.5 / 0.1) / 20 * unit)
    assert found.reward_range.maximum == pytest.approx(math.log(0.5 / 0.05) / 20 * unit)


@pytest.mark.parametrize(
    ("target", "target_max", "status"),
    [
        (0.9, None, RangeStatus.INFEASIBLE),
        (0.95, 0.97, RangeStatus.INFEASIBLE),
        (0.8, 0.7, RangeStatus.EMPTY),
        (0.8, 0.95, RangeStatus.FEASIBLE),
        (0.8, None, RangeStatus.FEASIBLE),
        (0.1, 0.8, RangeStatus.FEASIBLE),
    ],
)
def test_impossible_ranges_are_a_status(target: float, target_max: float | None, status: RangeStatus) -> None:
    found = reward_range(curve=CURVE, target=target, target_max=target_max, privacy_values=VALUES, privacy_weight=30)
    assert found.status is status
    assert (found.reward_range is not None) == (status is RangeStatus.FEASIBLE)


def test_a_target_that_is_always_met_needs_no_reward_and_one_that_never_binds_has_no_upper_end() -> None:
    found = reward_range(curve=CURVE, target=0.3, target_max=0.9, privacy_values=VALUES, privacy_weight=30)
    assert found.reward_range is not None
    assert (found.reward_range.minimum, found.reward_range.maximum) == (0, math.inf)


def test_under_caps_the_range_is_inverted_numerically() -> None:
    caps = [0.02, 0.03, 0.05, 0.05]
    found = reward_range(curve=CURVE, target=0.8, target_max=None, privacy_values=VALUES, privacy_weight=30, caps=caps)
    assert found.reward_range is not None
    bought = equilibrium(reward=found.reward_range.minimum, privacy_values=VALUES, privacy_weight=30, caps=caps)
    assert CURVE.accuracy(total=bought.total) == pytest.approx(0.8)
    free = reward_range(curve=CURVE, target=0.8, target_max=None, privacy_values=VALUES, privacy_weight=30)
    assert free.reward_range is not None
    assert found.reward_range.minimum > free.reward_range.minimum


def test_a_target_beyond_the_caps_is_infeasible() -> None:
    found = reward_range(
        curve=CURVE, target=0.89, target_max=None, privacy_values=VALUES, privacy_weight=30, caps=[0.01] * 4
    )
    assert found.status is RangeStatus.INFEASIBLE


def test_a_range_outside_the_calibration_is_refused() -> None:
    curve = AccuracyCurve(ceiling=0.9, drop=0.5, rate=20.0, total_min=0.05, total_max=0.1)
    inside, above, below = (curve.ceiling - 0.5 * math.exp(-20 * total) for total in (0.07, 0.2, 0.02))
    for target, target_max in ((inside, above), (below, inside), (above, None)):
        found = reward_range(
            curve=curve, target=target, target_max=target_max, privacy_values=VALUES, privacy_weight=30
        )
        assert found.status is RangeStatus.OUTSIDE_CALIBRATION


def test_one_client_makes_no_market() -> None:
    found = reward_range(curve=CURVE, target=0.8, target_max=None, privacy_values=[1.0], privacy_weight=30)
    assert found.status is RangeStatus.TOO_FEW_CLIENTS
