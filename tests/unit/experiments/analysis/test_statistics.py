"""Means and differences over few seeds, with their intervals."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qidpfl_experiments.analysis.statistics import Estimate, differences, estimate, per_round, seeds_needed, widened
from support.synthetic_results import results

Values = st.lists(st.floats(-100, 100), min_size=2, max_size=8)


def known(found: Estimate | None) -> Estimate:
    assert found is not None
    return found


def test_an_interval_is_students() -> None:
    found = known(estimate([1.0, 2.0, 3.0, 4.0, 5.0]))
    # The quantile of Student's distribution with four degrees of freedom, from a printed table.
    assert found.margin == pytest.approx(2.776445 * math.sqrt(2.5 / 5), rel=1e-6)
    assert (found.mean, found.n, found.missing) == (3.0, 5, 0)


@pytest.mark.slow
def test_intervals_contain_the_true_mean_at_their_stated_rate() -> None:
    noise = np.random.default_rng(0)
    found = [known(estimate(noise.normal(7, 2, 3).tolist())) for _ in range(2000)]
    covered = sum(one.low is not None and one.high is not None and one.low <= 7 <= one.high for one in found)
    assert 0.935 < covered / 2000 < 0.965


def test_one_value_has_no_interval() -> None:
    found = known(estimate([4.0]))
    assert (found.mean, found.low, found.high, found.margin, found.n) == (4.0, None, None, None, 1)


def test_identical_values_have_an_interval_without_width() -> None:
    found = known(estimate([0.1] * 7))
    assert found.low == found.mean == found.high == pytest.approx(0.1)


def test_the_error_that_all_seeds_share_widens_an_interval() -> None:
    found = known(estimate([1.0, 2.0, 3.0, 4.0, 5.0]))
    wider = widened(found, 0.5)
    assert found.margin is not None and wider.margin == pytest.approx(math.hypot(found.margin, 1.959964 * 0.5))
    assert wider.mean == found.mean
    assert widened(found, None) == widened(found, 0.0) == found
    assert widened(known(estimate([4.0])), 0.5).low is None


def test_as_many_seeds_are_needed_as_make_the_interval_small_enough() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    # t(37) · 1.581 / √38 is the first below 0.52: from a printed table.
    assert seeds_needed(values, 0.52) == 38
    assert seeds_needed(values, 100.0) == 2
    assert (seeds_needed(values, 0.52, error=0.1) or 0) > 38
    assert seeds_needed(values, 0.52, error=0.3) == math.inf
    assert seeds_needed([1.0], 0.3) is None and seeds_needed(values, 0.0) is None
    assert seeds_needed([2.0, 2.0], 0.3) == 2


def test_no_values_have_no_mean() -> None:
    assert estimate([]) is None
    assert estimate([None, math.nan, math.inf]) is None


def test_unknown_values_are_left_out_and_counted() -> None:
    found = known(estimate([1.0, None, 3.0, math.nan]))
    assert (found.mean, found.n, found.missing) == (2.0, 2, 2)


@given(Values)
def test_a_mirrored_estimate_is_that_of_the_negative_values(values: list[float]) -> None:
    mirrored, negative = known(estimate(values)).mirrored, known(estimate([-value for value in values]))
    assert mirrored.mean == pytest.approx(negative.mean)
    assert mirrored.low == pytest.approx(negative.low)
    assert mirrored.high == pytest.approx(negative.high)


def test_differences_between_seeds_cancel_in_pairs() -> None:
    first, second = {0: 50.5, 1: 70.5, 2: 90.5}, {2: 90.0, 0: 50.0, 1: 70.0}
    found = known(differences(first, second).estimate)
    assert (found.mean, found.margin) == (0.5, 0.0)


def test_values_without_a_partner_are_left_out_and_counted() -> None:
    found = differences({0: 1.0, 1: 2.0, 2: None, 3: math.inf}, {1: 1.5, 2: 1.0, 3: 1.0, 4: 9.0})
    assert found.by_pair == {1: 0.5}
    assert found.missing == 4


def test_differences_in_percent_are_relative_to_the_second() -> None:
    found = differences({0: 30.0, 1: -30.0, 2: 5.0}, {0: 40.0, 1: -40.0, 2: 0.0}, percent=True)
    assert found.by_pair == {0: -25.0, 1: 25.0}
    assert found.missing == 1


def test_methods_that_share_no_seed_have_no_effect() -> None:
    assert differences({0: 1.0}, {1: 2.0}).estimate is None


def test_rounds_are_averaged_over_the_seeds_in_their_order() -> None:
    tables = results(methods=("qi-dpfl",), partitions=("iid",), seeds=3)
    found = per_round(reversed(tables.rounds), lambda row: row.reward if row.round_number != 2 else None)
    assert [number for number, _ in found] == [1, *range(3, 13)]
    assert found[0][1].mean == pytest.approx(18.0)
    assert all(one.n == 3 for _, one in found)
