"""Tasks: create, give a first model, start, resume and stop."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qidpfl_server.domain import EndReason, Model
from qidpfl_server.errors import RequestRefused, StoreBusy
from qidpfl_server.service.lifecycle import end_task
from qidpfl_server.service.tasks import create_task, give_initial_model, resume_task, save_initial_model, task_spec
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import TaskState
from support.use_cases import ServedTask, UseCases

MODEL = np.linspace(-1, 1, 650, dtype="<f4").tobytes()
OTHER = np.linspace(-2, 2, 650, dtype="<f4").tobytes()


def create(cases: UseCases, name: str, model: Model | None = None) -> str:
    spec, now = task_spec("digits", {}), cases.clock.now()
    given = save_initial_model(cases.store.blobs, spec) if model is None else model
    made = cases.write(lambda tx: create_task(tx, name=name, preset_name="digits", spec=spec, model=given, now=now))
    return made.task.task_id


def give(task: ServedTask, data: bytes) -> Model:
    now = task.cases.clock.now()
    with task.cases.store.blobs.stage() as blob:
        blob.write(data)
        blob.sync()
        return task.cases.write(lambda tx: give_initial_model(tx, task.task_id, blob, now))


def model_of(task: ServedTask) -> bytes:
    model = task.cases.read(lambda tx: tx.tasks.model(task.task_id, 0))
    assert model is not None
    return task.cases.store.blobs.get(model.digest)


def test_a_name_belongs_to_one_task_and_is_not_an_id(cases: UseCases) -> None:
    task_id = create(cases, "mine")
    for name in ("mine", task_id):
        with pytest.raises(RequestRefused, match=ErrorCode.TASK_EXISTS.value):
            create(cases, name)
    assert len(cases.read(lambda tx: tx.tasks.all())) == 1


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(RequestRefused, match=ErrorCode.UNKNOWN_PRESET.value):
        task_spec("no-such-preset", {})


SKEWED_SHARDS = {"workload": {"partition": {"two_class_ordinals": [0, 1, 2, 3, 4, 5, 6, 7]}}}


def test_a_testbed_whose_shards_cannot_pass_its_selection_is_refused() -> None:
    with pytest.raises(RequestRefused, match="only 2 of 10 shards have more, but min_clients is 3"):
        task_spec("digits", SKEWED_SHARDS)


@pytest.mark.parametrize(
    "change",
    [
        {"rounds": {"min_clients": 2, "min_updates": 2}},
        {"selection": {"shortfall": "nearest"}},
        {"selection": {"distance_threshold": 1.6}},
        {"selection": {"rule": "all"}},
    ],
)
def test_such_a_testbed_is_accepted_where_enough_clients_can_be_selected(change: dict[str, Any]) -> None:
    assert task_spec("digits", SKEWED_SHARDS | change).workload.partition is not None


def test_a_task_is_not_recorded_without_the_bytes_of_its_model(cases: UseCases) -> None:
    model = save_initial_model(cases.store.blobs, task_spec("digits", {}))
    cases.store.blobs.remove(model.digest)
    with pytest.raises(StoreBusy, match="swept"):
        create(cases, "late", model)
    assert cases.read(lambda tx: tx.tasks.all()) == []


def test_a_task_trains_from_the_model_that_it_was_given(cases: UseCases) -> None:
    task = cases.task(game={"horizon": 2}, rounds={"expected_clients": 3})
    model = give(task, MODEL)
    clients = [task.client() for _ in range(3)]
    assert clients[0].offer().model_digest == model.digest
    for number in (1, 2):
        task.play(clients, number)
    assert task.now.state is TaskState.FINISHED
    assert give(task, MODEL) == model
    assert cases.violations() == []


def test_another_first_model_is_accepted_only_before_the_first_round(cases: UseCases) -> None:
    task = cases.task(rounds={"expected_clients": 3})
    for data in (OTHER, MODEL):
        give(task, data)
    clients = [task.client() for _ in range(3)]
    with pytest.raises(RequestRefused, match=ErrorCode.MODEL_FROZEN.value):
        give(task, OTHER)
    assert model_of(task) == MODEL
    assert give(task, MODEL).version == 0
    task.play(clients)
    task.stop()
    with pytest.raises(RequestRefused, match=ErrorCode.TASK_ENDED.value):
        give(task, OTHER)
    assert cases.violations() == []


def test_a_task_that_does_not_exist_accepts_no_model(cases: UseCases) -> None:
    missing = ServedTask(cases, "0" * 24, ("",))
    with pytest.raises(RequestRefused, match=ErrorCode.NOT_FOUND.value):
        give(missing, MODEL)


def test_an_admin_starts_a_task_with_the_minimum_of_profiles_and_not_below_it(cases: UseCases) -> None:
    task = cases.task()
    for _ in range(3):
        with pytest.raises(RequestRefused, match=ErrorCode.PROFILE_MISSING.value):
            task.start()
        client = task.client()
    task.start()
    task.start()
    assert task.now.state is TaskState.TRAINING
    assert client.offer().standing == "invited"
    task.stop()
    with pytest.raises(RequestRefused, match=ErrorCode.TASK_ENDED.value):
        task.start()


def test_stopping_while_clients_enrol_ends_the_task(cases: UseCases) -> None:
    task = cases.task()
    task.stop()
    assert (task.now.state, task.now.reason) == (TaskState.STOPPED, "stopped")


def test_stopping_settles_a_round_that_has_enough_updates(cases: UseCases) -> None:
    task, (*three, silent) = cases.training(4)
    for client in three:
        client.play()
    task.stop()
    settled = task.result()
    assert (task.now.state, settled.state, settled.paid_micro) == (TaskState.STOPPED, "settled", settled.reward_micro)
    with pytest.raises(RequestRefused, match=ErrorCode.ROUND_CLOSED.value):
        silent.declare()
    task.stop()
    assert task.now.state is TaskState.STOPPED
    assert cases.violations() == []


def test_stopping_voids_a_round_that_has_too_few_updates(cases: UseCases) -> None:
    task, (first, *_) = cases.training()
    first.play()
    task.stop()
    assert (task.now.state, task.result().state) == (TaskState.STOPPED, "void")
    assert first.entry().state == "spent_unpaid"
    assert first.upload().client_id == first.client_id
    assert cases.violations() == []


def test_a_stopped_task_that_lost_an_update_fails_with_a_reason_that_names_no_folder(
    cases: UseCases, tmp_path: Path
) -> None:
    task, clients = cases.training(rounds={"min_clients": 2, "min_updates": 2})
    for client in clients[:2]:
        client.play()
    digest = hashlib.sha256(clients[0].update()).hexdigest()
    (tmp_path / "blobs" / "objects" / digest).unlink()
    task.stop()
    assert task.now.state is TaskState.FAILED
    assert task.now.reason == f"state_damaged: blob {digest} is missing from the blob folder"


def resume(task: ServedTask) -> None:
    now = task.cases.clock.now()
    task.cases.write(lambda tx: resume_task(tx, task.task_id, now))


def test_a_task_that_lost_an_update_is_resumed_when_the_bytes_are_back(cases: UseCases, tmp_path: Path) -> None:
    task, clients = cases.training(game={"horizon": 1})
    for client in clients:
        client.play()
    blob = tmp_path / "blobs" / "objects" / hashlib.sha256(clients[0].update()).hexdigest()
    blob.rename(tmp_path / "away")
    task.stop()
    assert (task.now.reason or "").startswith("state_damaged")
    cases.clock.advance(10_000)
    (tmp_path / "away").rename(blob)
    for _ in range(2):
        resume(task)
        assert (task.now.state, task.now.reason, task.now.ended_at) == (TaskState.TRAINING, None, None)
        assert task.result().state == "open"
        assert cases.violations() == []
    assert task.settle()
    assert (task.now.reason, len(task.payments())) == ("horizon_reached", 3)
    assert cases.violations() == []


def test_a_selection_that_failed_by_a_fault_is_resumed(cases: UseCases) -> None:
    task = cases.task(rounds={"expected_clients": 3})
    end(task, EndReason.STEP_FAILED)
    resume(task)
    assert task.now.state is TaskState.ENROLLING
    task.client()
    assert cases.violations() == []


def end(task: ServedTask, reason: EndReason) -> None:
    now, found = task.cases.clock.now(), task.now
    task.cases.write(lambda tx: end_task(tx, found, TaskState.FAILED, reason, now, "detail"))


def test_an_end_that_is_a_result_is_final(cases: UseCases) -> None:
    finished, clients = cases.training(game={"horizon": 1})
    finished.play(clients)
    stopped, _ = cases.training()
    stopped.stop()
    failed = cases.task()
    end(failed, EndReason.TOO_FEW_CLIENTS)
    for task in (finished, stopped, failed):
        before = task.now
        with pytest.raises(RequestRefused, match=ErrorCode.TASK_ENDED.value):
            resume(task)
        assert task.now == before
