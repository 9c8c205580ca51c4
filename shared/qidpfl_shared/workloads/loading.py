"""`load_workload`: the data and the network of the workload that a task names."""

from pathlib import Path

from ..protocol.task_spec import WorkloadSpec
from .builtin import DATA_SETS, built_in
from .custom import custom_workload
from .datasets.folder import DataFolder, default_folder
from .portion import portion
from .workload import LayoutMismatch, UnknownWorkload, Workload

# The command-line option that names a custom workload.
CUSTOM_FLAG = "--workload"


def load_workload(
    spec: WorkloadSpec, *, data_dir: Path | None = None, custom: str | None = None, download: bool = True
) -> Workload:
    """Return the workload of a task. Its records are read or downloaded when they are first used.

    `custom` is `module:Class` or `path/to/file.py:Class`, named by the owner of this machine. A name from a task is
    never imported, because a server could then run any code that is installed here. A client with its own data loads
    the workload of `spec.whole`.

    Raises `UnknownWorkload`, `LayoutMismatch` if the workload is not what the task says, and `WorkloadError` if a
    custom workload fails.
    """
    if custom is not None:
        workload: Workload = custom_workload(custom, data_dir=data_dir)
    elif spec.dataset in DATA_SETS:
        folder = DataFolder(path=data_dir or default_folder(), download=download)
        workload = built_in(dataset=spec.dataset, network=spec.network, folder=folder)
    else:
        raise UnknownWorkload(_how_to_name(spec.dataset))
    _check(workload, spec)
    return portion(workload, spec)


def _how_to_name(dataset: str) -> str:
    if ":" in dataset:
        return (
            f"the task names {dataset!r}; a name from a task is not imported."
            f" If you trust this code, start with {CUSTOM_FLAG} {dataset}"
        )
    return (
        f"there is no data set {dataset!r}; use one of {', '.join(DATA_SETS)},"
        f" or a custom workload: {CUSTOM_FLAG} module:Class"
    )


def _check(workload: Workload, spec: WorkloadSpec) -> None:
    if workload.labels != spec.labels:
        raise LayoutMismatch(f"the workload has {workload.labels} labels, but the task has {spec.labels}")
    if spec.convex and not workload.convex:
        raise LayoutMismatch("the task needs a convex loss, but the workload is not convex")
