"""The command `conform`: whether a client, or a coordinator, keeps to the protocol."""

import json
import sys
from enum import StrEnum
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.table import Table

from qidpfl_shared.command_line import output_width

from ..api import connect
from ..conformance.report import ConformanceReport
from ..errors import Misconfigured
from . import options
from .options import guarded


class PlayedRole(StrEnum):
    """What the kit plays."""

    CLIENT = "client"
    COORDINATOR = "coordinator"


@guarded
def conform_command(
    url: Annotated[
        str,
        typer.Option(help="--play client: address of the coordinator to check; --play coordinator: where to listen"),
    ] = "http://127.0.0.1:0",
    play: Annotated[
        PlayedRole,
        typer.Option(help="client: check the coordinator at --url; coordinator: check a client that comes to --url"),
    ] = PlayedRole.CLIENT,
    code: options.Code = None,
    code_file: options.CodeFile = None,
    clients: Annotated[
        int | None,
        typer.Option(min=2, max=1000, help="--play client: how many  [default: as many as the task expects]"),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            help="--play coordinator: command that starts the client, once for each task; {url}, {code}, {code_file}"
            " and {folder} are replaced, and standard input has the code  [default: you start it]"
        ),
    ] = None,
    task: Annotated[
        list[str] | None, typer.Option(help="--play coordinator: only this task of the kit; may be repeated")
    ] = None,
    wait: Annotated[float, typer.Option(min=1, help="longest wait for the other side, in seconds")] = 60.0,
    server_ca: options.ServerCa = None,
    insecure: options.Insecure = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Check a coordinator (--play client) or a client (--play coordinator) against the protocol, with live requests.

    Prints what holds, what fails and what was not checked. The exit code is 0 if nothing fails. Use test records: the
    checks of a client spend all of its lifetime budget.
    """
    if play is PlayedRole.CLIENT:
        report = _check_coordinator(url, code, code_file, clients, wait, server_ca, insecure=insecure)
    else:
        # Scipy takes a second to load: --help does not need it.
        from ..conformance.play_coordinator import play_coordinator

        host, port = _listening_address(url)
        report = play_coordinator(host=host, port=port, tasks=task or (), run=run, wait_s=wait, say=_say)
    _show(report, as_json=as_json)
    if not report.passed:
        raise typer.Exit(1)


def _check_coordinator(
    url: str,
    code: str | None,
    code_file: options.CodeFile,
    clients: int | None,
    wait_s: float,
    server_ca: options.ServerCa,
    *,
    insecure: bool,
) -> ConformanceReport:
    from ..conformance.play_client import play_client

    codes = options.enrolment_codes(code, code_file)
    with connect(url, insecure=insecure, tls=options.tls_files(None, None, server_ca)) as http:
        return play_client(http, codes=codes, clients=clients, wait_s=wait_s, say=_say)


def _listening_address(url: str) -> tuple[str, int]:
    """Host and port of an address to listen at."""
    try:
        address = urlsplit(url)
        port = address.port
    except ValueError:
        address, port = urlsplit(""), None
    if address.scheme != "http" or not address.hostname:
        raise Misconfigured("--play coordinator listens at http://HOST:PORT; port 0 is any free port")
    return address.hostname, port or 0


def _say(line: str) -> None:
    """Standard output has the report only."""
    print(line, file=sys.stderr, flush=True)


def _show(report: ConformanceReport, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(report.as_json(), indent=1))
        return
    table = Table("verdict", "check", "seen", box=None)
    for finding in report.findings:
        table.add_row(finding.verdict.value.replace("_", " "), finding.check, finding.detail)
    Console(width=output_width(), markup=False, highlight=False).print(table)
    print(report.summary)
