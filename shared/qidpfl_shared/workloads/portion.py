"""Portions of a testbed's training records: some for validation, and of the others a given number for training.

One fixed permutation gives first the validation records, then the training records. The two never overlap, and the
validation records do not depend on the number of training records.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ..protocol.task_spec import WorkloadSpec
from .records import Records
from .workload import PartitionError, Workload

if TYPE_CHECKING:
    from torch import nn

_SEED = 20


@dataclass(frozen=True, kw_only=True)
class Portion:
    """A workload of which only some training records are used. They are chosen when they are first used."""

    whole: Workload
    training_records: int | None
    validation_records: int

    @property
    def labels(self) -> int:
        return self.whole.labels

    @property
    def convex(self) -> bool:
        return self.whole.convex

    def training(self) -> Records:
        return self._training

    def held_out(self) -> Records | None:
        """The validation records if the task has some, else the held-out records of the workload."""
        return self._validation if self.validation_records else self.whole.held_out()

    def network(self) -> "nn.Module":
        return self.whole.network()

    @cached_property
    def _training(self) -> Records:
        start = self.validation_records
        return self._chosen(start, None if self.training_records is None else start + self.training_records)

    @cached_property
    def _validation(self) -> Records:
        return self._chosen(0, self.validation_records)

    def _chosen(self, start: int, end: int | None) -> Records:
        """Return the records at these positions of the permutation, in the order in which they were read."""
        records = self.whole.training()
        self._check(len(records))
        # numpy guarantees that the stream of this old generator never changes.
        order = np.random.RandomState(_SEED).permutation(len(records))
        return records.take(np.sort(order[start:end]).astype(np.int64))

    def _check(self, there_are: int) -> None:
        # At least one record must remain for training.
        if self.validation_records + (self.training_records or 1) > there_are:
            wanted = "all others" if self.training_records is None else f"{self.training_records} others"
            raise PartitionError(
                f"the task uses {self.validation_records} records for validation and {wanted} for training,"
                f" but there are {there_are}"
            )


def portion(workload: Workload, spec: WorkloadSpec) -> Workload:
    """Return the portion of a workload that a task uses; the whole workload if the task names no portion."""
    if spec == spec.whole:
        return workload
    return Portion(
        whole=workload, training_records=spec.training_records, validation_records=spec.validation_records or 0
    )
