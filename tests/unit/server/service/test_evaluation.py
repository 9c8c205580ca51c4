"""Scores of a model: which records decide and which are reported, and what a task without scores does to others."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import structlog

from qidpfl_server.service.evaluation import Evaluators
from qidpfl_server.service.rounds.aggregation import initial_parameters
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.protocol.wire import Vector32, unflatten
from qidpfl_shared.workloads.builtin import DATA_SETS
from qidpfl_shared.workloads.datasets.folder import DataFolder
from qidpfl_shared.workloads.datasets.images import Images
from qidpfl_shared.workloads.loading import load_workload
from qidpfl_shared.workloads.records import Records, bounded
from qidpfl_shared.workloads.workload import DataMissing


def digits() -> Records:
    records = load_workload(preset("digits").workload).held_out()
    assert records is not None
    return records


def regression(spec: TaskSpec, *, seed: int = 0) -> Vector32:
    return np.random.default_rng(seed).standard_normal(spec.dimension).astype(np.float32)


def test_both_halves_together_are_all_held_out_records() -> None:
    spec = preset("digits")
    parameters = regression(spec)
    found = Evaluators().of(spec).evaluate(spec, parameters)
    assert found is not None and found.deciding.loss is not None and found.reported.loss is not None
    tensors = unflatten(vector=parameters, layout=spec.layout)
    records = digits()
    scores = (records.inputs() @ tensors["weight"].T + tensors["bias"]).astype(np.float64)
    mean = (found.deciding.accuracy + found.reported.accuracy) / 2
    assert np.mean(scores.argmax(axis=1) == records.labels) == pytest.approx(mean)
    # The cross-entropy: the logarithm of the sum of exponentials, without the score of the right label.
    loss = np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(scores)), records.labels])
    assert (found.deciding.loss + found.reported.loss) / 2 == pytest.approx(float(loss), rel=1e-5)
    assert found.deciding != found.reported


def test_records_are_bounded_as_the_clients_train_on_them() -> None:
    mechanism = {"name": "bolt_on", "learning_rate": 0.01, "epochs": 1, "batch_size": 16, "feature_norm": 0.5}
    aggregation = {"learning_rate": 1.0, "momentum": 0.0, "weighting": "uniform"}
    plain = preset("digits")
    spec = preset("digits", {"privacy": {"mechanism": mechanism}, "aggregation": aggregation})
    parameters = regression(spec)
    evaluators = Evaluators()
    found, unbounded = (evaluators.of(each).evaluate(each, parameters) for each in (spec, plain))
    tensors = unflatten(vector=parameters, layout=spec.layout)
    records = digits()
    scores = bounded(records.inputs(), norm=0.5) @ tensors["weight"].T + tensors["bias"]
    assert found is not None and found != unbounded
    mean = (found.deciding.accuracy + found.reported.accuracy) / 2
    assert np.mean(scores.argmax(axis=1) == records.labels) == pytest.approx(mean)


def test_a_model_with_infinite_values_has_no_loss() -> None:
    spec = preset("digits")
    parameters = np.full(spec.dimension, 3e38, dtype=np.float32)
    parameters[::2] *= -1
    found = Evaluators().of(spec).evaluate(spec, parameters)
    assert found is not None and 0 <= found.reported.accuracy <= 1
    json.dumps([found.reported.loss, found.deciding.loss], allow_nan=False)


def test_models_are_evaluated_on_the_validation_records_where_the_task_has_some() -> None:
    plain, portion = preset("digits"), preset("digits", {"workload": {"validation_records": 200}})
    parameters = regression(plain)
    evaluators = Evaluators()
    held_out, found = (evaluators.of(spec).evaluate(spec, parameters) for spec in (plain, portion))
    records = load_workload(portion.workload).held_out()
    assert found is not None and found != held_out and records is not None and len(records) == 200
    tensors = unflatten(vector=parameters, layout=plain.layout)
    right = (records.inputs() @ tensors["weight"].T + tensors["bias"]).argmax(axis=1) == records.labels
    assert (found.deciding.accuracy + found.reported.accuracy) / 2 == pytest.approx(np.mean(right))


def test_tasks_that_are_evaluated_on_the_same_records_share_them() -> None:
    evaluators = Evaluators()
    all_, few, divided = (
        evaluators.of(preset("digits", {"workload": workload}))
        for workload in ({}, {"training_records": 500}, {"partition": {"seed": 7}})
    )
    assert all_ is few is divided


def test_portions_of_one_data_set_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bool] = []
    digits_ = DATA_SETS["digits"]

    def counted(folder: DataFolder, training: bool) -> Images:
        read.append(training)
        return digits_.read(folder, training)

    monkeypatch.setitem(DATA_SETS, "digits", replace(digits_, read=counted))
    evaluators = Evaluators()
    for workload in ({}, {"validation_records": 100}, {"validation_records": 200, "training_records": 500}):
        evaluators.of(preset("digits", {"workload": workload})).prepare()
    assert sorted(read) == [False, True]


def test_more_records_than_there_are_leave_a_task_unevaluated_and_others_alone() -> None:
    evaluators = Evaluators()
    specs = [preset("digits", {"workload": {"validation_records": count}}) for count in (1437, 200)]
    with structlog.testing.capture_logs() as said:
        found = [evaluators.of(spec).evaluate(spec, initial_parameters(spec)) for spec in specs * 2]
    assert [one is None for one in found] == [True, False] * 2
    assert [line["event"] for line in said] == ["unevaluated"] and "but there are 1437" in said[0]["reason"]


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_missing_data_are_logged_once(name: str, tmp_path: Path) -> None:
    spec = preset(name)
    evaluator = Evaluators(data_dir=tmp_path).of(spec)
    with structlog.testing.capture_logs() as said:
        evaluator.prepare()
        for _ in range(3):
            assert evaluator.evaluate(spec, initial_parameters(spec)) is None
    assert [(line["event"], line["log_level"]) for line in said] == [("unevaluated", "warning")]
    assert str(tmp_path) in said[0]["reason"]


def test_data_that_come_later_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    known, missing = DATA_SETS["digits"], [True]

    def read(folder: DataFolder, training: bool) -> Images:
        if missing:
            raise DataMissing("not yet")
        return known.read(folder, training)

    monkeypatch.setitem(DATA_SETS, "digits", replace(known, read=read))
    spec = preset("digits")
    evaluator = Evaluators().of(spec)
    assert evaluator.evaluate(spec, initial_parameters(spec)) is None
    missing.clear()
    assert evaluator.evaluate(spec, initial_parameters(spec)) is not None


def test_a_workload_that_the_operator_has_not_named_is_never_imported() -> None:
    spec = preset("digits", {"workload": {"dataset": "antigravity:Anything"}})
    evaluators = Evaluators(custom=["support.custom_workload:Plane"])
    with structlog.testing.capture_logs() as said:
        assert evaluators.of(spec).evaluate(spec, initial_parameters(spec)) is None
    assert "--workload antigravity:Anything" in said[0]["reason"] == evaluators.obstacle(spec)
    assert "antigravity" not in sys.modules
