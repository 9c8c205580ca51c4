"""A long evaluation runs after the settlement: what others see meanwhile, and what waits for it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import update

from qidpfl_server.domain import EndReason
from qidpfl_server.ops.tables import TableName, table_part
from qidpfl_server.plugins.rules import NO_RULES
from qidpfl_server.service.controls import end_pause, pause_task
from qidpfl_server.service.deletion import delete_task
from qidpfl_server.service.figures import task_figures
from qidpfl_server.service.lifecycle import end_task, get_task_for_update
from qidpfl_server.service.retention import kept_digests
from qidpfl_server.service.rounds import settlement
from qidpfl_server.service.rounds.evaluation_worker import EvaluationWorker
from qidpfl_server.service.scoring import Evaluation, Score
from qidpfl_server.store.schema import rounds
from qidpfl_shared.core.aggregation import Parameters
from qidpfl_shared.protocol.messages import TaskState
from qidpfl_shared.protocol.task_spec import TaskSpec
from support.use_cases import ServedClient, ServedTask, UseCases


@dataclass
class Counting:
    """An evaluator that scores the models of a task 0.1, 0.2, …; `during` runs in an evaluation."""

    seen: list[bytes] = field(default_factory=list)
    during: Callable[[], Any] | None = None
    scores: bool = True

    def prepare(self) -> None:
        """Nothing is needed."""

    def evaluate(self, spec: TaskSpec, parameters: Parameters) -> Evaluation | None:
        if self.during is not None:
            self.during()
        model = parameters.tobytes()
        assert model not in self.seen, "evaluated twice"
        self.seen.append(model)
        score = Score(accuracy=len(self.seen) / 10, loss=1.0)
        return Evaluation(deciding=score, reported=score) if self.scores else None


@pytest.fixture
def evaluator() -> Counting:
    return Counting()


@pytest.fixture
def deferring(cases: UseCases, evaluator: Counting) -> UseCases:
    """Every evaluation counts as a long one."""
    cases.evaluator, cases.defer_from_s = evaluator, 0.0
    return cases


def play(task: ServedTask, clients: list[ServedClient], *numbers: int) -> None:
    for number in numbers:
        task.cases.clock.advance(1)
        task.play(clients, number)


def accuracies(task: ServedTask) -> list[float | None]:
    return [round_.accuracy for round_ in task.cases.read(lambda tx: tx.rounds.of_task(task.task_id))]


def test_the_next_round_opens_before_a_long_evaluation(deferring: UseCases, evaluator: Counting) -> None:
    task, clients = deferring.training(game={"horizon": 4})
    play(task, clients, 1, 2)
    # The duration of the first evaluation is not known before it.
    assert accuracies(task) == [0.1, None, None]
    settled = task.result(2)
    assert settled.paid_micro > 0 and settled.accuracy is None and task.round(2).awaits_evaluation
    assert deferring.violations() == []
    assert task.evaluate() and not task.evaluate()
    assert task.result(2).accuracy == 0.2 and task.result(2).loss == 1.0
    assert task.round(2).evaluation_s is not None and task.round(2).evaluated_at is not None
    assert task.events().count("round.evaluated") == 1
    assert deferring.violations() == []


def test_a_result_stays_at_its_place_in_the_chain_when_it_gets_its_scores(deferring: UseCases) -> None:
    """A client that has kept the result without scores must see no contradiction in the one with scores."""
    task, clients = deferring.training(game={"horizon": 4})
    play(task, clients, 1, 2)
    before = task.result(2)
    task.evaluate()
    after = task.result(2)
    assert before.chain is not None and after.chain == before.chain
    changed = {name for name, value in after.facts().items() if before.facts().get(name) != value}
    assert changed == {"accuracy", "loss", "timing"}


def test_the_next_settlement_waits_for_the_scores_of_the_round_before(deferring: UseCases) -> None:
    task, clients = deferring.training(game={"horizon": 5})
    play(task, clients, 1, 2, 3, 4)
    assert accuracies(task) == [0.1, 0.2, 0.3, None, None]
    kinds = task.events()
    assert kinds.count("round.evaluated") == 2
    assert deferring.violations() == []


def test_a_task_finishes_with_all_its_scores(deferring: UseCases) -> None:
    task, clients = deferring.training(game={"horizon": 4})
    play(task, clients, 1, 2, 3, 4)
    assert task.now.state is TaskState.FINISHED
    assert accuracies(task) == [0.1, 0.2, 0.3, 0.4]
    assert not task.round(4).evaluation_deferred
    assert deferring.violations() == []


def test_a_task_that_ends_because_no_round_can_open_has_all_its_scores(deferring: UseCases) -> None:
    """The closing transaction finds that the money is spent: it is rolled back, and the model is evaluated first."""
    task, clients = deferring.training(
        game={"policy": "fixed", "fixed_reward_micro": 10_000_000},
        bounds={"reward_max_micro": 10_000_000, "reward_total_micro": 25_000_000},
    )
    play(task, clients, 1, 2)
    assert (task.now.state, task.now.reason) == (TaskState.FINISHED, "budget_exhausted")
    assert accuracies(task) == [0.1, 0.2]
    assert not task.round(2).evaluation_deferred and task.result(2).paid_micro == 10_000_000
    assert deferring.violations() == []


def test_a_stopped_task_has_all_its_scores(deferring: UseCases) -> None:
    task, clients = deferring.training(game={"horizon": 9})
    play(task, clients, 1, 2)
    for client in clients:
        client.play(3)
    task.stop()
    assert task.now.state is TaskState.STOPPED and accuracies(task) == [0.1, 0.2, 0.3]
    assert deferring.violations() == []


def test_a_paused_task_has_the_scores_of_its_last_round(deferring: UseCases) -> None:
    task, clients = deferring.training(game={"horizon": 9})
    play(task, clients, 1, 2)
    now = deferring.clock.now()
    deferring.write(lambda tx: pause_task(tx, task.task_id, now))
    play(task, clients, 3)
    assert accuracies(task) == [0.1, 0.2, 0.3]
    deferring.write(lambda tx: end_pause(tx, get_task_for_update(tx, task.task_id), now, NO_RULES))
    play(task, clients, 4)
    assert accuracies(task) == [0.1, 0.2, 0.3, None, None]
    assert deferring.violations() == []


def test_a_pause_during_the_settlement_is_noticed(deferring: UseCases, monkeypatch: pytest.MonkeyPatch) -> None:
    task, clients = deferring.training(game={"horizon": 9})
    play(task, clients, 1)
    next_model, now = settlement._next_model, deferring.clock.now()

    def paused_meanwhile(*arguments: Any, **named: Any) -> Any:
        deferring.write(lambda tx: pause_task(tx, task.task_id, now))
        return next_model(*arguments, **named)

    monkeypatch.setattr(settlement, "_next_model", paused_meanwhile)
    play(task, clients, 2)
    assert accuracies(task) == [0.1, 0.2] and not task.round(2).evaluation_deferred
    assert deferring.violations() == []


@pytest.mark.parametrize("change", [{"target_accuracy": 0.9}, {}])
def test_an_evaluation_that_decides_or_is_short_belongs_to_the_settlement(
    change: dict[str, Any], deferring: UseCases
) -> None:
    if not change:
        deferring.defer_from_s = 3600.0
    task, clients = deferring.training(game={"horizon": 9}, **change)
    play(task, clients, 1, 2, 3)
    assert accuracies(task) == [0.1, 0.2, 0.3, None]
    assert "round.evaluated" not in task.events()


def test_a_model_that_cannot_be_scored_is_not_tried_again(deferring: UseCases, evaluator: Counting) -> None:
    task, clients = deferring.training(game={"horizon": 9})
    play(task, clients, 1, 2)
    evaluator.scores = False
    assert task.evaluate() and not task.evaluate()
    assert task.round(2).accuracy is None and not task.round(2).awaits_evaluation
    play(task, clients, 3)
    # The last evaluation gave no duration, so that this one belongs to the settlement again.
    assert not task.round(3).evaluation_deferred
    assert deferring.violations() == []


def test_a_task_that_is_deleted_during_an_evaluation_stays_deleted(deferring: UseCases, evaluator: Counting) -> None:
    task, clients = deferring.training(game={"horizon": 9})
    play(task, clients, 1, 2)
    now = deferring.clock.now()

    def end_and_delete() -> None:
        evaluator.during = None
        deferring.write(lambda tx: end_task(tx, task.now, TaskState.STOPPED, EndReason.STOPPED, now))
        deferring.write(lambda tx: delete_task(tx, task.task_id, deleted_by="test", now=now))

    evaluator.during = end_and_delete
    assert not task.evaluate()
    assert deferring.read(lambda tx: tx.tasks.get(task.task_id)) is None
    assert deferring.violations() == []


def test_a_model_that_waits_is_kept(deferring: UseCases) -> None:
    task, clients = deferring.training(game={"horizon": 9}, retention={"last_rounds": 1})
    play(task, clients, 1, 2, 3)
    waiting = deferring.read(lambda tx: tx.tasks.model(task.task_id, 3))
    assert task.round(3).awaits_evaluation and waiting is not None
    assert waiting.digest in deferring.read(kept_digests)


def test_late_scores_reach_the_metrics_and_the_export(deferring: UseCases) -> None:
    task, clients = deferring.training(game={"horizon": 9})
    play(task, clients, 1, 2)
    (before,) = deferring.read(lambda tx: task_figures(tx, 10, {}))
    task.evaluate()
    (after,) = deferring.read(lambda tx: task_figures(tx, 10, {task.task_id: before}))
    assert (before.accuracy, after.accuracy) == (0.1, 0.2)
    assert (before.paid_micro, before.kept_micro) == (after.paid_micro, after.kept_micro)
    rows = deferring.read(lambda tx: table_part(tx, task.task_id, TableName.ROUNDS, 1, 2))
    assert rows is not None and rows[0]["accuracy"] == 0.2 and rows[0]["evaluated_at"] is not None


@pytest.mark.parametrize(
    "change",
    [{"accuracy": 0.99}, {"loss": None}, {"evaluated_at": 1}, {"evaluation_deferred": None}],
    ids=lambda change: next(iter(change)),
)
def test_changed_late_scores_are_found(change: dict[str, Any], deferring: UseCases) -> None:
    task, clients = deferring.training(game={"horizon": 9})
    play(task, clients, 1, 2)
    task.evaluate()
    _change(deferring, 2, change)
    assert any("in the chain" in said or "its record" in said for said in deferring.violations())


@pytest.mark.parametrize("change", [{"accuracy": 0.99}, {"evaluation_deferred": None}, {"evaluated_at": 1}])
def test_scores_that_were_never_computed_are_found(change: dict[str, Any], deferring: UseCases) -> None:
    task, clients = deferring.training(game={"horizon": 9})
    play(task, clients, 1, 2)
    _change(deferring, 2, change)
    assert any("in the chain" in said for said in deferring.violations())


def _change(cases: UseCases, number: int, values: dict[str, Any]) -> None:
    with cases.store.engine.begin() as connection:
        connection.execute(update(rounds).where(rounds.c.round_number == number).values(values))


def test_a_new_process_evaluates_what_a_crash_has_left(deferring: UseCases, evaluator: Counting) -> None:
    task, clients = deferring.training(game={"horizon": 9})
    play(task, clients, 1, 2)

    async def until_evaluated() -> None:
        worker = EvaluationWorker(deferring.store, deferring.clock, lambda _: evaluator, lambda _: None)
        running = asyncio.create_task(worker.run())
        async with asyncio.timeout(60):
            while task.round(2).awaits_evaluation:
                await asyncio.sleep(0.01)
        running.cancel()

    asyncio.run(until_evaluated())
    assert task.round(2).accuracy == 0.2


def test_a_worker_survives_an_evaluation_that_fails(deferring: UseCases, evaluator: Counting) -> None:
    task, clients = deferring.training(game={"horizon": 9})
    play(task, clients, 1, 2)
    failures = iter([OSError("the disk is gone")])

    def fail_once() -> None:
        if (error := next(failures, None)) is not None:
            raise error

    evaluator.during = fail_once

    async def until_evaluated() -> None:
        worker = EvaluationWorker(deferring.store, deferring.clock, lambda _: evaluator, lambda _: None)
        running = asyncio.create_task(worker.run())
        async with asyncio.timeout(60):
            while task.round(2).awaits_evaluation:
                await asyncio.sleep(0.01)
                worker.add(task.task_id)
                worker.wake()
        running.cancel()

    asyncio.run(until_evaluated())
    assert task.round(2).accuracy == 0.2
