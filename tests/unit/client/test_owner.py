"""The owner's limits and prices."""

import math
import random

import pytest

from qidpfl_client.errors import Misconfigured
from qidpfl_client.owner import (
    DELTA,
    HISTOGRAM_RHO,
    LIFETIME_RHO,
    RHO_CAP,
    Owner,
    Prices,
    draw_privacy_value,
    in_words,
    limits_in_words,
    lowered,
)
from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.privacy.conversion import epsilon_from_rho


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


def test_the_limits_of_an_owner_who_sets_none_protect() -> None:
    owner = Owner()
    assert (owner.rho_cap, owner.lifetime_rho, owner.histogram_rho) == (RHO_CAP, None, HISTOGRAM_RHO)
    assert RHO_CAP < LIFETIME_RHO and HISTOGRAM_RHO < LIFETIME_RHO
    assert epsilon_from_rho(rho=LIFETIME_RHO, delta=DELTA) < 3


@pytest.mark.parametrize(("own", "suggested", "limit"), [(1.0, 9.0, 1.0), (1.0, 0.5, 0.5), (1.0, None, 1.0)])
def test_a_task_only_lowers_a_limit(own: float, suggested: float | None, limit: float) -> None:
    assert lowered(own, suggested) == limit


def test_the_limits_are_one_line_with_epsilon_in_words() -> None:
    line = limits_in_words(Owner(), LIFETIME_RHO)
    assert line.startswith("limits: at most rho 0.05 per round, rho 0.02 for the label histogram, rho 0.2 over")
    assert "epsilon 2.8 at delta 1e-05" in line and "at most 17-fold" in line
    assert "defaults" not in line and "\n" not in line


@pytest.mark.parametrize("limits", [{"rho_cap": 0.5}, {"histogram_rho": 0.1}, {"lifetime_rho": 3.0}])
def test_the_line_says_that_the_limits_are_above_the_defaults(limits: dict[str, float]) -> None:
    line = limits_in_words(Owner(**limits), limits.get("lifetime_rho", LIFETIME_RHO))  # type: ignore[arg-type]
    assert "more than the defaults" in line
    assert "less or nothing" not in line


def test_a_budget_that_does_not_protect_is_called_so() -> None:
    assert in_words(3.0) == "epsilon 13.8 at delta 1e-05: this hardly protects a record, so use it for public data only"
    assert "no guarantee" in in_words(math.inf)
    line = limits_in_words(Owner(accept_unproven=True), math.inf)
    assert "rho inf over the lifetime" in line and "after the first one no limit holds" in line


def test_no_histogram_and_an_exact_one_contradict_each_other() -> None:
    with pytest.raises(Misconfigured, match="contradict"):
        Owner(no_histogram=True, exact_histogram=True)


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
