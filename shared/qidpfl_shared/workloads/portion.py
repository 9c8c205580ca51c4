"""Portions of a testbed's training records: some that nobody trains on, and of the rest only so many.

Validation records come first from one fixed permutation and training records after them, so that the two never overlap,
and whatever number of records is trained on, models are evaluated on the same ones.
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
    """A workload of which only some training records are used. They are chosen when they are first asked for."""

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
        """The validation records where the task has some, else what the workload itself holds out."""
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
        """The records of these places in the permutation, in the order in which they were read."""
        records = self.whole.training()
        self._check(len(records))
        # The old generator on purpose: numpy promises never to change its stream.
        order = np.random.RandomState(_SEED).permutation(len(records))
        return records.take(np.sort(order[start:end]).astype(np.int64))

    def _check(self, there_are: int) -> None:
        # Of the rest at least one is needed to learn from.
        if self.validation_records + (self.training_records or 1) > there_are:
            wanted = "all others" if self.training_records is None else f"{self.training_records} others"
            raise PartitionError(
                f"the task sets {self.validation_records} records aside for validation and trains on {wanted},"
                f" but there are {there_are}"
            )


def portion(workload: Workload, spec: WorkloadSpec) -> Workload:
    """The portion of a workload that a task uses: all of it where the task says nothing."""
    if spec == spec.whole:
        return workload
    return Portion(
        whole=workload, training_records=spec.training_records, validation_records=spec.validation_records or 0
    )
