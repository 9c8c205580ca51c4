"""Custom workloads: the server imports the class that the operator names, and derives the spec of a task from it."""

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
    """A workload, named as module:Class or file.py:Class, with a new network."""

    name: str
    workload: Workload
    network: "nn.Module"

    def overrides(self, given: Mapping[str, Any], *, clients: int | None = None) -> dict[str, Any]:
        """The overrides that make a preset a task of this workload. Explicitly given overrides take precedence.

        The partition of a preset is for its own data set. Clients have records of their own, unless a partition is
        given: then they divide those of the workload, as in a testbed. Without `clients` their number is not known.
        """
        from qidpfl_shared.workloads.networks import layout_of

        derived = {
            "dataset": published_name(self.name),
            "network": "own",
            "labels": self.workload.labels,
            "convex": self.workload.convex,
        }
        layout = layout_of(self.network).model_dump(mode="json")
        workload = given.get("workload", {})
        if "partition" in workload:
            return {"layout": layout, **given, "workload": {**derived, **workload}}
        unknown = {"expected_clients": None} if clients is None else {}
        return {
            "layout": layout,
            **given,
            "workload": {**derived, "partition": None, **workload},
            "rounds": {**unknown, **given.get("rounds", {})},
        }

    def start(self, spec: TaskSpec) -> Parameters | None:
        """The parameters of the new network as version 0; None for a convex task, which starts from zero.

        Raises `CoordinatorError` if the network does not have the layout of the task.
        """
        if spec.workload.convex:
            return None
        tensors = {name: parameter.detach().numpy() for name, parameter in self.network.named_parameters()}
        try:
            return flatten(tensors=tensors, layout=spec.layout)
        except WireError as error:
            raise CoordinatorError(f"{self.name} is not the network of this task: {error.detail}") from error


def find_workload(name: str, data_dir: Path | None) -> Workload:
    """Import the workload of this name, also from the current folder. Reads no data. Raises `CoordinatorError`."""
    try:
        return custom_workload(name, data_dir=data_dir)
    except WorkloadError as error:
        raise CoordinatorError(str(error)) from error


def describe_workload(name: str, data_dir: Path | None) -> CustomWorkload:
    """The workload of this name with its network, from a fixed seed. Raises `CoordinatorError`, also without torch."""
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
