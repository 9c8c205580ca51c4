"""The owners' own model at the coordinator: it describes the layout of a task, and gives version 0 of its model."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qidpfl_shared.core.aggregation import Parameters
from qidpfl_shared.protocol.task_spec import DataSpec, TaskSpec
from qidpfl_shared.protocol.wire import TensorLayout, flatten
from qidpfl_shared.workloads.custom import class_named, published_name
from qidpfl_shared.workloads.own_data.reading import OwnFiles, read_own_data
from qidpfl_shared.workloads.own_data.workload import own_model
from qidpfl_shared.workloads.workload import WorkloadError

from ..errors import CoordinatorError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn


@dataclass(frozen=True)
class DescribedModel:
    """A model of the owners, named as module:Class or file.py:Class, as a new network from a fixed seed."""

    name: str
    network: "nn.Module"

    @property
    def named_layout(self) -> tuple[str, TensorLayout]:
        """The name in the task, and the layout."""
        from qidpfl_shared.workloads.networks import layout_of

        return name_in_task(self.name), layout_of(self.network)

    def start(self, spec: TaskSpec) -> Parameters:
        """The parameters of the new network as version 0."""
        tensors = {name: parameter.detach().numpy() for name, parameter in self.network.named_parameters()}
        return flatten(tensors=tensors, layout=spec.layout)


def describe_model(name: str, data: DataSpec) -> DescribedModel:
    """The model of this name for these data. Raises `CoordinatorError`, also without torch."""
    try:
        import torch

        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = own_model(name, labels=len(data.label.shown), record_shape=data.record_shape)
    except ImportError as error:
        raise CoordinatorError(f"torch is needed to describe {name}: install the extra eval") from error
    except WorkloadError as error:
        raise CoordinatorError(str(error)) from error
    return DescribedModel(name, network)


def name_in_task(model: str) -> str:
    """The name of an own model in a task: without the folder of its file, which stays private."""
    return published_name(model)


def find_model(name: str) -> None:
    """Import the model of this name. Raises `CoordinatorError` if there is none."""
    try:
        class_named(name, kind="model")
    except WorkloadError as error:
        raise CoordinatorError(f"--model: {error}") from error


def check_held_out(spec: TaskSpec, path: "Path") -> list[str]:
    """Read the operator's file for a task. Returns what the operator should know. Raises `CoordinatorError`."""
    assert spec.data is not None
    try:
        read = read_own_data(OwnFiles(path=path), spec.data)
    except WorkloadError as error:
        raise CoordinatorError(f"--held-out: {error}") from error
    counts = read.records.label_counts(spec.workload.labels)
    absent = [name for name, count in zip(spec.data.label.shown, counts, strict=True) if count == 0]
    notes = [f"the held-out file has no record of {', '.join(absent[:5])}"] if absent else []
    return [*read.notes, *notes]
