"""Custom workloads: a class that the owner of this machine names on a command line.

Importing runs code. The name therefore never comes from a server or a task.
"""

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..plugin_loader import CannotImport, described, module_of_file
from .records import Records
from .workload import UnknownWorkload, Workload, WorkloadError

if TYPE_CHECKING:
    from torch import nn

_METHODS = ("training", "held_out", "network")


@dataclass(frozen=True)
class CheckedWorkload:
    """A user's workload. Its results are checked before they are used."""

    name: str
    custom: Workload

    @property
    def labels(self) -> int:
        return self.custom.labels

    @property
    def convex(self) -> bool:
        return self.custom.convex

    def training(self) -> Records:
        return self._training

    def held_out(self) -> Records | None:
        return self._held_out

    def network(self) -> "nn.Module":
        from torch import nn

        from .networks import check_records_stay_apart, layout_of

        network = self._called("network")
        if not isinstance(network, nn.Module):
            raise WorkloadError(f"{self.name}: network() returned {_kind(network)}, not a torch module")
        layout_of(network)
        check_records_stay_apart(network)
        return network

    @cached_property
    def _training(self) -> Records:
        return self._checked("training", self._called("training"))

    @cached_property
    def _held_out(self) -> Records | None:
        records = self._called("held_out")
        return None if records is None else self._checked("held_out", records)

    def _called(self, method: str) -> Any:
        try:
            return getattr(self.custom, method)()
        except WorkloadError:
            raise
        except Exception as error:
            raise WorkloadError(f"{self.name}: {method}() failed: {described(error)}") from error

    def _checked(self, method: str, records: Any) -> Records:
        if not isinstance(records, Records):
            raise WorkloadError(f"{self.name}: {method}() returned {_kind(records)}, not Records")
        if (problem := _problem_of(records, self.labels)) is not None:
            raise WorkloadError(f"{self.name}: {method}() returned {problem}")
        return records


def custom_workload(name: str, *, data_dir: Path | None) -> CheckedWorkload:
    """Import `module:Class` or `path/to/file.py:Class`, and create the workload with its data folder.

    Raises `UnknownWorkload` if there is no such class, and `WorkloadError` if it fails or lacks a member.
    """
    maker = class_named(name)
    try:
        custom = maker(data_dir=data_dir)
    except WorkloadError:
        raise
    except Exception as error:
        raise WorkloadError(f"{name}: creating the workload failed: {described(error)}") from error
    _check_members(name, custom)
    return CheckedWorkload(name, custom)


def class_named(name: str, *, kind: str = "workload") -> Callable[..., Any]:
    """Import the class of `module:Class` or `path/to/file.py:Class`. Raises `UnknownWorkload` if there is none."""
    place, colon, class_name = name.rpartition(":")
    if not colon or not place or not class_name:
        raise UnknownWorkload(f"{name!r} is neither module:Class nor path/to/file.py:Class")
    module = _module_of_file(Path(place), kind) if place.endswith(".py") else _module_named(place)
    maker: Callable[..., Any] | None = getattr(module, class_name, None)
    if not callable(maker):
        raise UnknownWorkload(f"{place} has no class {class_name!r}")
    return maker


def published_name(name: str) -> str:
    """Return the name of this workload in a task. A file is named by its stem, so its folder stays private.

    >>> published_name("/home/me/cells.py:Cells")
    'cells:Cells'
    """
    place, _, class_name = name.rpartition(":")
    return f"{Path(place).stem if place.endswith('.py') else place}:{class_name}"


def _module_named(name: str) -> ModuleType:
    # Installed commands do not search the current folder. It comes last, so it hides no installed module.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise UnknownWorkload(f"module {name!r} cannot be imported: {described(error)}") from error


def _module_of_file(path: Path, kind: str) -> ModuleType:
    try:
        return module_of_file(path, kind=kind)
    except CannotImport as error:
        raise UnknownWorkload(str(error)) from error


def _check_members(name: str, custom: Any) -> None:
    missing = [member for member in ("labels", "convex", *_METHODS) if not hasattr(custom, member)]
    if missing:
        raise WorkloadError(f"{name} lacks {', '.join(missing)}: a workload has labels, convex, {', '.join(_METHODS)}")
    if isinstance(custom.labels, bool) or not isinstance(custom.labels, int) or custom.labels < 1:
        raise WorkloadError(f"{name}: labels must be a whole number of at least 1, not {custom.labels!r}")
    if not isinstance(custom.convex, bool):
        raise WorkloadError(f"{name}: convex must be True or False, not {custom.convex!r}")
    for method in _METHODS:
        if not callable(getattr(custom, method)):
            raise WorkloadError(f"{name}: {method} must be a method")


def _problem_of(records: Records, labels: int) -> str | None:
    if len(records) == 0:
        return "no records"
    if records.labels.ndim != 1 or records.labels.dtype.kind not in "iu":
        return f"labels of type {records.labels.dtype} {records.labels.shape}, not a row of whole numbers"
    low, high = int(records.labels.min()), int(records.labels.max())
    if low < 0 or high >= labels:
        return f"labels from {low} to {high}, not from 0 to {labels - 1}"
    if records.features.dtype.kind not in "iuf":
        return f"features of type {records.features.dtype}, not numbers"
    if not np.isfinite(records.features).all():
        return "features that are not finite"
    return None


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"
