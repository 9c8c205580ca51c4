"""A quote before enrolment: the plan of the task with this client in it, and its own limits."""

from dataclasses import replace

import pytest

from qidpfl_client.errors import Misconfigured
from qidpfl_client.owner import Owner
from qidpfl_client.participant.quoting import quotes_of_task
from qidpfl_shared.core.markets.design import MarketKind
from qidpfl_shared.core.money import MICRO
from qidpfl_shared.core.planner.quote import Quote, quotes
from qidpfl_shared.core.planning import plan_round
from qidpfl_shared.core.privacy.conversion import epsilon_from_rho
from qidpfl_shared.core.round_rules import Participant
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.task_spec import TaskSpec
from support.round_rules import RULES

SPEC = preset("digits")
OTHERS = [Participant(privacy_value=value, size=110) for value in (0.95, 1.0, 1.05)]


def quoted(spec: TaskSpec = SPEC, value: float = 1.0, **limits: float) -> list[Quote]:
    given = {"rho_cap": 2.0, "histogram_rho": 0.1} | limits
    return quotes_of_task(spec, Owner(privacy_value=value, **given), lifetime_rho=15.0, size=110)  # type: ignore[arg-type]


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.2])
def test_a_quote_is_the_clients_part_of_the_plan_at_its_own_value(factor: float) -> None:
    (found,) = quotes(
        rules=RULES,
        own=Participant(privacy_value=1.0, size=110),
        others=OTHERS,
        rounds=1,
        delta=1e-5,
        histogram_rho=0.1,
        factors=[factor],
    )
    reported = Participant(privacy_value=factor, size=110)
    plan = plan_round(rules=RULES, round_number=1, participants=[reported, *OTHERS], reward_left_micro=10**12)
    budget = plan.budgets[0]
    assert found.earned == pytest.approx(budget / plan.total * plan.reward_micro / MICRO)
    assert found.rho == pytest.approx(budget + 0.1)
    assert found.epsilon == epsilon_from_rho(rho=found.rho, delta=1e-5)
    # At the true value 1, for every report.
    assert found.utility == pytest.approx(found.earned - 30 * budget)


def test_in_the_contest_a_lower_report_earns_more_than_it_costs() -> None:
    """What the paper's game rewards: the quote shows it instead of hiding it."""
    low, true = quotes(
        rules=RULES, own=Participant(privacy_value=1.0, size=110), others=OTHERS, rounds=1, delta=1e-5, factors=[0.8, 1]
    )
    assert low.utility > true.utility and low.epsilon > true.epsilon


@pytest.mark.parametrize("market", [MarketKind.AUCTION, MarketKind.MENU])
def test_in_the_other_markets_no_report_earns_more_than_the_true_one(market: MarketKind) -> None:
    rules = replace(RULES, market=market, value_min=0.5, value_max=2.0)
    found = quotes(
        rules=rules,
        own=Participant(privacy_value=1.0, size=110),
        others=OTHERS,
        rounds=3,
        delta=1e-5,
        factors=[0.8, 0.9, 1.0, 1.1, 1.2],
    )
    utilities = [quote.utility for quote in found]
    assert utilities[2] > 0
    assert max(utilities) <= utilities[2] * (1 + 1e-6)


@pytest.mark.parametrize("market", ["auction", "menu"])
def test_a_task_with_another_market_is_quoted(market: str) -> None:
    bounds = {"privacy_value_min": 0.9, "privacy_value_max": 1.2}
    spec = preset("digits", {"game": {"market": market}, "bounds": bounds})
    found = quoted(spec)
    assert [quote.reported_value for quote in found] == pytest.approx([0.9, 1.0, 1.1, 1.2])
    assert found[1].rounds > 0
    assert max(quote.utility for quote in found) <= found[1].utility + 1e-9


def test_a_client_that_is_priced_out_earns_and_reveals_nothing_but_its_histogram() -> None:
    (found,) = quotes(
        rules=RULES,
        own=Participant(privacy_value=9.0, size=110),
        others=OTHERS,
        rounds=2,
        delta=1e-5,
        histogram_rho=0.1,
        factors=[1],
    )
    assert (found.rounds, found.earned, found.utility, found.rho) == (0, 0.0, 0.0, 0.1)


def test_only_reports_that_the_task_accepts_are_quoted() -> None:
    assert [round(quote.reported_value, 3) for quote in quoted()] == [0.9, 1.0, 1.1]
    with pytest.raises(Misconfigured, match=r"from 0\.9 to 1\.1 only"):
        quoted(value=5.0)


def test_the_owners_limits_bound_what_is_revealed() -> None:
    free, capped = quoted()[1], quoted(rho_cap=0.05)[1]
    assert capped.rho < free.rho and capped.rho <= 0.1 + 20 * 0.05
    short = quotes_of_task(SPEC, Owner(privacy_value=1.0, rho_cap=2.0, histogram_rho=0.1), lifetime_rho=0.2, size=110)
    assert all(quote.rho <= 0.2 * (1 + 1e-9) for quote in short)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (preset("mnist-paper"), "--others"),
        (preset("own"), "--clients"),
        (preset("digits", {"game": {"policy": "none"}, "privacy": {"noise": False}}), "no rewards"),
    ],
)
def test_a_task_that_says_too_little_is_one_line(spec: TaskSpec, said: str) -> None:
    with pytest.raises(Misconfigured, match=said):
        quoted(spec)
