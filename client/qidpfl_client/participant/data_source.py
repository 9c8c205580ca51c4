"""What a participant needs of its data: a count of labels, and one noised release per round."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from qidpfl_shared.protocol.task_spec import PrivacySpec, TaskSpec
from qidpfl_shared.protocol.wire import Vector32

from ..noise import NoiseSource


class Learner(Protocol):
    """One client's own records, and how it learns from them."""

    @property
    def size(self) -> int:
        """The number of records."""

    @property
    def label_counts(self) -> npt.NDArray[np.int64]:
        """How many there are of each label of the task."""

    @property
    def fingerprint(self) -> str:
        """What the journal knows this data set by."""

    def release(
        self, *, privacy: PrivacySpec, model: Vector32, rho: float | None, noise: NoiseSource, name: str
    ) -> npt.NDArray[np.float64]:
        """The flat upload of one round, with noise for the declared budget; rho is None where noise is off."""


class DataSource(Protocol):
    """The data on this machine, fit for the task that they were opened for."""

    def learner(self, ordinal: int) -> Learner:
        """The learner of the client with this ordinal: on its shard in a testbed, else on all records."""


class OpenData(Protocol):
    """Opens the data for a task; raises `WorkloadError` where they do not fit or are not there."""

    def __call__(self, spec: TaskSpec) -> DataSource: ...
