"""An app as the data of a participant: what it is told, and what is checked before enrolment."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from qidpfl_client.errors import Misconfigured
from qidpfl_flower.app_loading import Config
from qidpfl_flower.bridge import AppData
from qidpfl_flower.flower_task import flower_task
from qidpfl_flower.parameters import Flat
from qidpfl_flower.records import records_of_labels
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.protocol.wire import TensorLayout, TensorSpec, Vector32
from qidpfl_shared.workloads.workload import LayoutMismatch

LAYOUT = TensorLayout(tensors=(TensorSpec(name="weight", shape=(2, 3)),))
TASK = flower_task(LAYOUT, labels=2, clients=3, rounds=2, clip_norm=0.5)
RECORDS = records_of_labels([0, 1, 1], wanted=2)


@dataclass
class Given:
    parameters: Flat
    examples: int | None


@dataclass
class RecordingApp:
    """Returns the model that it gets, and keeps what it was told."""

    examples: int | None = 3
    told: list[Config] = field(default_factory=list)

    def train(self, model: Vector32, layout: TensorLayout, *, config: Config) -> Given:
        self.told.append(config)
        return Given(model.astype(np.float64), self.examples)


def data(app: RecordingApp, rehearsed: RecordingApp | None = None, *, claimed: bool = False) -> AppData:
    rehearsal = None if rehearsed is None else (lambda: rehearsed)
    return AppData(
        app=app, records=lambda spec: RECORDS, claimed=claimed, rehearsal=rehearsal, report=lambda line: None
    )


def test_an_app_is_told_the_round_and_the_declared_budget() -> None:
    app = RecordingApp()
    program = data(app)(TASK).program
    program.train(np.zeros(6, dtype=np.float32), round_number=4, rho=0.25)
    program.train(np.zeros(6, dtype=np.float32), round_number=5, rho=None)
    assert app.told == [{"server-round": 4, "qidpfl-rho": 0.25, "qidpfl-clip-norm": 0.5}, {"server-round": 5}]


def test_another_app_rehearses_once_before_enrolment() -> None:
    app, rehearsed = RecordingApp(), RecordingApp()
    opens = data(app, rehearsed)
    assert opens(TASK) is opens(TASK)
    assert (len(app.told), len(rehearsed.told)) == (0, 1)


def test_the_labels_must_be_those_of_the_records_that_the_app_trains_on() -> None:
    with pytest.raises(Misconfigured, match="trains on 80 records, and the labels are those of 3"):
        data(RecordingApp(), RecordingApp(examples=80))(TASK)
    data(RecordingApp(), RecordingApp(examples=None))(TASK)


def test_only_update_clip_leaves_the_training_to_an_app() -> None:
    with pytest.raises(Misconfigured, match=r"gradient_once.*takes part in tasks with update_clip"):
        data(RecordingApp())(preset("digits"))
    assert data(RecordingApp(), claimed=True)(TASK).claimed


def test_a_task_with_statistics_of_batch_normalisation_is_refused() -> None:
    tensors = [{"name": "weight", "shape": [2, 3]}, {"name": "bn.running_mean", "shape": [2]}]
    facts = TASK.model_dump(mode="json") | {"layout": {"tensors": tensors}}
    with pytest.raises(LayoutMismatch, match=r"bn.running_mean .* GroupNorm"):
        data(RecordingApp())(TaskSpec.model_validate(facts))
