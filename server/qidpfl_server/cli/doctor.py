"""The command `doctor`: whether this machine can run a coordinator, and what to do if it cannot."""

import datetime
import socket
import time
from collections.abc import Iterator
from typing import Annotated

import typer
from cryptography import x509

from qidpfl_shared.diagnosis import Check, CheckState, disk_check, python_check, report, torch_check, versions_check

from ..errors import CoordinatorError
from ..ops.open_store import check_bucket, opened_store
from ..settings import Settings
from .display.ports import cannot_listen, open_without_tls
from .display.task_lists import AsJson
from .options import Where, guarded, located
from .tls import check_tls

_SOON = datetime.timedelta(days=14)


@guarded
@located
def doctor_command(
    where: Where,
    host: Annotated[str | None, typer.Option(help="address to listen on  [env: QIDPFL_HOST]")] = None,
    port: Annotated[int | None, typer.Option(help="port to listen on  [env: QIDPFL_PORT]")] = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine: Python, packages, torch, disk, time, port, TLS and the store. Changes nothing.

    The exit code is 1 if something is wrong.
    """
    settings = where.settings(host=host, port=port)
    if not report(_checks(settings), as_json=as_json):
        raise typer.Exit(1)


def _checks(settings: Settings) -> Iterator[Check]:
    yield python_check()
    yield versions_check("qidpfl-shared", "qidpfl-server")
    yield torch_check(extra="qidpfl-server[eval]", needed=False)
    yield disk_check(settings.state_dir)
    yield _time_check()
    yield _port_check(settings)
    yield _tls_check(settings)
    yield _store_check(settings)
    yield _blobs_check(settings)


def _time_check() -> Check:
    now = datetime.datetime.now(datetime.UTC)
    found = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if now.year < 2025:
        return Check("time", CheckState.WRONG, found, "set the clock: deadlines and certificates depend on it")
    return Check("time", CheckState.GOOD, found)


def _port_check(settings: Settings) -> Check:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        with socket.socket(family) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((settings.host, settings.port))
    except OSError as error:
        finding, _, remedy = cannot_listen(settings.host, settings.port, error).partition(": ")
        return Check("port", CheckState.WRONG, finding, remedy)
    return Check("port", CheckState.GOOD, f"{settings.host}:{settings.port} is free")


def _tls_check(settings: Settings) -> Check:
    try:
        check_tls(settings)
    except CoordinatorError as error:
        return Check("tls", CheckState.WRONG, str(error), "correct QIDPFL_TLS_CERT and QIDPFL_TLS_KEY")
    if settings.tls_cert is None:
        warning = open_without_tls(settings)
        if warning is None:
            return Check("tls", CheckState.GOOD, f"none; {settings.host} is this machine, or a proxy has it")
        finding, _, remedy = warning.partition(". ")
        return Check("tls", CheckState.NOTE, finding, remedy)
    until = x509.load_pem_x509_certificate(settings.tls_cert.read_bytes()).not_valid_after_utc
    left = until - datetime.datetime.now(datetime.UTC)
    found = f"{settings.tls_cert} is valid until {until:%Y-%m-%d}"
    if left < datetime.timedelta():
        return Check("tls", CheckState.WRONG, f"{settings.tls_cert} has expired on {until:%Y-%m-%d}", "renew it")
    return (
        Check("tls", CheckState.NOTE, found, "renew it soon, then send SIGHUP")
        if left < _SOON
        else Check("tls", CheckState.GOOD, found)
    )


def _store_check(settings: Settings) -> Check:
    try:
        with opened_store(settings) as store:
            count = len(store.read(lambda tx: tx.tasks.all()))
    except CoordinatorError as error:
        if settings.store_url is None and not (settings.state_dir / "coordinator.db").exists():
            return Check("store", CheckState.GOOD, f"none in {settings.state_dir} yet: serve creates it")
        return Check(
            "store", CheckState.WRONG, str(error), "qidpfl-server audit tells more; docs/operations.md: restore"
        )
    return Check("store", CheckState.GOOD, f"{settings.database_url.rpartition('@')[2]} opens, {count} tasks")


def _blobs_check(settings: Settings) -> Check:
    """Asks a bucket without retries, and writes nothing to it."""
    if settings.blobs is None:
        return Check("blobs", CheckState.GOOD, f"the folder {settings.blob_folder}")
    started = time.monotonic()
    try:
        known = check_bucket(settings.blobs)
    except CoordinatorError as error:
        return Check("blobs", CheckState.WRONG, str(error), "docs/object-store.md: address, credentials, rights")
    found = f"{settings.blobs} answers in {1000 * (time.monotonic() - started):.0f} ms"
    return Check("blobs", CheckState.GOOD, found if known else f"{found}; empty, or no such bucket: serve fills it")
