"""The options that the commands share, and how commands report errors."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from qidpfl_shared.command_line import one_line_errors
from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.privacy.account import ReleaseRefused
from qidpfl_shared.tracing import TracingUnavailable, start_tracing, traces_are_wanted
from qidpfl_shared.workloads.workload import WorkloadError

from ..errors import ClientError, Misconfigured
from ..noise import NoiseSource, SystemNoise, UnsafeSeededNoise
from ..owner import (
    HISTOGRAM_RHO,
    LIFETIME_RHO,
    PUBLIC_HISTOGRAM_RHO,
    PUBLIC_LIFETIME_RHO,
    PUBLIC_RHO_CAP,
    RHO_CAP,
)
from ..participant.token_rotation import TokenRotation
from ..sdk.credentials import checked_id, split_code
from ..sdk.tls import TlsFiles

Server = Annotated[str, typer.Option(envvar="QIDPFL_SERVER", help="address of the coordinator, https://HOST:PORT")]
Code = Annotated[str | None, typer.Option(help="the enrolment code; other users of this machine can see it")]
CodeFile = Annotated[Path | None, typer.Option(envvar="QIDPFL_CODE_FILE", help="file with the enrolment code")]
Insecure = Annotated[
    bool, typer.Option("--insecure", envvar="QIDPFL_INSECURE", help="allow plain http to another machine")
]
TaskId = Annotated[
    str | None, typer.Option("--task", help="id of the task, to enrol with --client-cert instead of an enrolment code")
]
ClientCert = Annotated[
    Path | None,
    typer.Option(envvar="QIDPFL_CLIENT_CERT", help="certificate of this client in PEM, for mutual TLS"),
]
ClientKey = Annotated[
    Path | None,
    typer.Option(envvar="QIDPFL_CLIENT_KEY", help="its key in PEM  [default: in the file of the certificate]"),
]
ServerCa = Annotated[
    Path | None,
    typer.Option(
        "--server-ca",
        "--ca-file",
        envvar="QIDPFL_SERVER_CA",
        help="CA of the coordinator in PEM  [default: the CAs of the system]",
    ),
]
RotateTokenEvery = Annotated[
    float | None,
    typer.Option(min=0.01, max=8760, help="replace the client's token at the start and then every so many hours"),
]
Moved = Annotated[bool, typer.Option("--moved", help="accept that the coordinator of this task has a new address")]
DataDir = Annotated[
    Path | None, typer.Option(envvar="QIDPFL_DATA_DIR", help="folder of the data sets  [default: download once]")
]
CustomWorkload = Annotated[
    str | None,
    typer.Option("--workload", envvar="QIDPFL_WORKLOAD", help="a custom workload: module:Class or file.py:Class"),
]
AllRecords = Annotated[
    bool,
    typer.Option(
        "--all-records",
        help="train on all records of this machine, not on the shard of a testbed; always so with --workload",
    ),
]
TestbedShard = Annotated[
    bool,
    typer.Option(
        "--testbed-shard",
        help="with --workload: let the task choose the shard of the records, by their labels. For public data only",
    ),
]
JournalPath = Annotated[
    Path, typer.Option("--journal", envvar="QIDPFL_JOURNAL", help="the journal of this data set; keep it safe")
]
Device = Annotated[str, typer.Option(envvar="QIDPFL_DEVICE", help="auto, cpu, cuda, cuda:N or mps")]
PrivacyValue = Annotated[
    str,
    typer.Option(
        envvar="QIDPFL_PRIVACY_VALUE",
        help="worth of one unit of budget (ν); LOW:HIGH draws a value once",
    ),
]
PublicData = Annotated[
    bool,
    typer.Option(
        "--public-data",
        envvar="QIDPFL_PUBLIC_DATA",
        help="the records are public, as in a testbed: the limits of the task hold instead of the client's defaults",
    ),
]
RhoCap = Annotated[
    float | None,
    typer.Option(
        envvar="QIDPFL_RHO_CAP",
        help=f"largest budget in one round; a task can only lower it  [default: {RHO_CAP:g}]",
    ),
]
LifetimeRho = Annotated[
    float | None,
    typer.Option(
        envvar="QIDPFL_LIFETIME_RHO",
        help="largest budget of these records over all tasks; a task can only lower it"
        f"  [default: that of the journal, {LIFETIME_RHO:g} for a new one]",
    ),
]
HistogramRho = Annotated[
    float | None,
    typer.Option(
        envvar="QIDPFL_HISTOGRAM_RHO",
        help=f"largest budget of the label histogram; a task can only lower it  [default: {HISTOGRAM_RHO:g}]",
    ),
]
NoHistogram = Annotated[
    bool,
    typer.Option("--no-histogram", help="send no label histogram; only for tasks that take all clients"),
]
ExactHistogram = Annotated[
    bool, typer.Option("--exact-histogram", help="send the exact label counts: an unprotected release")
]
MinUtility = Annotated[float, typer.Option(help="decline a round with a lower utility (payment minus all costs)")]
AcceptUnproven = Annotated[
    bool,
    typer.Option(
        "--accept-unproven",
        help="take part even if releases guarantee less than they declare, or nothing; turns the lifetime limit off",
    ),
]
CostPerRecord = Annotated[float, typer.Option(help="cost of one record in one round")]
CostPerSecond = Annotated[float, typer.Option(help="cost of one second of training")]
CostPerMebibyte = Annotated[float, typer.Option(help="cost of one mebibyte, sent or received")]
NoSlots = Annotated[
    bool,
    typer.Option(
        "--no-slots", help="send an update as soon as it is ready: the coordinator learns how long the training took"
    ),
]
Patience = Annotated[float, typer.Option(help="seconds to wait during an outage before the client stops")]
FirstContact = Annotated[
    float,
    typer.Option(envvar="QIDPFL_FIRST_CONTACT", help="seconds to wait for the first answer of the coordinator"),
]
UnsafeSeed = Annotated[
    int | None,
    typer.Option(help="UNSAFE, for tests only: take the noise from this seed; it protects nothing"),
]
CommonDraw = Annotated[
    int | None,
    typer.Option(
        "--common-noise",
        min=0,
        metavar="DRAW",
        help="UNSAFE, built-in data only: with --unsafe-seed, the same noise in all tasks, to compare methods;"
        " another number is another draw",
    ),
]


guarded = one_line_errors("qidpfl-client", ClientError, WorkloadError, ImpossibleArgument, ReleaseRefused)


def tls_files(client_cert: Path | None, client_key: Path | None, server_ca: Path | None) -> TlsFiles | None:
    """The files of the three options, if one is given."""
    given = TlsFiles(client_cert, client_key, server_ca)
    return None if given == TlsFiles() else given


def task_and_codes(
    code: str | None, code_file: Path | None, task: str | None, client_cert: Path | None
) -> tuple[str, tuple[str, ...]]:
    """The id of the task, and its enrolment codes; none if the client enrols with its certificate."""
    if task is None:
        codes = enrolment_codes(code, code_file)
        return split_code(codes[0])[0], codes
    if code is not None or code_file is not None:
        raise Misconfigured("an enrolment code names its task: give it, or --task with --client-cert, but not both")
    if client_cert is None:
        raise Misconfigured("--task needs --client-cert: without a certificate a client enrols with a code")
    return checked_id(task, of="task"), ()


def rotation(every_hours: float | None, report: Callable[[str], None]) -> TokenRotation | None:
    """When the client replaces its token; None: never by itself."""
    return None if every_hours is None else TokenRotation(every_s=3600 * every_hours, report=report)


def enrolment_codes(code: str | None, code_file: Path | None) -> tuple[str, ...]:
    """The enrolment code from the option, or the codes from its file, one per line. At least one."""
    if (code is None) == (code_file is None):
        raise Misconfigured("give exactly one of --code and --code-file")
    if code is not None:
        return (code.strip(),)
    assert code_file is not None
    try:
        codes = tuple(code_file.read_text().split())
    except UnicodeDecodeError:
        raise Misconfigured(f"{code_file} does not contain an enrolment code") from None
    if not codes:
        raise Misconfigured(f"the file {code_file} is empty: ask the operator for an enrolment code")
    return codes


class Ceilings(TypedDict):
    """The three limits of an owner; a lifetime limit of None is that of the journal."""

    rho_cap: float
    lifetime_rho: float | None
    histogram_rho: float


def ceilings(
    *,
    rho_cap: float | None,
    lifetime_rho: float | None,
    histogram_rho: float | None,
    no_histogram: bool,
    public_data: bool,
) -> Ceilings:
    """The limits that the options name, else the defaults, else with public data those of the largest preset.

    A budget for no histogram is a contradiction.
    """
    if no_histogram and histogram_rho is not None:
        raise Misconfigured("--no-histogram and --histogram-rho contradict each other")
    cap, lifetime, histogram = RHO_CAP, None, HISTOGRAM_RHO
    if public_data:
        cap, lifetime, histogram = PUBLIC_RHO_CAP, PUBLIC_LIFETIME_RHO, PUBLIC_HISTOGRAM_RHO
    return {
        "rho_cap": cap if rho_cap is None else rho_cap,
        "lifetime_rho": lifetime if lifetime_rho is None else lifetime_rho,
        "histogram_rho": histogram if histogram_rho is None else histogram_rho,
    }


def noise_source(unsafe_seed: int | None) -> NoiseSource:
    """System entropy, or a seed in test mode."""
    return SystemNoise() if unsafe_seed is None else UnsafeSeededNoise(unsafe_seed)


def warn_if_unsafe(unsafe_seed: int | None, common_draw: int | None = None) -> None:
    """Warn if test mode is on. A draw of common noise needs it."""
    if common_draw is not None and unsafe_seed is None:
        raise Misconfigured("--common-noise needs --unsafe-seed: the noise of a draw comes from that seed")
    if unsafe_seed is not None:
        print("qidpfl-client: UNSAFE test mode: the noise comes from a seed and protects nothing", file=sys.stderr)


@guarded
def trace_if_wanted() -> None:
    """Send OpenTelemetry spans if the environment asks for them."""
    if traces_are_wanted():
        try:
            start_tracing("qidpfl-client")
        except TracingUnavailable as error:
            raise Misconfigured(str(error)) from None
