"""A Flower app as the data of a participant: `qidpfl_client` plays the task, the app trains."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from qidpfl_client.errors import Misconfigured
from qidpfl_client.participant.program import ProgramData, ProgramRecords
from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.protocol.wire import TensorLayout, Vector32

from .app_loading import Config
from .parameters import Flat, check_trained_only

# The scale of the made-up model of a rehearsal: as small as the first weights of a network.
_REHEARSAL_SCALE = 0.05


class TrainedModel(Protocol):
    """What an app returns from one training."""

    @property
    def parameters(self) -> Flat: ...

    @property
    def examples(self) -> int | None: ...


class TrainingApp(Protocol):
    """An app that trains in this process: `LocalApp`."""

    def train(self, model: Vector32, layout: TensorLayout, *, config: Config) -> TrainedModel: ...


@dataclass(frozen=True)
class AppProgram:
    """A Flower app as a program that trains by itself.

    The configuration of a training is that of a Flower server (`server-round`), and what an app needs that adds noise
    by itself: the declared budget and the clip norm.
    """

    app: TrainingApp
    spec: TaskSpec

    def train(self, model: Vector32, *, round_number: int, rho: float | None) -> npt.NDArray[np.floating[Any]]:
        config: Config = {"server-round": round_number}
        if rho is not None:
            config["qidpfl-rho"] = rho
            config["qidpfl-clip-norm"] = float(getattr(self.spec.privacy.mechanism, "clip_norm", 0.0))
        return self.app.train(model, self.spec.layout, config=config).parameters


@dataclass
class AppData:
    """Opens an app for a task: `OpenData` of the participant.

    `rehearsal` makes an app with a state of its own. It trains once on a made-up model before the client enrols, so
    that an app that does not fit the task leaves nothing behind. Its result goes nowhere.
    """

    app: TrainingApp
    records: Callable[[TaskSpec], ProgramRecords]
    claimed: bool = False
    rehearsal: Callable[[], TrainingApp] | None = None
    report: Callable[[str], None] = print
    # A client opens its data again when it reconnects.
    _known: dict[str, ProgramData] = field(default_factory=dict, init=False, repr=False)

    def __call__(self, spec: TaskSpec) -> ProgramData:
        known = self._known.get(spec.digest)
        if known is None:
            check_trained_only(spec.layout)
            known = ProgramData(
                spec=spec, program=AppProgram(self.app, spec), records=self.records(spec), claimed=self.claimed
            )
            if self.rehearsal is not None:
                rehearse(self.rehearsal(), known)
                self.report("the app has trained once on a made-up model: its parameters fit the task")
            self._known[spec.digest] = known
        return known


def rehearse(app: TrainingApp, data: ProgramData) -> None:
    """Let the app train once on a made-up model.

    Raises the error of the app, and `Misconfigured` if it trains on another number of records than the labels say.
    """
    made_up = np.random.default_rng(0).normal(0.0, _REHEARSAL_SCALE, data.spec.dimension).astype(np.float32)
    answer = app.train(made_up, data.spec.layout, config={"server-round": 1})
    if answer.examples is not None and answer.examples != data.records.size:
        raise Misconfigured(
            f"the app says that it trains on {answer.examples} records, and the labels are those of"
            f" {data.records.size}: name the labels of the records that it trains on"
        )
