"""`Workload`: the protocol that built-in and custom workloads implement.

A custom workload is a class with these five members. Its constructor takes the keyword `data_dir`.

>>> import numpy as np
>>> class TwoPoints:
...     labels = 2
...     convex = True
...
...     def __init__(self, *, data_dir=None):
...         self.data_dir = data_dir
...
...     def training(self):
...         return Records(features=np.array([[0.0], [1.0]]), labels=np.array([0, 1]))
...
...     def held_out(self):
...         return None
...
...     def network(self):
...         from torch import nn
...
...         return nn.Linear(1, self.labels)
>>> isinstance(TwoPoints(data_dir=None), Workload)
True
"""

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from .records import Records

if TYPE_CHECKING:
    from torch import nn


class WorkloadError(Exception):
    """A workload cannot be used; the message is one line that says why and what to do.

    WorkloadError
      UnknownWorkload     there is no data set, network, module or class of this name
      DataMissing         the data are not in the folder, or damaged
      LayoutMismatch      the network is not the one that the task describes
      DataMismatch        own data do not have the features that the task states
        LabelMismatch     or not its labels
      PartitionError      the records cannot be divided as the task says, or there is no such shard
    """


class UnknownWorkload(WorkloadError):
    """There is no data set, network, module or class of this name."""


class DataMissing(WorkloadError):
    """The data are not in the folder, or are damaged."""


class LayoutMismatch(WorkloadError):
    """The network's tensors are not those of the task."""


class DataMismatch(WorkloadError):
    """Own data do not have the features that the task states."""


class LabelMismatch(DataMismatch):
    """Own data have labels that the task does not have."""


class PartitionError(WorkloadError):
    """The records cannot be divided as the task says, or there is no such shard."""


@runtime_checkable
class Workload(Protocol):
    """The data and the network of a task. A custom class is called with the keyword `data_dir` (a path or None).

    A method may raise `WorkloadError` with a message for the user. Any other exception is reported with its type.
    """

    @property
    def labels(self) -> int:
        """The number of labels, which are 0, 1, and so on. A plain attribute is enough."""

    @property
    def convex(self) -> bool:
        """Whether the loss is convex in the parameters, as for softmax regression. A plain attribute is enough."""

    def training(self) -> Records:
        """All training records: in a testbed those of all clients, otherwise those of this client."""

    def held_out(self) -> Records | None:
        """The records with which the server evaluates. No client trains on them. None if there are none."""

    def network(self) -> "nn.Module":
        """A new network. Its named parameters are the task's layout. It must process each record independently."""
