"""The owner's limits and prices."""

import math
import random
from typing import Any

import pytest

from qidpfl_client.errors import Misconfigured
from qidpfl_client.owner import Owner, Prices, draw_privacy_value
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
def test_the_limit_of_the_owner_overrides_that_of_the_task(own: Any, suggested: Any, limit: float) -> None:
    assert Owner(lifetime_rho=own).lifetime_limit(suggested) == limit


@pytest.mark.parametrize(("text", "value"), [("1", 1.0), ("0.95", 0.95), ("1e-2", 0.01), ("2:2", 2.0)])
def test_a_privacy_value_is_a_number(text: str, value: float) -> None:
    assert draw_privacy_value(text, random.Random(0)) == value


def test_a_privacy_value_is_drawn_from_a_range() -> None:
    source = random.Random(0)
    drawn = [draw_privacy_value("0.95:1.05", source) for _ in range(1000)]
    assert 0.95 <= min(drawn) < 0.96 and 1.04 < max(drawn) <= 1.05


@pytest.mark.parametrize("text", ["", "much", "-1", "1:", ":1", "1:2:3", "nan", "inf", "0x1", "1 ", "1,5"])
def test_any_other_text_is_not_a_privacy_value(text: str) -> None:
    with pytest.raises(Misconfigured):
        draw_privacy_value(text, random.Random(0))
