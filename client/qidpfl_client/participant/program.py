"""A program of the owner that trains by itself, such as the client of another framework, as a `DataSource`.

The program gets a model and returns the model after its local training. The client takes the difference as the update,
clips it as a whole and adds the noise (`update_clip`). The bound of the clipping holds for every program, so the
guarantee does not depend on what the program computes. A program that adds noise by itself only *claims* its guarantee.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from qidpfl_shared.core.privacy.mechanisms import MechanismName, UploadKind
from qidpfl_shared.protocol.mechanism_specs import PaperLiteral, UpdateClip
from qidpfl_shared.protocol.releases import round_of
from qidpfl_shared.protocol.task_spec import PrivacySpec, TaskSpec
from qidpfl_shared.protocol.wire import Vector32

from ..errors import ClientError, Misconfigured
from ..noise import NoiseSource


class LocalProgram(Protocol):
    """The owner's own way of training."""

    def train(self, model: Vector32, *, round_number: int, rho: float | None) -> npt.NDArray[np.floating[Any]]:
        """The flat model after local training that starts from `model`; `rho` is the declared budget, if any."""


@dataclass(frozen=True, kw_only=True)
class ProgramRecords:
    """What the client must know of the records of a program: label counts, and what identifies them in the journal."""

    label_counts: npt.NDArray[np.int64]
    fingerprint: str

    @property
    def size(self) -> int:
        """The number of records."""
        return int(self.label_counts.sum())


@dataclass(frozen=True, kw_only=True)
class ProgramData:
    """A program and its records, opened for one task; always all records.

    With `claimed` the program adds the noise for the declared budget, and the client sends its update as it is.
    Raises `Misconfigured` if the mechanism of the task is not one that a program can follow.
    """

    spec: TaskSpec
    program: LocalProgram
    records: ProgramRecords
    claimed: bool = False
    # The client clips and adds noise on the CPU, wherever the program trains.
    device_type: str = "cpu"

    def __post_init__(self) -> None:
        mechanism = self.spec.privacy.mechanism
        if self.claimed:
            if mechanism.build().kind is not UploadKind.UPDATE:
                raise Misconfigured(f"the mechanism {mechanism.name} uploads gradients, and a program returns a model")
        elif not isinstance(mechanism, UpdateClip | PaperLiteral):
            raise Misconfigured(
                f"the mechanism of the task is {mechanism.name}, which bounds every step of the training; a program"
                f" that trains by itself takes part in tasks with {MechanismName.UPDATE_CLIP}"
            )

    def learner(self, ordinal: int) -> "ProgramLearner":
        return ProgramLearner(self)


@dataclass(frozen=True)
class ProgramLearner:
    """The `Learner` of a program."""

    data: ProgramData

    @property
    def size(self) -> int:
        return self.data.records.size

    @property
    def label_counts(self) -> npt.NDArray[np.int64]:
        return self.data.records.label_counts

    @property
    def fingerprint(self) -> str:
        return self.data.records.fingerprint

    @property
    def device_type(self) -> str:
        return self.data.device_type

    @property
    def claimed(self) -> bool:
        return self.data.claimed

    def release(
        self, *, privacy: PrivacySpec, model: Vector32, rho: float | None, noise: NoiseSource, name: str
    ) -> npt.NDArray[np.float64]:
        if privacy.noise == (rho is None):
            raise ClientError("a task with noise needs a budget, and a task without noise takes none")
        update = self._update(model, rho=rho, round_number=round_of(name) or 0)
        if self.claimed:
            if not np.isfinite(update).all():
                raise ClientError("the program returned a model with NaN or infinite values; nothing was sent")
            return update
        mechanism = privacy.mechanism
        assert isinstance(mechanism, UpdateClip | PaperLiteral)
        # Torch takes seconds to load: the checks before enrolment do not need it.
        import torch

        from ..training.mechanisms import ReleaseNoise, clipped_with_noise

        drawn = ReleaseNoise(source=noise, rho=rho, release=name)
        released = clipped_with_noise(torch.from_numpy(update), mechanism, drawn, size=self.size)
        values: npt.NDArray[np.float64] = released.numpy()
        return values

    def _update(self, model: Vector32, *, rho: float | None, round_number: int) -> npt.NDArray[np.float64]:
        """The model of the round minus the model of the program: the coordinator subtracts an update."""
        trained = np.asarray(self.data.program.train(model.copy(), round_number=round_number, rho=rho))
        if trained.shape != model.shape or trained.dtype.kind != "f":
            raise ClientError(
                f"the program returned {trained.dtype} {trained.shape}, not floats of shape {model.shape}"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            difference: npt.NDArray[np.float64] = model.astype(np.float64) - trained.astype(np.float64)
        return difference
