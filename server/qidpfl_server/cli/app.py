"""The commands of the server: serve, audit, export and backup; `tasks` and `tokens` have modules of their own."""

import os
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer
from rich.console import Console

from qidpfl_shared.command_line import show_version
from qidpfl_shared.core.aggregation import Parameters
from qidpfl_shared.durable_files import fsync_dir
from qidpfl_shared.protocol.compatibility import PROTOCOL_VERSION
from qidpfl_shared.protocol.signatures import ChainPosition
from qidpfl_shared.protocol.task_spec import TaskSpec

from .. import logs
from ..errors import CoordinatorError
from ..identifiers import hash_secret, new_id
from ..ops.backup import back_up
from ..ops.evidence import kept_head, shown
from ..ops.export import read_export, write_export
from ..ops.open_store import opened_store
from ..ops.signing import load_key
from ..ops.tables import TableFormat
from ..ops.tokens import create_private, read_shared_code
from ..plugins.rules import load_rules
from ..plugins.workloads import find_workload
from ..settings import Settings
from ..store.store import Store
from .display.guidance import Guidance
from .doctor import doctor_command
from .keys import keys_app
from .options import Rules, Where, guarded, located
from .planning.commands import calibrate_command, plan_command
from .serve import ensure_task, serve
from .task_files import checked_models, held_out_files, note_unused_files
from .task_options import Clients, Rounds, Wanted, workload_of
from .tasks import Overrides, TaskName, parsed_overrides, task_named, tasks_app, valid_name
from .tls import ClientCertificates, check_tls
from .tokens import tokens_app
from .tracking import ExportTarget, Mlflow, Tensorboard, To, Traces, export_to_tracker

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The QI-DPFL coordinator.")
app.add_typer(tasks_app, name="tasks")
app.add_typer(tokens_app, name="tokens")
app.add_typer(keys_app, name="keys")
app.command("doctor")(doctor_command)
app.command("calibrate")(calibrate_command)
app.command("plan")(plan_command)
console = Console()

Preset = Annotated[str | None, typer.Option(help="create a task of this preset if it does not exist, e.g. digits")]


@app.callback()
def main_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=show_version("qidpfl-server", PROTOCOL_VERSION),
            help="print the version",
        ),
    ] = False,
) -> None:
    """The QI-DPFL coordinator."""


@app.command("serve")
@guarded
@located
def serve_command(
    where: Where,
    host: Annotated[
        str | None, typer.Option(help="address to listen on  [env: QIDPFL_HOST; default: 127.0.0.1]")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="port to listen on, 0 for a free one  [env: QIDPFL_PORT; default: 8080]")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="certificate file for https  [env: QIDPFL_TLS_CERT]")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="key file for https  [env: QIDPFL_TLS_KEY]")] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(help="CA file of the clients' certificates, for mutual TLS  [env: QIDPFL_TLS_CLIENT_CA]"),
    ] = None,
    tls_client_certs: Annotated[
        ClientCertificates | None,
        typer.Option(help="whether every connection needs a certificate  [env: QIDPFL_TLS_CLIENT_CERTS]"),
    ] = None,
    certificate_tasks: Annotated[
        str | None,
        typer.Option(
            help="names of tasks, with commas, or *: there a certificate replaces the enrolment code"
            "  [env: QIDPFL_CERTIFICATE_TASKS]"
        ),
    ] = None,
    preset: Preset = None,
    task: Annotated[str | None, typer.Option(help="the name of that task  [default: the preset's]")] = None,
    clients: Clients = None,
    rounds: Rounds = None,
    overrides: Overrides = "{}",
    workload: Annotated[
        list[str] | None,
        typer.Option(help="module:Class or file.py:Class of a custom workload to evaluate with; repeatable"),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="file.py:Class of an own model of the owners, to evaluate with; repeatable"),
    ] = None,
    held_out: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FILE: evaluate tasks of own data of this name on a file of yours; repeatable"),
    ] = None,
    rules: Rules = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="folder of data sets for the evaluation  [env: QIDPFL_DATA_DIR; default: ~/.cache/qidpfl]"),
    ] = None,
    code_dir: Annotated[
        Path | None,
        typer.Option(help="folder of the enrolment code  [env: QIDPFL_CODE_DIR; default: the state folder]"),
    ] = None,
    shared_code: Annotated[
        bool,
        typer.Option("--shared-code", help="one enrolment code for all clients of a testbed, not single-use codes"),
    ] = False,
    results_dir: Annotated[
        Path | None,
        typer.Option(help="export every task to a folder in this one when it ends  [env: QIDPFL_RESULTS_DIR]"),
    ] = None,
    tensorboard: Tensorboard = None,
    mlflow: Mlflow = None,
    traces: Traces = None,
    exit_when_finished: Annotated[
        bool, typer.Option("--exit-when-finished", help="stop a few seconds after all tasks have ended")
    ] = False,
) -> None:
    """Run the coordinator.

    SIGTERM or Ctrl-C stops it. Everything that it has acknowledged also survives a kill. SIGHUP reads the token files
    and the certificate again.

    With --preset it creates a task, unless a task of this name exists in any state, and writes its enrolment codes to
    TASK.code in the state folder or in --code-dir, one per line. All other settings are environment variables: see
    .env.example.
    """
    settings = where.settings(
        host=host,
        port=port,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_client_ca=tls_client_ca,
        tls_client_certs=None if tls_client_certs is None else tls_client_certs.value,
        certificate_tasks=certificate_tasks,
        data_dir=data_dir,
        code_dir=code_dir,
        results_dir=results_dir,
        tensorboard=tensorboard,
        mlflow=mlflow,
        traces=traces,
    )
    # A script may fill the option from an empty variable.
    overrides = overrides or "{}"
    if preset is None and (task is not None or overrides != "{}" or clients is not None or rounds is not None):
        raise CoordinatorError("--task, --clients, --rounds and --overrides need a --preset")
    check_tls(settings)
    registry = load_rules(rules or [])
    custom_workloads = workload or []
    for own in custom_workloads:
        find_workload(own, settings.data_dir)
    name = valid_name(task or preset or "task")
    wanted = None
    if preset is not None:
        changes, own_workload = parsed_overrides(overrides), workload_of(preset, custom_workloads)
        asked = Wanted(preset=preset, overrides=changes, clients=clients, rounds=rounds, workload=own_workload)
        wanted = asked.task(registry, settings.data_dir)
    models, files = checked_models(model or []), held_out_files(held_out or [])
    logs.configure(settings.log_format)
    with opened_store(settings, create=True) as store:
        note_unused_files(store, files)

        def prepare() -> Guidance | None:
            if preset is None or wanted is None:
                return None
            return _ensure(settings, store, name, asked, wanted, shared_code=shared_code)

        serve(
            settings,
            store,
            prepare=prepare,
            custom_workloads=custom_workloads,
            models=models,
            held_out=files,
            rules=registry,
            exit_when_finished=exit_when_finished,
        )


def _ensure(
    settings: Settings,
    store: Store,
    name: str,
    asked: Wanted,
    wanted: tuple[TaskSpec, Parameters | None],
    *,
    shared_code: bool = False,
) -> Guidance:
    given = settings.shared_code
    # A name may contain slashes.
    path = given or settings.code_folder / f"{quote(name, safe=':')}.code"
    if given is None:
        path.parent.mkdir(parents=True, exist_ok=True)
    # No task name contains a tilde, so these files belong to this task only.
    aside = path.with_name(f"{path.name}~{new_id()}")
    made = ensure_task(
        store,
        name=name,
        preset_name=asked.preset,
        spec=wanted[0],
        start=wanted[1],
        write_down=partial(create_private, aside),
        shared_code=shared_code,
        code=None if given is None else read_shared_code(given),
    )
    for written in path.parent.glob(f"{path.name}~*") if given is None else ():
        _keep_if_valid(store, name, written, path)
    if made and given is None:
        kind = "enrolment code" if shared_code else "single-use enrolment codes"
        shown = path.read_text().strip() if sys.stderr.isatty() and shared_code else f"written to {path}"
        print(f"task {name}: {kind} {shown}", file=sys.stderr)
    return Guidance(
        task=store.read(lambda tx: task_named(tx, name)),
        asked=wanted[0],
        code_file=path,
        created=made,
        workload=asked.workload,
        begin_anew=settings.begin_anew,
    )


@app.command("audit")
@guarded
@located
def audit_command(
    where: Where,
    rules: Rules = None,
    head: Annotated[
        list[str] | None,
        typer.Option(help="a head kept elsewhere, TASK_ID=SEQUENCE:HASH or the proof.json of an export; repeatable"),
    ] = None,
    public_key: Annotated[
        str | None,
        typer.Option(help="a public key of the coordinator, kept elsewhere  [default: that of the signing key's file]"),
    ] = None,
) -> None:
    """Check every invariant of the store.

    The store may be live or stopped. Prints the violations and the number of checks; the exit code is 1 if there are
    violations. With --rules it also checks tasks with custom rules against these. Only with --head it can find that the
    holder of the signing key has cut off or rewritten a chain.
    """
    from ..audit import audit

    registry = load_rules(rules or [])
    kept = [kept_head(text) for text in head or []]
    settings = where.settings()
    own = load_key(settings.signing_key_file)
    with opened_store(settings) as store:
        report = audit(store, registry, kept=kept, public_key=public_key or (None if own is None else own.public_key))
    for line in report.lines():
        print(line)
    if report.violations:
        raise typer.Exit(1)


@app.command("export")
@guarded
@located
def export_command(
    where: Where,
    task: TaskName,
    out: Annotated[
        str, typer.Option(help="folder to write to; must be new or empty. With --to mlflow: its tracking URI")
    ],
    to: To = ExportTarget.FILES,
    table_format: Annotated[TableFormat, typer.Option("--format", help="format of the tables")] = TableFormat.CSV,
    version: Annotated[int | None, typer.Option(help="version of the model  [default: the newest]", min=0)] = None,
    force: Annotated[bool, typer.Option("--force", help="write into a folder that is not empty")] = False,
) -> None:
    """Write a task to files.

    Rounds, clients, budgets, payments and ledgers are written as tables, the task and its spec as JSON, the model as
    safetensors. The store may be live; the files show one moment. Budgets of a round that is still open are left out.
    Money is in micro-units.

    With --to tensorboard or mlflow it writes rewards, budgets, payments, epsilon, accuracy and loss of the settled
    rounds instead. A repeat writes only what is missing there.
    """
    if to is not ExportTarget.FILES:
        export_to_tracker(where, task, to, out)
        return
    folder = Path(out)
    if not force and folder.is_dir() and any(folder.iterdir()):
        raise CoordinatorError(f"{out} is not empty; --force writes into it and replaces files of the same names")
    with opened_store(where.settings()) as store:
        task_id = store.read(lambda tx: task_named(tx, task)).task_id
        export = read_export(store, task_id, version)
    for path in write_export(export, folder, table_format):
        print(path)
    if (newest := export.task["chain"]) is not None:
        print(f"head {shown(ChainPosition(**newest))}")


@app.command("backup")
@guarded
@located
def backup_command(
    where: Where,
    out: Annotated[Path, typer.Option(help="folder to create; must be new or empty")],
    blobs_only: Annotated[
        bool, typer.Option("--blobs-only", help="leave the database out; for PostgreSQL, after a pg_dump")
    ] = False,
    copy: Annotated[
        bool, typer.Option("--copy", help="copy blobs even if hard links are possible (same disk, no extra space)")
    ] = False,
) -> None:
    """Copy the whole state, live or stopped.

    The backup contains the database, the blobs, the tokens and the enrolment codes of one moment. `audit --state-dir
    OUT` checks it, `serve --state-dir OUT` runs on it. The folder gets its name only when the backup is complete.
    """
    settings = where.settings()
    with opened_store(settings) as store:
        made = back_up(settings, store, out, blobs_only=blobs_only, copy=copy, watch=_with_progress)
    database = "database, " if made.database else ""
    print(f"{made.folder}: {database}{made.blobs} blobs, {made.secrets} tokens, codes and keys")
    if made.missing:
        print(f"{made.missing} blobs are missing from the store; `audit` lists them")
    if blobs_only:
        print("the database is not in this backup: run pg_dump before the blobs are copied")


def _with_progress(blobs: list[str]) -> Iterable[str]:
    from rich.progress import track

    return track(blobs, description="blobs", console=console, disable=not console.is_terminal, transient=True)


def _keep_if_valid(store: Store, name: str, written: Path, path: Path) -> None:
    """Rename the file of a code to its final name if the code belongs to the task; else delete it.

    Several servers may do this at the same time, and one may have been killed before it did.
    """
    try:
        code = hash_secret(written.read_text().partition("\n")[0].strip())
        task = store.read(lambda tx: tx.tasks.by_name(name))
        if task is not None and store.read(lambda tx: tx.tasks.task_of_code(code)) == task.task_id:
            os.replace(written, path)
            fsync_dir(path.parent)
        else:
            written.unlink()
    except FileNotFoundError:
        # Another server has just done the same.
        pass
