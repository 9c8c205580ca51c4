"""The command `doctor`: whether this machine can take part, and what to do if it cannot."""

import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Annotated

import typer

from qidpfl_shared.diagnosis import Check, CheckState, disk_check, python_check, report, torch_check, versions_check
from qidpfl_shared.workloads.datasets.folder import default_folder

from ..errors import ClientError, NoTrustedConnection, Unreachable
from ..journal.journal import DEFAULT_PATH, Journal
from ..sdk.health import ask_health
from ..sdk.tls import TlsFiles
from . import options
from .options import guarded

# Deadlines are relative, so a clock may be wrong by minutes. Certificates and logs need about the right time.
_WRONG_CLOCK_S = 60.0


@guarded
def doctor_command(
    server: Annotated[
        str | None, typer.Option(envvar="QIDPFL_SERVER", help="also check the connection to this coordinator")
    ] = None,
    server_ca: options.ServerCa = None,
    client_cert: options.ClientCert = None,
    client_key: options.ClientKey = None,
    insecure: options.Insecure = False,
    journal: options.JournalPath = DEFAULT_PATH,
    data_dir: options.DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Check this machine: Python, packages, torch, disk, journal, and with --server also port, TLS and time.

    It changes nothing, and sends no token. The exit code is 1 if something is wrong.
    """
    tls = options.tls_files(client_cert, client_key, server_ca)
    if not report(_checks(server, tls, insecure, journal, data_dir), as_json=as_json):
        raise typer.Exit(1)


def _checks(
    server: str | None, tls: TlsFiles | None, insecure: bool, journal: Path, data_dir: Path | None
) -> Iterator[Check]:
    yield python_check()
    yield versions_check("qidpfl-shared", "qidpfl-client")
    yield torch_check(extra="qidpfl-client[train]", needed=True)
    yield disk_check(journal.parent)
    yield _data_check(data_dir)
    yield _journal_check(journal)
    if server is None:
        yield Check("coordinator", CheckState.NOTE, "not checked", "name it: --server https://HOST:PORT")
    else:
        yield from _connection_checks(server, tls, insecure)


def _data_check(data_dir: Path | None) -> Check:
    if data_dir is not None and not data_dir.is_dir():
        return Check("data", CheckState.WRONG, f"there is no folder {data_dir}", "create it, or correct --data-dir")
    return Check("data", CheckState.GOOD, str(data_dir or f"downloads go to {default_folder()}"))


def _journal_check(journal: Path) -> Check:
    if not journal.exists():
        return Check("journal", CheckState.GOOD, f"no {journal} yet: run creates it")
    try:
        with Journal(journal, read_only=True) as opened:
            spent = opened.account().spent_rho
    except ClientError as error:
        return Check("journal", CheckState.WRONG, str(error), "restore the newest copy of the file")
    return Check("journal", CheckState.GOOD, f"{journal} opens, spent rho {spent:.4g}")


def _connection_checks(server: str, tls: TlsFiles | None, insecure: bool) -> Iterator[Check]:
    try:
        answer = ask_health(server, insecure=insecure, tls=tls)
    except Unreachable as error:
        remedy = "" if isinstance(error, NoTrustedConnection) else "is it running, and is the port open?"
        yield Check("coordinator", CheckState.WRONG, str(error), remedy)
        return
    except ClientError as error:
        yield Check("coordinator", CheckState.WRONG, str(error), "correct --server, or the options for TLS")
        return
    if answer.status != 200:
        yield Check("coordinator", CheckState.WRONG, f"{server} answers {answer.status}", "is this a coordinator?")
        return
    encrypted = "with TLS" if server.startswith("https://") else "without TLS"
    yield Check("coordinator", CheckState.GOOD, f"{server} answers, {encrypted}")
    yield _time_check(answer.date)


def _time_check(date: str | None) -> Check:
    if date is None:
        return Check("time", CheckState.NOTE, "the coordinator does not tell its time", "")
    apart = abs(time.time() - parsedate_to_datetime(date).timestamp())
    found = f"{apart:.0f} s from that of the coordinator"
    if apart > _WRONG_CLOCK_S:
        return Check("time", CheckState.WRONG, found, "set the clocks: certificates and logs depend on them")
    return Check("time", CheckState.GOOD, found)
