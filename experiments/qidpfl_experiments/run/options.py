"""Options and errors that the commands share."""

import os
from collections.abc import Sequence
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
from ..testbed.process import AuditFailed, ProcessEnded
from .grid import SWEEP_SEED

Dataset = Annotated[str, typer.Option(help="digits, mnist, emnist, cifar10, or a data set of your settings file")]
Partitions = Annotated[
    str, typer.Option("--partition", help="how records are divided among clients; separate several by commas")
]
ScaleName = Annotated[
    str | None,
    typer.Option(
        "--scale", help="full, or a smaller scale of the data set (see list)  [default: that of the data set]"
    ),
]
VariantName = Annotated[str, typer.Option("--variant", help="how clients train (see list)")]
Out = Annotated[
    Path | None,
    typer.Option(help="results folder  [default: results/DATASET-SCALE, or results/DATASET-SCALE-VARIANT]"),
]
Jobs = Annotated[int | None, typer.Option(min=1, help="cells that run at the same time  [default: number of cores]")]
Device = Annotated[
    str, typer.Option(envvar="QIDPFL_DEVICE", help="device for training: auto, cpu, cuda, cuda:N or mps")
]
DataDir = Annotated[
    Path | None,
    typer.Option(envvar="QIDPFL_DATA_DIR", help="folder of the data sets  [default: a cache, downloaded once]"),
]
SettingsFile = Annotated[Path, typer.Option("--settings", help="your settings file instead of the built-in one")]
Reproducible = Annotated[
    bool,
    typer.Option(
        "--reproducible",
        help="UNSAFE, for public data only: draw the noise from the seed, the same for all methods, so that they are"
        " compared under common noise and a repeat gives identical models",
    ),
]
KeepWork = Annotated[
    bool, typer.Option("--keep-work", help="keep the state of the coordinator and the logs in OUT/work")
]

Tensorboard = Annotated[
    Path | None, typer.Option(help="also write every round of every cell to this folder for TensorBoard")
]
Mlflow = Annotated[
    str | None,
    typer.Option(metavar="URI", help="also write every round of every cell to MLflow, like http://host:5000"),
]


_MOST_SEEDS = 1000


class CellsFailed(Exception):
    """At least one cell failed. The results of the others are written."""


guarded = one_line_errors(
    "qidpfl-experiments",
    *(SettingsError, UnknownMethod, CustomMethodError, NotOurFolder, DamagedResults),
    *(CellsFailed, ProcessEnded, AuditFailed),
    *(ClientError, WorkloadError, ImpossibleArgument),
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """The values of the shared options."""

    setup: Setup
    out: Path
    jobs: int
    device: str
    data_dir: Path | None
    reproducible: bool
    keep_work: bool
    tensorboard: Path | None = None
    mlflow: str | None = None


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
    tensorboard: Tensorboard = None,
    mlflow: Mlflow = None,
) -> Request:
    """Check the shared options and fill in the defaults."""
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
        tensorboard=tensorboard,
        mlflow=mlflow,
    )


asking = sharing_options(request)


def names(text: str) -> tuple[str, ...]:
    """Split a list of names at its commas and drop repetitions."""
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise SettingsError("a list of names is empty; give at least one name")
    return found


def seeds_in(text: str) -> tuple[int, ...]:
    """The seeds of an option: a number is how many, from 0 on; a list or a range names them."""
    try:
        if "," not in text and "-" not in text:
            return _checked(range(int(text)), text)
        found: list[int] = []
        for part in names(text):
            first, dash, last = part.partition("-")
            some = range(int(first), int(last if dash else first) + 1)
            found += _checked(some, text)
        return _checked(found, text)
    except ValueError:
        raise SettingsError(f"{text!r} names no seeds; give a number, or seeds such as 3,5 or 4-6 or 7-7") from None


def _checked(seeds: Sequence[int], text: str) -> tuple[int, ...]:
    if not 1 <= len(seeds) <= _MOST_SEEDS or max(seeds) >= SWEEP_SEED:
        raise SettingsError(
            f"{text!r} names {len(seeds)} seeds; between 1 and {_MOST_SEEDS} below {SWEEP_SEED} can run"
        )
    return tuple(dict.fromkeys(seeds))
