"""What a user's rules are asked, and that nothing they answer goes unchecked."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qidpfl_shared.core import own_rules
from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.custom_rules import CustomRuleFailed, PastRound, RewardQuestion, SelectionQuestion
from qidpfl_shared.core.money import MICRO
from qidpfl_shared.core.planning import PlanStatus, RewardBound, RoundPlan, plan_round
from qidpfl_shared.core.reward import RewardPolicy, RewardRange
from qidpfl_shared.core.round_rules import Participant
from qidpfl_shared.core.selection import Custom, Selection, SelectionStatus, Shortfall, select
from support.round_rules import RULES as SMALL_TASK

RULES = dataclasses.replace(
    SMALL_TASK, policy=RewardPolicy.OWN, min_clients=2, min_updates=2, reward_max_micro=100 * MICRO
)
CROWD = [
    Participant(privacy_value=0.9, size=100, rho_cap=0.4),
    Participant(privacy_value=50.0, size=300),
    Participant(privacy_value=1.1, size=200),
    Participant(privacy_value=1.0, size=50, set_aside=True),
]
TABLE = [[5, 5], [0, 0], [9, 1], [4, 6]]


def plan(own: Any, round_number: int = 3, left: int = 10**12, **changes: Any) -> RoundPlan:
    return plan_round(
        rules=dataclasses.replace(RULES, **changes),
        round_number=round_number,
        participants=CROWD,
        reward_left_micro=left,
        past=[PastRound(reward=2.0, accuracy=0.5), PastRound(reward=3.0)],
        custom_reward=own,
    )


def choose(own: Any, shortfall: Shortfall = Shortfall.FAIL) -> Selection:
    return select(
        rule=Custom(own),
        histograms=TABLE,
        reference=[0.5, 0.5],
        min_clients=2,
        shortfall=shortfall,
        sizes=[10, 20, 30, 40],
        privacy_values=[1.0, 2.0, 3.0, 4.0],
    )


def asked(ask: Callable[[Any], object], answer: object) -> Any:
    """The question that a rule gets; its answer is of no interest."""
    questions: list[Any] = []

    def own(question: Any) -> object:
        questions.append(question)
        return answer

    ask(own)
    return questions[0]


def test_a_custom_policy_receives_the_invited_clients_and_the_earlier_rounds() -> None:
    question: RewardQuestion = asked(plan, 1.0)
    assert (question.round_number, question.horizon, question.privacy_weight) == (3, 20, 30)
    assert (question.privacy_values.tolist(), question.sizes.tolist()) == ([0.9, 1.1], [100, 200])
    assert question.caps.tolist() == [0.4, 0.5]
    assert (question.rewards, question.accuracies) == ((2.0, 3.0), (0.5, None))
    assert (question.cost_model, question.reward_range, question.reward_left) == (RULES.cost_model, RewardRange(), 1e6)


def test_a_custom_policy_can_read_the_optimal_reward() -> None:
    assert plan(lambda question: question.optimal_reward()) == plan(None, policy=RewardPolicy.OPTIMAL)


def test_a_wish_is_bounded_like_that_of_every_policy() -> None:
    admissible = RewardRange(minimum=2.0, maximum=60.0)
    bounded = [plan(lambda _, wish=wish: wish, reward_range=admissible) for wish in (1.0, 7, np.float32(61.0))]
    assert [planned.reward_micro for planned in bounded] == [2 * MICRO, 7 * MICRO, 60 * MICRO]
    assert [planned.bound for planned in bounded[::2]] == [RewardBound.RANGE_MINIMUM, RewardBound.RANGE_MAXIMUM]
    dear = plan(lambda _: 1e300)
    assert (dear.reward_micro, dear.bound) == (100 * MICRO, RewardBound.CEILING)
    assert plan(lambda _: 5.0, left=4 * MICRO).status is PlanStatus.BUDGET_EXHAUSTED
    assert plan(lambda _: 0.0).status is PlanStatus.NO_REWARD


@pytest.mark.parametrize("answer", [math.nan, math.inf, -1e-9, "5", None, True, [5.0], 1j, 10**400])
def test_an_unusable_reward_is_a_failure_of_the_rule(answer: object) -> None:
    with pytest.raises(CustomRuleFailed, match=r"reward\(\) returned .*, not a finite number of at least 0"):
        plan(lambda _: answer)


def test_a_custom_selection_receives_the_clients_with_records() -> None:
    question: SelectionQuestion = asked(choose, [True, True, False])
    assert (question.clients, question.min_clients) == (3, 2)
    assert question.label_counts.tolist() == [[5, 5], [9, 1], [4, 6]]
    assert question.label_distances.tolist() == pytest.approx([0, 0.8, 0.2])
    assert question.reference.tolist() == [0.5, 0.5]
    assert (question.sizes.tolist(), question.privacy_values.tolist()) == ([10, 30, 40], [1.0, 3.0, 4.0])


@pytest.mark.parametrize("answer", [[True, False, True], (True, False, True), np.array([True, False, True])])
def test_whom_a_rule_keeps_is_selected(answer: object) -> None:
    assert choose(lambda _: answer).selected.tolist() == [True, False, False, True]


def test_a_rule_that_keeps_too_few_fails_or_is_filled_up_like_every_rule() -> None:
    assert choose(lambda _: [False, True, False]).status is SelectionStatus.TOO_FEW_CLIENTS
    filled = choose(lambda _: [False, True, False], Shortfall.NEAREST)
    assert (filled.status, filled.filled_up.tolist()) == (SelectionStatus.FILLED_UP, [True, False, False, False])


@pytest.mark.parametrize(
    "answer", [[True, True], [True] * 4, [1, 0, 1], ["yes"] * 3, None, True, [[True] * 3], [[True], [], [True]], {0, 2}]
)
def test_a_selection_without_one_bool_per_client_is_a_failure_of_the_rule(answer: object) -> None:
    with pytest.raises(CustomRuleFailed, match=r"select\(\) returned .*, not 3 truth values"):
        choose(lambda _: answer)


@pytest.mark.parametrize("error", [KeyError("secret"), ZeroDivisionError(), SystemExit(3), RecursionError()], ids=repr)
@pytest.mark.parametrize("ask", [plan, choose])
def test_an_error_in_a_rule_is_reported_by_its_type_only(ask: Callable[[Any], object], error: BaseException) -> None:
    def broken(question: object) -> object:
        raise error

    with pytest.raises(CustomRuleFailed, match=rf"^(reward|select)\(\) raised {type(error).__name__}$") as failure:
        ask(broken)
    assert failure.value.__cause__ is error


def test_a_rule_cannot_change_its_question() -> None:
    question: RewardQuestion = asked(plan, 1.0)
    choice: SelectionQuestion = asked(choose, [True] * 3)
    arrays = [
        *(question.privacy_values, question.sizes, question.caps, question.noise_scales),
        *(choice.label_counts, choice.label_distances, choice.reference, choice.sizes, choice.privacy_values),
    ]
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        question.round_number = 1  # type: ignore[misc]


def test_a_custom_rule_needs_all_data_that_it_may_use() -> None:
    with pytest.raises(ImpossibleArgument, match="sizes and privacy_values"):
        select(rule=Custom(lambda _: [True]), histograms=[[1, 1]], reference=[0.5, 0.5], min_clients=1, sizes=[2])


def test_rule_files_that_import_the_former_module_still_work() -> None:
    assert own_rules.OwnRuleFailed is CustomRuleFailed
    assert own_rules.RewardQuestion is RewardQuestion
    assert own_rules.SelectionQuestion is SelectionQuestion
    assert own_rules.PastRound is PastRound
