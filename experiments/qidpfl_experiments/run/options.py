"""Options and errors that the commands share."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
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
from .engines.engine import EngineUnavailable
from .grid import SWEEP_SEED

# On a cluster: how many cells wait or run at the same time, and the limit of each.
CLUSTER_JOBS = 100
TIME_LIMIT_MIN = 1440.0


class EngineName(StrEnum):
    """Where cells run."""

    LOCAL = "local"
    SLURM = "slurm"
    RAY = "ray"


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
Jobs = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="cells that run at the same time; on a cluster, cells that wait or run"
        f"  [default: number of cores; on a cluster {CLUSTER_JOBS}]",
    ),
]
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
On = Annotated[
    EngineName,
    typer.Option("--on", help="where cells run: this machine, Slurm or Ray, with a coordinator for each cell"),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="of Ray: host:port, auto, or local  [default: RAY_ADDRESS, or a new cluster on this machine]; with Slurm"
        " only local: processes on this machine instead of jobs",
    ),
]
Cpus = Annotated[int | None, typer.Option(min=1, max=10_000, help="cores of a cell on a cluster  [default: 1]")]
Gpus = Annotated[int | None, typer.Option(min=0, max=1000, help="GPUs of a cell on a cluster  [default: 0]")]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        min=0.01,
        max=1e6,
        help=f"minutes after which a cell on a cluster fails  [default: {TIME_LIMIT_MIN:g}]",
    ),
]
SlurmOptions = Annotated[
    list[str] | None,
    typer.Option("--slurm", metavar="KEY=VALUE", help="option of sbatch, such as partition=gpu or mem=8G; repeatable"),
]


_MOST_SEEDS = 1000


class CellsFailed(Exception):
    """At least one cell failed. The results of the others are written."""


guarded = one_line_errors(
    "qidpfl-experiments",
    *(SettingsError, UnknownMethod, CustomMethodError, NotOurFolder, DamagedResults),
    *(CellsFailed, ProcessEnded, AuditFailed, EngineUnavailable),
    *(ClientError, WorkloadError, ImpossibleArgument),
)


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Where cells run, and what each of them gets there."""

    name: EngineName = EngineName.LOCAL
    address: str | None = None
    cpus: int = 1
    gpus: int = 0
    time_limit_min: float = TIME_LIMIT_MIN
    slurm: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_queue(self) -> bool:
        """Whether the engine itself decides how many cells run at the same time."""
        return self.name is EngineName.RAY or (self.name is EngineName.SLURM and self.address is None)


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
    engine: EngineOptions = EngineOptions()


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
    on: On = EngineName.LOCAL,
    address: Address = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
    time_limit: TimeLimit = None,
    slurm: SlurmOptions = None,
) -> Request:
    """Check the shared options and fill in the defaults."""
    found = setup(read_settings(settings), dataset=dataset, scale=scale, variant=variant, partitions=names(partition))
    engine = _engine(on, address=address, cpus=cpus, gpus=gpus, time_limit=time_limit, slurm=slurm or ())
    suffix = "" if variant == "recommended" else f"-{variant}"
    return Request(
        setup=found,
        out=out or Path("results") / f"{dataset}-{found.scale}{suffix}",
        jobs=jobs or (CLUSTER_JOBS if engine.has_queue else os.cpu_count() or 1),
        device=device,
        data_dir=data_dir,
        reproducible=reproducible,
        keep_work=keep_work,
        tensorboard=tensorboard,
        mlflow=mlflow,
        engine=engine,
    )


def _engine(
    name: EngineName,
    *,
    address: str | None,
    cpus: int | None,
    gpus: int | None,
    time_limit: float | None,
    slurm: Sequence[str],
) -> EngineOptions:
    """Check the options of the engine: one that would have no effect is an error."""
    given = {"--address": address, "--cpus": cpus, "--gpus": gpus, "--time-limit": time_limit, "--slurm": slurm or None}
    for option, value in given.items():
        if value is not None and (name is EngineName.LOCAL or (option == "--slurm" and name is not EngineName.SLURM)):
            needed = "--on slurm" if option == "--slurm" else "--on slurm or --on ray"
            raise SettingsError(f"{option} needs {needed}")
    if name is EngineName.SLURM and address not in (None, "local"):
        raise SettingsError(f"with --on slurm, --address can only be local, not {address!r}")
    for option in slurm:
        if not re.fullmatch(r"[a-z][a-z-]*(=[^\s=][^\n]*)?", option):
            raise SettingsError(f"--slurm is KEY=VALUE without dashes, such as partition=gpu, not {option!r}")
    return EngineOptions(
        name=name,
        address=address,
        cpus=cpus or 1,
        gpus=gpus or 0,
        time_limit_min=time_limit or TIME_LIMIT_MIN,
        slurm={key: value for key, _, value in (option.partition("=") for option in slurm)},
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
