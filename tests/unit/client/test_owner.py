"""The owner's limits and prices."""

import math
from typing import Any

import pytest

from qidpfl_client.owner import Owner, Prices
from qidpfl_shared.core.arguments import ImpossibleArgument


def test_a_round_costs_what_its_records_seconds_and_mebibytes_cost() -> None:
    prices = Prices(per_record=0.01, per_second=2.0, per_mebibyte=0.5)
    assert prices.of_round(size=100, training_s=3.0, transferred_bytes=4 << 20) == pytest.approx(1 + 6 + 2)
    assert Prices().of_round(size=100, training_s=3.0, transferred_bytes=4 << 20) == 0


@pytest.mark.parametrize("name", ["per_record", "per_second", "per_mebibyte"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_impossible_prices_are_refused(name: str, value: float) -> None:
    with pytest.raises(ImpossibleArgument, match=name):
        Prices(**{name: value})


@pytest.mark.parametrize("name", ["privacy_value", "rho_cap", "lifetime_rho", "histogram_rho"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_impossible_limits_are_refused(name: str, value: float) -> None:
    with pytest.raises(ImpossibleArgument, match=name):
        Owner(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("own", "suggested", "limit"), [(1.0, 9.0, 1.0), (None, 9.0, 9.0), (None, None, math.inf)])
def test_the_owners_limit_counts_before_the_tasks(own: Any, suggested: Any, limit: float) -> None:
    assert Owner(lifetime_rho=own).lifetime_limit(suggested) == limit
