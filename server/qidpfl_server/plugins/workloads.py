"""Workloads of the operator's own: what a class says of itself becomes part of a task's spec."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qidpfl_shared.core.aggregation import Parameters
from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.protocol.wire import WireError, flatten
from qidpfl_shared.workloads.custom import custom_workload, published_name
from qidpfl_shared.workloads.workload import Workload, WorkloadError

from ..errors import CoordinatorError

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class CustomWorkload:
    """A workload named as module:Class or file.py:Class, and a fresh network of it."""

    name: str
    workload: Workload
    network: "nn.Module"

    def overrides(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The overrides of a preset that make it a task of this workload; what is given by hand wins."""
        from qidpfl_shared.workloads.networks import layout_of

        derived = {
            "dataset": published_name(self.name),
            "network": "own",
            "labels": self.workload.labels,
            "convex": self.workload.convex,
        }
        layout = layout_of(self.network).model_dump(mode="json")
        return {"layout": layout, **given, "workload": {**derived, **given.get("workload", {})}}

    def start(self, spec: TaskSpec) -> Parameters | None:
        """Version 0 as the network makes it; None for a convex task, which starts from zero."""
        if spec.workload.convex:
            return None
        tensors = {name: parameter.detach().numpy() for name, parameter in self.network.named_parameters()}
        try:
            return flatten(tensors=tensors, layout=spec.layout)
        except WireError as error:
            raise CoordinatorError(f"{self.name} is not the network of this task: {error.detail}") from error


def find_workload(name: str, data_dir: Path | None) -> Workload:
    """The workload of this name, also from a module in the current folder. Nothing is read of its data."""
    try:
        return custom_workload(name, data_dir=data_dir)
    except WorkloadError as error:
        raise CoordinatorError(str(error)) from error


def describe_workload(name: str, data_dir: Path | None) -> CustomWorkload:
    """The workload of this name with its network, which is the same every time."""
    workload = find_workload(name, data_dir)
    try:
        import torch

        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = workload.network()
    except ImportError as error:
        raise CoordinatorError(f"torch is needed to describe {name}: install the extra eval") from error
    except WorkloadError as error:
        raise CoordinatorError(str(error)) from error
    return CustomWorkload(name, workload, network)
