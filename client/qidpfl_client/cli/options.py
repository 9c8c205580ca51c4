"""What the commands share: their options, and how they fail."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from qidpfl_shared.command_line import one_line_errors
from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.privacy.account import ReleaseRefused
from qidpfl_shared.workloads.workload import WorkloadError

from ..errors import ClientError, Misconfigured
from ..noise import NoiseSource, SystemNoise, UnsafeSeededNoise

Server = Annotated[str, typer.Option(envvar="QIDPFL_SERVER", help="the coordinator's address, https://…")]
Code = Annotated[str | None, typer.Option(help="the enrolment code; visible to other users of this machine")]
CodeFile = Annotated[Path | None, typer.Option(envvar="QIDPFL_CODE_FILE", help="a file that holds the enrolment code")]
Insecure = Annotated[
    bool, typer.Option("--insecure", envvar="QIDPFL_INSECURE", help="allow plain http to another machine")
]
Moved = Annotated[
    bool, typer.Option("--moved", help="the coordinator of this journal's task has moved to another address")
]
DataDir = Annotated[
    Path | None, typer.Option(envvar="QIDPFL_DATA_DIR", help="folder of the data sets  [default: downloaded once]")
]
CustomWorkload = Annotated[
    str | None,
    typer.Option("--workload", envvar="QIDPFL_WORKLOAD", help="a workload of yours: module:Class or file.py:Class"),
]
AllRecords = Annotated[
    bool,
    typer.Option("--all-records", help="learn from all records here, not from the shard of a testbed"),
]
Device = Annotated[str, typer.Option(envvar="QIDPFL_DEVICE", help="auto, cpu, cuda, cuda:N or mps")]
PrivacyValue = Annotated[
    str,
    typer.Option(
        envvar="QIDPFL_PRIVACY_VALUE",
        help="what a unit of budget is worth to you (ν); LOW:HIGH draws one, once",
    ),
]
RhoCap = Annotated[float | None, typer.Option(help="largest budget in one round  [default: the task's]")]
LifetimeRho = Annotated[
    float | None,
    typer.Option(help="largest budget of these records in all tasks together  [default: the task's suggestion]"),
]
HistogramRho = Annotated[
    float | None, typer.Option(help="budget of the label histogram  [default: the task's suggestion]")
]
ExactHistogram = Annotated[
    bool, typer.Option("--exact-histogram", help="send the label counts as they are: an unprotected release")
]
MinUtility = Annotated[float, typer.Option(help="decline a round that is worth less than this, after all costs")]
AcceptUnproven = Annotated[
    bool,
    typer.Option(
        "--accept-unproven",
        help="take part even where releases guarantee less than they declare, or nothing; ends the lifetime limit",
    ),
]
CostPerRecord = Annotated[float, typer.Option(help="what using one record in one round costs you")]
CostPerSecond = Annotated[float, typer.Option(help="what a second of training costs you")]
CostPerMebibyte = Annotated[float, typer.Option(help="what a mebibyte sent or received costs you")]
Patience = Annotated[float, typer.Option(help="seconds of an outage after which the client gives up")]
FirstContact = Annotated[
    float,
    typer.Option(envvar="QIDPFL_FIRST_CONTACT", help="seconds to wait for a coordinator that was never there yet"),
]
UnsafeSeed = Annotated[
    int | None,
    typer.Option(help="UNSAFE, for tests only: noise from this seed, which protects nothing"),
]


guarded = one_line_errors("qidpfl-client", ClientError, WorkloadError, ImpossibleArgument, ReleaseRefused)


def enrolment_code(code: str | None, code_file: Path | None) -> str:
    """The code from where the owner has put it."""
    if (code is None) == (code_file is None):
        raise Misconfigured("one of --code and --code-file is needed")
    if code is not None:
        return code.strip()
    assert code_file is not None
    try:
        return code_file.read_text().strip()
    except UnicodeDecodeError:
        raise Misconfigured(f"{code_file} holds no enrolment code") from None


def noise_source(unsafe_seed: int | None) -> NoiseSource:
    """The operating system's entropy; a seed only in test mode."""
    return SystemNoise() if unsafe_seed is None else UnsafeSeededNoise(unsafe_seed)


def warn_if_unsafe(unsafe_seed: int | None) -> None:
    """Say what test mode is."""
    if unsafe_seed is not None:
        print("qidpfl-client: UNSAFE test mode: the noise comes from a seed and protects nothing", file=sys.stderr)
