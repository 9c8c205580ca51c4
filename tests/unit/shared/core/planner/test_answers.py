"""The planner: a task on paper against the formulas, and its answers against a plain search."""

import math
from dataclasses import replace

import numpy as np
import pytest

from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.equilibrium import equilibrium
from qidpfl_shared.core.markets.design import MarketKind
from qidpfl_shared.core.money import MICRO
from qidpfl_shared.core.planner.answers import AnswerStatus, PlannedOutcome, Planner, PlannerAnswer, PlanningCase
from qidpfl_shared.core.planner.noise_curve import fit_noise_curve
from qidpfl_shared.core.planner.play import noise_of_average, plan_of_task, play_task
from qidpfl_shared.core.planning import PlanStatus
from qidpfl_shared.core.privacy.conversion import epsilon_from_rho
from qidpfl_shared.core.reward import RewardPolicy, Weighting
from qidpfl_shared.core.round_rules import Participant
from support.round_rules import RULES

VALUES = (0.95, 0.98, 1.0, 1.02, 1.05)
CLIENTS = [Participant(privacy_value=value, size=110) for value in VALUES]
CURVE = fit_noise_curve(noises=[0.25, 0.3, 0.4, 0.6, 0.8, 1.0], accuracies=[0.88, 0.87, 0.85, 0.80, 0.73, 0.64])


def scenario(**changes: object) -> PlanningCase:
    given = {"rules": RULES, "participants": CLIENTS, "rounds": 10, "delta": 1e-5, "histogram_rho": 0.1}
    return PlanningCase(**given | changes)  # type: ignore[arg-type]


def answered(answer: PlannerAnswer) -> PlannedOutcome:
    assert answer.status is AnswerStatus.ANSWERED and answer.outcome is not None, answer.detail
    return answer.outcome


@pytest.mark.parametrize("weighting", [Weighting.SIZE, Weighting.UNIFORM, Weighting.INVERSE_VARIANCE])
def test_the_noise_of_the_average_is_that_of_the_formula(weighting: Weighting) -> None:
    sizes, budgets = np.array([100, 200, 50]), np.array([0.1, 0.02, 0.3])
    participants = [Participant(privacy_value=1.0, size=int(size)) for size in sizes]
    weights = {
        Weighting.SIZE: sizes / sizes.sum(),
        Weighting.UNIFORM: np.full(3, 1 / 3),
        Weighting.INVERSE_VARIANCE: (budgets * sizes**2) / np.sum(budgets * sizes**2),
    }[weighting]
    expected = math.sqrt(650 * np.sum(weights**2 * 2 / (budgets * sizes**2)))
    rules = replace(RULES, weighting=weighting)
    found = noise_of_average(rules=rules, participants=participants, budgets=budgets)
    assert found == pytest.approx(expected, rel=1e-12)
    assert noise_of_average(rules=rules, participants=participants, budgets=[0, 0, 0]) == math.inf


def test_a_task_on_paper_has_the_budgets_of_the_equilibrium_in_every_round() -> None:
    played = play_task(rules=RULES, participants=CLIENTS, rounds=4)
    assert played.status is PlanStatus.PLANNED and len(played.rounds) == 4
    total = np.zeros(5)
    for one in played.rounds:
        market = equilibrium(reward=one.reward_micro / MICRO, privacy_values=VALUES, privacy_weight=30)
        np.testing.assert_allclose(one.budgets, market.budgets)
        total += market.budgets
    np.testing.assert_allclose(played.spent, total)
    earned = sum(played.earned(place) for place in range(5))
    assert earned == pytest.approx(played.money_micro) and played.money_micro > 0


def test_clients_stop_when_their_lifetime_budget_is_used_up() -> None:
    poor = [replace(client, remaining_rho=0.12) for client in CLIENTS]
    played = play_task(rules=replace(RULES, rho_min=1e-3), participants=poor, rounds=10)
    assert played.status is PlanStatus.TOO_FEW_CLIENTS and 0 < len(played.rounds) < 10
    assert played.spent.max() <= 0.12 * (1 + 1e-12)


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_a_factor_multiplies_all_rewards(factor: float) -> None:
    planner = Planner(scenario=scenario())
    base = answered(planner.base()).played
    scaled = planner.at(factor).played
    for one, other in zip(base.rounds, scaled.rounds, strict=True):
        assert other.reward_micro == pytest.approx(factor * one.reward_micro, abs=1)


def test_the_answer_for_an_accuracy_has_it_and_less_money_does_not() -> None:
    planner = Planner(scenario=scenario(), curve=CURVE)
    found = answered(planner.for_accuracy(0.82))
    assert found.accuracy is not None and found.accuracy.expected == pytest.approx(0.82, abs=1e-4)
    less = planner.at(found.factor * 0.98)
    assert less.accuracy is not None and less.accuracy.expected < 0.82 and less.money_micro < found.money_micro


@pytest.mark.parametrize("money", [20.0, 100.0, 500.0])
def test_the_answer_for_money_pays_just_so_much(money: float) -> None:
    found = answered(Planner(scenario=scenario()).for_money(money))
    assert found.money_micro == pytest.approx(money * MICRO, rel=1e-5)


@pytest.mark.parametrize("epsilon", [5.0, 8.0, 12.0])
def test_the_answer_for_an_epsilon_is_that_of_the_client_that_reveals_most(epsilon: float) -> None:
    found = answered(Planner(scenario=scenario()).for_epsilon(epsilon))
    assert found.worst_epsilon == pytest.approx(epsilon, rel=1e-4)
    most = max(found.played.spent) + 0.1
    assert found.worst_epsilon == epsilon_from_rho(rho=float(most), delta=1e-5)
    assert VALUES[found.worst_client] == min(VALUES)


def test_an_epsilon_below_that_of_the_histograms_is_out_of_reach() -> None:
    answer = Planner(scenario=scenario()).for_epsilon(0.1)
    assert answer.status is AnswerStatus.OUT_OF_REACH and "epsilon" in answer.detail


def test_money_above_the_ceilings_of_the_rounds_is_out_of_reach() -> None:
    answer = Planner(scenario=scenario()).for_money(10 * 1000 * 2.0)
    assert answer.status is AnswerStatus.OUT_OF_REACH and "1000 a round" in answer.detail


@pytest.mark.parametrize("target", [0.1, 0.5, 0.95, 1.0])
def test_an_accuracy_outside_the_calibration_is_not_answered(target: float) -> None:
    answer = Planner(scenario=scenario(), curve=CURVE).for_accuracy(target)
    assert answer.status is AnswerStatus.OUTSIDE_CALIBRATION and answer.outcome is None


def test_an_outcome_outside_the_calibration_has_no_accuracy() -> None:
    found = answered(Planner(scenario=scenario(), curve=CURVE).for_money(1.0))
    assert not CURVE.covers(found.noise) and found.accuracy is None


def test_clients_that_run_out_of_budget_are_said_instead_of_an_accuracy() -> None:
    poor = [replace(client, remaining_rho=0.12) for client in CLIENTS]
    rules = replace(RULES, rho_min=1e-3)
    answer = Planner(scenario=scenario(participants=poor, rules=rules), curve=CURVE).for_accuracy(0.82)
    assert answer.status is AnswerStatus.OUT_OF_REACH


def test_a_task_that_too_few_clients_want_has_no_market() -> None:
    planner = Planner(scenario=scenario(participants=CLIENTS[:1]), curve=CURVE)
    for answer in (planner.base(), planner.for_money(5.0), planner.for_accuracy(0.8)):
        assert answer.status is AnswerStatus.NO_MARKET
    assert planner.frontier() == []


def test_the_frontier_buys_accuracy_with_money_and_epsilon() -> None:
    outcomes = Planner(scenario=scenario(), curve=CURVE).frontier(7)
    assert len(outcomes) == 7
    money = [outcome.money_micro for outcome in outcomes]
    epsilons = [outcome.worst_epsilon for outcome in outcomes]
    accuracies = [outcome.accuracy.expected for outcome in outcomes if outcome.accuracy is not None]
    assert money == sorted(money) and epsilons == sorted(epsilons) and accuracies == sorted(accuracies)
    assert len(accuracies) == 7


@pytest.mark.parametrize(
    "changes",
    [{"rounds": 0}, {"rounds": 21}, {"delta": 0.0}, {"rules": replace(RULES, policy=RewardPolicy.NONE)}],
)
def test_impossible_scenarios_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ImpossibleArgument):
        scenario(**changes)


@pytest.mark.parametrize("market", [MarketKind.AUCTION, MarketKind.MENU])
def test_the_planner_answers_for_every_market(market: MarketKind) -> None:
    rules = replace(RULES, market=market, value_min=0.9, value_max=1.1)
    planner = Planner(scenario=scenario(rules=rules), curve=CURVE)
    base = answered(planner.base())
    twice = answered(planner.for_money(2 * base.money_micro / MICRO))
    assert twice.money_micro == pytest.approx(2 * base.money_micro, rel=1e-4)
    assert twice.noise < base.noise and twice.worst_epsilon > base.worst_epsilon
    exact = answered(planner.for_accuracy(0.8))
    assert exact.accuracy is not None and exact.accuracy.expected == pytest.approx(0.8, abs=1e-4)


def test_what_a_task_pays_in_a_menu_is_what_its_clients_choose() -> None:
    rules = replace(RULES, market=MarketKind.MENU, value_min=0.9, value_max=1.1)
    played = play_task(rules=rules, participants=CLIENTS, rounds=1)
    (one,) = played.rounds
    assert 0.9 * one.reward_micro < played.money_micro < one.reward_micro
    # The cheaper the client, the more it sells and earns; each gains.
    assert one.budgets.tolist() == sorted(one.budgets.tolist(), reverse=True)
    gains = one.payments - 30 * np.array(VALUES) * one.budgets
    assert (gains > 0).all() and gains.tolist() == sorted(gains.tolist(), reverse=True)
    assert played.earned(0) == pytest.approx(MICRO * one.payments[0])


def test_a_plan_may_be_made_by_another_function() -> None:
    """From rules, participants and round to a plan; it is asked for every round."""
    asked = []

    def twice(rules: object, participants: object, number: int) -> object:
        asked.append(number)
        return plan_of_task(rules, participants, number)  # type: ignore[arg-type]

    planner = Planner(scenario=scenario(plan=twice))
    assert answered(planner.base()).money_micro == answered(Planner(scenario=scenario()).base()).money_micro
    assert asked == [*range(1, 11), *range(1, 11)]
