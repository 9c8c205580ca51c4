"""What the commands share: their options, and how they fail."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from qidpfl_client.errors import ClientError
from qidpfl_shared.command_line import one_line_errors, sharing_options
from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.workloads.workload import WorkloadError

from ..methods import CustomMethodError, UnknownMethod
from ..results.folder import NotOurFolder
from ..results.tables import DamagedResults
from ..settings import SETTINGS, SettingsError, Setup, read_settings, setup
from .process import AuditFailed, ProcessEnded

Dataset = Annotated[str, typer.Option(help="digits, mnist, emnist, cifar10, or one of your settings")]
Partitions = Annotated[str, typer.Option("--partition", help="how records are divided; several between commas")]
ScaleName = Annotated[
    str | None, typer.Option("--scale", help="full, or a smaller one of the data set (see list)  [default: its own]")
]
VariantName = Annotated[str, typer.Option("--variant", help="how clients train (see list)")]
Out = Annotated[
    Path | None,
    typer.Option(help="the results folder  [default: results/DATASET-SCALE, and -VARIANT unless recommended]"),
]
Jobs = Annotated[int | None, typer.Option(min=1, help="cells that run at once  [default: the cores]")]
Device = Annotated[str, typer.Option(envvar="QIDPFL_DEVICE", help="where fleets train: auto, cpu, cuda, cuda:N or mps")]
DataDir = Annotated[
    Path | None, typer.Option(envvar="QIDPFL_DATA_DIR", help="folder of the data sets  [default: downloaded once]")
]
SettingsFile = Annotated[Path, typer.Option("--settings", help="a settings file of yours instead of ours")]
Reproducible = Annotated[
    bool,
    typer.Option(
        "--reproducible",
        help="UNSAFE, for public data only: noise from the seed too, so that a repeat gives the same models to the bit",
    ),
]
KeepWork = Annotated[bool, typer.Option("--keep-work", help="keep the coordinator's state and the logs in OUT/work")]


class CellsFailed(Exception):
    """Something of what was to be run has failed; the rest is there."""


guarded = one_line_errors(
    "qidpfl-experiments",
    *(SettingsError, UnknownMethod, CustomMethodError, NotOurFolder, DamagedResults),
    *(CellsFailed, ProcessEnded, AuditFailed),
    *(ClientError, WorkloadError, ImpossibleArgument),
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the commands that run something have in common."""

    setup: Setup
    out: Path
    jobs: int
    device: str
    data_dir: Path | None
    reproducible: bool
    keep_work: bool


def request(
    *,
    dataset: Dataset,
    partition: Partitions = "iid,dirichlet",
    scale: ScaleName = None,
    variant: VariantName = "recommended",
    out: Out = None,
    jobs: Jobs = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    settings: SettingsFile = SETTINGS,
    reproducible: Reproducible = False,
    keep_work: KeepWork = False,
) -> Request:
    """The options that all commands share, checked and completed."""
    found = setup(read_settings(settings), dataset=dataset, scale=scale, variant=variant, partitions=names(partition))
    suffix = "" if variant == "recommended" else f"-{variant}"
    return Request(
        setup=found,
        out=out or Path("results") / f"{dataset}-{found.scale}{suffix}",
        jobs=jobs or os.cpu_count() or 1,
        device=device,
        data_dir=data_dir,
        reproducible=reproducible,
        keep_work=keep_work,
    )


asking = sharing_options(request)


def names(text: str) -> tuple[str, ...]:
    """Names between commas, each once."""
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise SettingsError("a list of names is empty")
    return found
