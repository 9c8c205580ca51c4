"""The interface between a participant and its data: label counts, and one noised release per round."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from qidpfl_shared.protocol.task_spec import PrivacySpec, TaskSpec
from qidpfl_shared.protocol.wire import Vector32

from ..noise import NoiseSource


class Learner(Protocol):
    """The records of one client, and how it trains on them."""

    @property
    def size(self) -> int:
        """The number of records."""

    @property
    def label_counts(self) -> npt.NDArray[np.int64]:
        """The number of records of each label of the task."""

    @property
    def fingerprint(self) -> str:
        """What identifies this data set in the journal."""

    @property
    def device_type(self) -> str:
        """The type of the device that trains, such as `cpu`."""

    @property
    def claimed(self) -> bool:
        """Whether the owner's program adds the noise, so that the client only claims what a release guarantees."""

    def release(
        self, *, privacy: PrivacySpec, model: Vector32, rho: float | None, noise: NoiseSource, name: str
    ) -> npt.NDArray[np.float64]:
        """The flat upload of one round, with noise for the budget `rho`; None if the task uses no noise."""


class DataSource(Protocol):
    """The data of this machine, opened and checked for one task."""

    @property
    def device_type(self) -> str:
        """The type of the device that trains, such as `cpu`."""

    @property
    def claimed(self) -> bool:
        """Whether the owner's program adds the noise, so that the client only claims what a release guarantees."""

    def learner(self, ordinal: int) -> Learner:
        """The learner of the client with this ordinal: on its shard in a testbed, otherwise on all records."""


class OpenData(Protocol):
    """Opens the data for a task; raises `WorkloadError` if they are missing or do not fit."""

    def __call__(self, spec: TaskSpec) -> DataSource: ...
