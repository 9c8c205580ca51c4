"""`Workload`: the small protocol that built-in workloads and a user's own ones implement."""

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from .records import Records

if TYPE_CHECKING:
    from torch import nn


class WorkloadError(Exception):
    """A workload cannot be used; the message is one line that says why and what to do.

    WorkloadError
      UnknownWorkload     no built-in data set or network of this name, or no such module or class
      DataMissing         the data are not where they were looked for, or damaged
      LayoutMismatch      the network is not the one that the task describes
      PartitionError      the records cannot be divided like this, or there is no such shard
    """


class UnknownWorkload(WorkloadError):
    """There is no data set, network, module or class of this name."""


class DataMissing(WorkloadError):
    """The data are not where they were looked for, or are damaged."""


class LayoutMismatch(WorkloadError):
    """The network's tensors are not those of the task."""


class PartitionError(WorkloadError):
    """The records cannot be divided like this, or there is no such shard."""


@runtime_checkable
class Workload(Protocol):
    """What is learnt from which data. A class of your own is made with `data_dir` (a path or None) as keyword."""

    @property
    def labels(self) -> int:
        """How many labels there are: 0, 1, ... A plain attribute will do."""

    @property
    def convex(self) -> bool:
        """Whether the loss is convex in the parameters, as for softmax regression. A plain attribute will do."""

    def training(self) -> Records:
        """All records to learn from: in a testbed those of all clients, else the owner's own."""

    def held_out(self) -> Records | None:
        """Records that nobody trains on, which the coordinator evaluates with; None where there are none."""

    def network(self) -> "nn.Module":
        """A fresh network; its named parameters are the task's layout. It must treat every record by itself."""
