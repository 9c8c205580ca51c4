"""What a change of a task would cost: the plan of its own clients, and nothing that is stored."""

from typing import Any

import pytest
from pydantic import ValidationError

from qidpfl_server.errors import RequestRefused
from qidpfl_server.ops.what_if import Situation, read_situation, what_if
from qidpfl_shared.core.planning import plan_round
from qidpfl_shared.core.privacy.conversion import epsilon_from_rho
from qidpfl_shared.core.round_rules import Participant
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.operators import CalibrationPoint, WhatIf, WhatIfRequest
from qidpfl_shared.protocol.presets import merged
from qidpfl_shared.protocol.task_spec import TaskSpec
from support.use_cases import ServedTask, UseCases

POINTS = tuple(CalibrationPoint(noise=noise, accuracy=0.9 - 0.2 * noise**2) for noise in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8))


def training(cases: UseCases, **overrides: Any) -> ServedTask:
    """A task whose three clients have different privacy values."""
    task = cases.task(rounds={"expected_clients": 3}, **overrides)
    for value in (0.95, 1.0, 1.05):
        client = task.stranger()
        client.enrol()
        client.send_profile(privacy_value=value)
    return task


def asked(task: ServedTask, **question: Any) -> WhatIf:
    situation = task.cases.read(lambda tx: read_situation(tx, task.task_id))
    return what_if(situation, WhatIfRequest(**question))


def test_without_a_change_it_is_the_plan_of_the_task(cases: UseCases) -> None:
    task = training(cases)
    found = asked(task)
    spec = task.now.spec
    participants = [Participant(privacy_value=value, size=110, remaining_rho=2.9) for value in (0.95, 1.0, 1.05)]
    plans = [
        plan_round(rules=spec.round_rules(), round_number=t, participants=participants, reward_left_micro=10**12)
        for t in range(1, 21)
    ]
    assert (found.rounds, found.first_reward_micro) == (20, task.round().reward_micro)
    assert found.money_micro == sum(plan.reward_micro for plan in plans)
    most = 0.1 + sum(plan.budgets[0] for plan in plans)
    assert found.worst_ordinal == 0 and found.worst_rho == pytest.approx(most, rel=1e-6)
    assert found.worst_epsilon == pytest.approx(epsilon_from_rho(rho=most, delta=1e-5), rel=1e-6)


def test_more_reward_costs_more_and_reveals_more(cases: UseCases) -> None:
    task = training(cases)
    base, more = asked(task), asked(task, reward_factor=2.0)
    assert more.money_micro == pytest.approx(2 * base.money_micro, rel=1e-6)
    assert more.noise is not None and base.noise is not None and more.noise < base.noise
    assert more.worst_epsilon > base.worst_epsilon


def test_dearer_privacy_means_a_higher_reward_for_smaller_budgets(cases: UseCases) -> None:
    task = training(cases)
    base, dearer = asked(task), asked(task, privacy_value_factor=1.1)
    assert dearer.money_micro > base.money_micro and dearer.worst_rho < base.worst_rho


def test_clients_can_be_left_out(cases: UseCases) -> None:
    task = training(cases)
    assert asked(task, without=(0,)).worst_ordinal == 1
    assert asked(task, without=(0, 1, 2)).status == asked(task, without=(0, 1)).status == "no_market"


def test_the_past_of_a_task_does_not_change_the_answer(cases: UseCases) -> None:
    task, clients = cases.training(game={"horizon": 3})
    before = asked(task)
    task.play(clients)
    assert asked(task) == before


def test_a_calibration_gives_the_accuracy_where_it_covers_the_noise(cases: UseCases) -> None:
    task = training(cases)
    found = asked(task, calibration=POINTS)
    assert found.noise is not None and found.accuracy is not None
    assert found.accuracy.expected == pytest.approx(0.9 - 0.2 * found.noise**2, abs=1e-6)
    outside = asked(task, calibration=POINTS, reward_factor=0.01)
    assert outside.accuracy is None and "covers a noise of 0.3 to 0.8" in outside.detail


def test_a_calibration_that_determines_no_curve_gives_the_reason(cases: UseCases) -> None:
    assert "at least 5 are needed" in asked(training(cases), calibration=POINTS[:3]).detail


@pytest.mark.parametrize(
    "overrides",
    [{"game": {"policy": "none"}, "privacy": {"noise": False}}, {"game": {"policy": "own", "own_rules": "mine"}}],
)
def test_a_task_without_planned_rewards_has_no_market(cases: UseCases, overrides: dict[str, Any]) -> None:
    facts = training(cases).now.spec.facts() | {"requires": None, "protocol_version": None}
    changed = TaskSpec.model_validate(merged(facts, overrides))
    situation = Situation(spec=changed, participants=(), ordinals=(), histogram_rho=0.0)
    assert what_if(situation, WhatIfRequest()).status == "no_market"


def test_a_question_that_would_take_long_is_refused(cases: UseCases) -> None:
    spec = training(cases).now.spec
    many = Situation(
        spec=spec,
        participants=(Participant(privacy_value=1.0, size=10),) * 10_000,
        ordinals=tuple(range(10_000)),
        histogram_rho=0.0,
    )
    with pytest.raises(RequestRefused, match="too many") as caught:
        what_if(many, WhatIfRequest())
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_more_rounds_than_the_horizon_are_refused(cases: UseCases) -> None:
    with pytest.raises(RequestRefused, match="horizon"):
        asked(training(cases), rounds=21)


def test_a_question_changes_nothing_in_the_store(cases: UseCases) -> None:
    task = training(cases)
    before = cases.read(lambda tx: (tx.change_counter(), tx.chain.head(task.task_id)))
    asked(task, reward_factor=2.0)
    assert cases.read(lambda tx: (tx.change_counter(), tx.chain.head(task.task_id))) == before


@pytest.mark.parametrize(
    "question",
    [{"reward_factor": 0.0}, {"reward_factor": float("inf")}, {"rounds": 0}, {"without": (-1,)}, {"calibration": ()}],
)
def test_impossible_questions_are_refused(question: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        WhatIfRequest(**question)
