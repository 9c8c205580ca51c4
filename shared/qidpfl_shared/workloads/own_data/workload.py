"""`OwnData`: the files of an owner and a network as a workload, for a task that states its features."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...plugin_loader import described
from ...protocol.task_spec import DataSpec, TaskSpec, WorkloadSpec
from ..custom import class_named
from ..records import Records
from ..workload import DataMissing, LayoutMismatch, UnknownWorkload, WorkloadError
from .reading import OwnFiles, OwnRecords, read_own_data

if TYPE_CHECKING:
    from torch import nn

DATA_FLAG, MODEL_FLAG = "--data", "--model"


@dataclass(frozen=True, kw_only=True)
class OwnData:
    """The records of one owner. `files` None: none are here, as at a coordinator that does not evaluate.

    `model` is module:Class or file.py:Class on the owner's own disk. A name from a task is never imported.
    """

    workload: WorkloadSpec
    data: DataSpec
    files: OwnFiles | None = None
    model: str | None = None

    @property
    def labels(self) -> int:
        return self.workload.labels

    @property
    def convex(self) -> bool:
        return self.workload.convex

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out or replaced when the records were read."""
        return self._own.notes

    def training(self) -> Records:
        return self._own.records

    def held_out(self) -> Records:
        """At a coordinator, the same files are the records to evaluate with."""
        return self._own.records

    def network(self) -> "nn.Module":
        from ..networks import build_network

        if self.model is None:
            return build_network(
                self.workload.network,
                labels=self.labels,
                record_shape=self.data.record_shape,
                hidden=self.workload.hidden or (),
            )
        return own_model(self.model, labels=self.labels, record_shape=self.data.record_shape)

    @cached_property
    def _own(self) -> OwnRecords:
        if self.files is None:
            raise DataMissing("no file to evaluate on is named")
        return read_own_data(self.files, self.data)


def own_data(spec: TaskSpec, *, files: OwnFiles | None, model: str | None) -> OwnData:
    """The workload of a task of own data. Reads no records yet.

    Raises `UnknownWorkload` if the task states no features, or if the model is not the one that the task names.
    """
    if spec.data is None:
        raise UnknownWorkload(
            f"the task uses the data set {spec.workload.dataset!r} and states no features, so it does not take"
            f" {DATA_FLAG}; a task of own data is made with `qidpfl-server tasks create --file`"
        )
    named = spec.workload.network
    if ":" not in named:
        if model is not None:
            raise UnknownWorkload(f"the task uses the built-in network {named!r}: leave {MODEL_FLAG} out")
    elif model is None:
        raise UnknownWorkload(
            f"the task uses the owners' own model {named!r}; a name from a task is not imported."
            f" If you have this file and trust it, add {MODEL_FLAG} path/to/{named.replace(':', '.py:')}"
        )
    return OwnData(workload=spec.workload, data=spec.data, files=files, model=model)


def own_model(name: str, *, labels: int, record_shape: tuple[int, ...]) -> "nn.Module":
    """A new network of the owner's class. Arguments called `labels` and `record_shape` get their values.

    Raises `WorkloadError` if the class fails, is no torch module, or has a layer that mixes records.
    """
    from torch import nn

    from ..networks import check_records_stay_apart, layout_of

    maker = class_named(name, kind="model")
    try:
        network = maker(**_accepted(maker, labels=labels, record_shape=record_shape))
    except Exception as error:
        raise WorkloadError(f"{name}: creating the model failed: {described(error)}") from error
    if not isinstance(network, nn.Module):
        raise WorkloadError(f"{name} makes a {type(network).__name__}, not a torch module")
    # Version 0 comes from the task: torch only needs to know the shapes.
    layout_of(network)
    check_records_stay_apart(network)
    return network


def check_own_model(network: "nn.Module", spec: TaskSpec, name: str) -> None:
    """Raise `LayoutMismatch` if the owner's model is not the task's: both digests of the layout, and the difference."""
    from ..networks import check_layout, layout_of

    own = layout_of(network)
    if own.digest == spec.layout.digest:
        return
    try:
        check_layout(network, spec.layout)
    except LayoutMismatch as error:
        raise LayoutMismatch(
            f"{name} is not the model of the task: the digest of its layout is {own.digest[:12]}, that of the task"
            f" {spec.layout.digest[:12]}; {error}. Ask the operator for the file that all owners use"
        ) from error


def _accepted(maker: Callable[..., Any], **values: Any) -> dict[str, Any]:
    try:
        parameters = inspect.signature(maker).parameters
    except (TypeError, ValueError):
        return {}
    return {name: value for name, value in values.items() if name in parameters}
