"""Scores of softmax regression in float32: the answers are those of float64 arithmetic, also where scores are close."""

from typing import Any

import numpy as np
import pytest

from qidpfl_server.service import scoring
from qidpfl_server.service.scoring import HeldOut
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.wire import Vector32, unflatten
from qidpfl_shared.workloads.loading import load_workload
from qidpfl_shared.workloads.records import Features, Labels, Records

SPEC = preset("digits")
WORKLOAD = load_workload(SPEC.workload)


def records() -> Records:
    found = WORKLOAD.held_out()
    assert found is not None
    return found


def close_scores() -> Vector32:
    """A model whose labels have nearly the same scores: float32 arithmetic often finds another largest one."""
    random = np.random.default_rng(1)
    weight = random.standard_normal(64) + 1e-7 * random.standard_normal((10, 64))
    return np.concatenate([weight.ravel(), np.zeros(10)]).astype(np.float32)


def accuracy_in_float64(parameters: Vector32) -> float:
    tensors = unflatten(vector=parameters, layout=SPEC.layout)
    scores = records().inputs() @ tensors["weight"].astype(np.float64).T + tensors["bias"].astype(np.float64)
    return float(np.mean(scores.argmax(axis=1) == records().labels))


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records were computed again in float64, batch by batch."""
    counts: list[int] = []
    exact = scoring._linear_scores_64

    def counted(inputs: Features, labels: Labels, weight: Features, bias: Features) -> Any:
        counts.append(len(inputs))
        return exact(inputs, labels, weight, bias)

    monkeypatch.setattr(scoring, "_linear_scores_64", counted)
    return counts


def test_close_scores_are_decided_in_float64(again: list[int]) -> None:
    found = HeldOut(WORKLOAD, records()).evaluate(SPEC, close_scores())
    assert sum(again) > 0
    assert (found.deciding.accuracy + found.reported.accuracy) / 2 == pytest.approx(accuracy_in_float64(close_scores()))


def test_usual_scores_need_no_second_computation(again: list[int]) -> None:
    parameters = np.random.default_rng(0).standard_normal(SPEC.dimension).astype(np.float32)
    found = HeldOut(WORKLOAD, records()).evaluate(SPEC, parameters)
    assert sum(again) < len(records()) / 50
    assert (found.deciding.accuracy + found.reported.accuracy) / 2 == pytest.approx(accuracy_in_float64(parameters))


def test_a_data_set_that_is_too_large_to_keep_has_the_same_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = np.random.default_rng(0).standard_normal(SPEC.dimension).astype(np.float32)
    kept = HeldOut(WORKLOAD, records())
    expected = kept.evaluate(SPEC, parameters)
    monkeypatch.setattr(scoring, "_KEPT_BYTES", 0)
    large = HeldOut(WORKLOAD, records())
    assert large.evaluate(SPEC, parameters) == expected
    assert kept._prepared is not None and kept._prepared.features is not None
    assert large._prepared is not None and large._prepared.features is None
