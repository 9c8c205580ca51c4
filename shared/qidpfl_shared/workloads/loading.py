"""`load_workload`: from the workload that a task names to data and a network."""

from pathlib import Path

from ..protocol.task_spec import WorkloadSpec
from .builtin import DATA_SETS, built_in
from .custom import own_workload
from .datasets.folder import DataFolder, default_folder
from .portion import portion
from .workload import LayoutMismatch, UnknownWorkload, Workload

# The option of every command that lets an owner name a workload of their own.
OWN_FLAG = "--workload"


def load_workload(
    spec: WorkloadSpec, *, data_dir: Path | None = None, own: str | None = None, download: bool = True
) -> Workload:
    """The workload of a task. Nothing is read or downloaded before its records are asked for.

    `own` is `module:Class` or `path/to/file.py:Class`, named by the owner of this machine. What a task names is never
    imported: a coordinator could then run any code that is installed here. An owner of data that no testbed divides
    asks for the workload of `spec.whole`.
    """
    if own is not None:
        workload: Workload = own_workload(own, data_dir=data_dir)
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
            f"the task names {dataset!r}, and what a task names is not imported;"
            f" if it is yours, say {OWN_FLAG} {dataset}"
        )
    return (
        f"there is no data set {dataset!r}; there are {', '.join(DATA_SETS)},"
        f" or a workload of your own: {OWN_FLAG} module:Class"
    )


def _check(workload: Workload, spec: WorkloadSpec) -> None:
    if workload.labels != spec.labels:
        raise LayoutMismatch(f"the workload has {workload.labels} labels, but the task has {spec.labels}")
    if spec.convex and not workload.convex:
        raise LayoutMismatch("the task says that the loss is convex, but the workload does not")
