"""The market and the schedule in a spec: what it requires, what is refused, and that older digests stay."""

from typing import Any

import pytest
from pydantic import ValidationError

from qidpfl_shared.core.markets.auction import Auction
from qidpfl_shared.core.markets.contest import Contest
from qidpfl_shared.core.markets.menu import Menu, MenuPrior
from qidpfl_shared.protocol.compatibility import PROTOCOL_VERSION, refusal_of_spec
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.task_spec import TaskSpec


def spec(**game: Any) -> TaskSpec:
    return preset("digits", {"game": game})


def test_the_contest_is_the_same_as_no_market() -> None:
    named, plain = spec(market="contest"), preset("digits")
    assert named.digest == plain.digest
    assert named.current.digest == plain.current.digest
    assert "market" not in named.model_dump(mode="json")["game"]
    assert isinstance(named.design, Contest)
    assert TaskSpec.read(named.model_dump_json()).digest == plain.digest


@pytest.mark.parametrize(("market", "design"), [("auction", Auction), ("menu", Menu)])
def test_another_market_is_required_of_clients(market: str, design: type) -> None:
    found = spec(market=market).current
    assert isinstance(found.design, design)
    assert found.requires == ("mechanism.gradient_once", "answer.rho", f"market.{market}")
    assert found.model_dump(mode="json")["game"]["market"] == market
    assert TaskSpec.read(found.model_dump_json()) == found
    assert refusal_of_spec(found.model_dump(mode="json")) is None


def test_a_market_of_a_later_version_is_refused_by_name() -> None:
    later = preset("digits").current.model_dump(mode="json") | {"requires": ["answer.rho", "market.bazaar"]}
    assert refusal_of_spec(later) == (
        f"the task requires market.bazaar of protocol {PROTOCOL_VERSION}, and this client speaks protocol"
        f" {PROTOCOL_VERSION}: use a newer client"
    )


def test_the_numbers_of_a_market_reach_its_design() -> None:
    bounds = {"privacy_value_min": 0.9, "privacy_value_max": 1.2}
    auction = preset("digits", {"game": {"market": "auction", "winners": 5}, "bounds": bounds}).design
    assert isinstance(auction, Auction)
    assert (auction.winners, auction.largest_value) == (5, 1.2)
    menu = preset("digits", {"game": {"market": "menu", "prior": "uniform"}, "bounds": bounds}).design
    assert isinstance(menu, Menu)
    assert (menu.prior, menu.smallest_value, menu.max_share) == (MenuPrior.UNIFORM, 0.9, 2.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"winners": 5}, "winners belong to market auction"),
        ({"market": "auction", "winners": 2}, "winners is below min_clients"),
        ({"market": "auction", "prior": "uniform"}, "prior belongs to market menu"),
        ({"schedule": "given"}, "schedule given needs schedule_weights"),
        ({"schedule": "flat", "schedule_weights": [1.0] * 20}, "other schedules do not accept them"),
        ({"schedule": "given", "schedule_weights": [1.0] * 3}, "one number for each of the 20 rounds"),
        (
            {"policy": "fixed", "reward_schedule_micro": [1] * 20, "schedule": "flat"},
            "reward_schedule_micro gives every reward",
        ),
    ],
)
def test_contradictions_are_refused_in_one_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        spec(**changes)
    (error,) = caught.value.errors()
    assert error["type"] == "inconsistent_spec"
    assert said in error["msg"] and "\n" not in error["msg"]


@pytest.mark.parametrize("changes", [{"market": "menu"}, {"schedule": "flat"}])
def test_a_task_that_pays_nothing_has_neither_market_nor_schedule(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="policy none"):
        preset("digits", {"game": {"policy": "none"} | changes, "privacy": {"noise": False}})


@pytest.mark.parametrize("changes", [{"market": "bazaar"}, {"winners": 1}, {"schedule": "wild"}, {"prior": "normal"}])
def test_unknown_words_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        spec(**changes)


def test_a_schedule_shapes_the_rewards_of_the_task() -> None:
    weights = [float(place) for place in range(1, 21)]
    schedule = spec(schedule="given", schedule_weights=weights).round_rules().schedule
    assert schedule is not None
    assert schedule.multiple(20) == pytest.approx(20 / 10.5)
    assert spec().round_rules().schedule is None
    assert spec(schedule="flat").digest != spec().digest
