"""The commands of the coordinator."""

import json
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.progress import track
from rich.table import Table

from qidpfl_shared.core.money import MICRO
from qidpfl_shared.protocol.fields import Name
from qidpfl_shared.protocol.messages import TaskSummary
from qidpfl_shared.protocol.tasks import TaskSpec

from . import invariants, logs
from .backup import back_up
from .clock import SystemClock
from .domain import Task
from .errors import CoordinatorError
from .export import TableFormat, read_export, write_export
from .options import Where, located, one_line_errors
from .secret_files import create_private
from .serving import check_tls, ensure_task, opened_store, serve
from .settings import Settings
from .settlement import stop_task
from .store.store import Store
from .store.transaction import Transaction
from .tasks import create_task, save_initial_model, start_task, task_spec
from .views import task_summary, task_view

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help="The QI-DPFL coordinator.")
tasks_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Create, list, show, start and stop tasks.")
app.add_typer(tasks_app, name="tasks")
console = Console()

TaskName = Annotated[str, typer.Argument(metavar="TASK", help="name or id of the task")]
Preset = Annotated[str | None, typer.Option(help="make sure that a task of this preset exists, e.g. digits")]
Overrides = Annotated[
    str, typer.Option(help='JSON to merge into the preset, nested like the spec: \'{"game": {"horizon": 5}}\'')
]


@app.command("serve")
@one_line_errors
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
    preset: Preset = None,
    task: Annotated[str | None, typer.Option(help="the name of that task  [default: the preset's]")] = None,
    overrides: Overrides = "{}",
    exit_when_finished: Annotated[
        bool, typer.Option("--exit-when-finished", help="stop some seconds after all tasks have ended")
    ] = False,
) -> None:
    """Run the coordinator until it is told to stop.

    SIGTERM or Ctrl-C stops it; whatever it has acknowledged also survives a kill.

    With --preset it creates a task unless one of this name exists, whatever became of it, and writes its enrolment code
    to TASK.code in the state folder. All other settings are environment variables: see .env.example.
    """
    settings = where.settings(host=host, port=port, tls_cert=tls_cert, tls_key=tls_key)
    if preset is None and (task is not None or overrides != "{}"):
        raise CoordinatorError("--task and --overrides need a --preset")
    check_tls(settings)
    spec = None if preset is None else task_spec(preset, _json(overrides))
    name = _valid_name(task or preset or "task")
    logs.configure(settings.log_format)
    with opened_store(settings, create=True) as store:
        if preset is not None and spec is not None:
            _ensure(settings, store, name, preset, spec)
        serve(settings, store, exit_when_finished=exit_when_finished)


def _ensure(settings: Settings, store: Store, name: str, preset: str, spec: TaskSpec) -> None:
    # A name may hold slashes.
    path = settings.state_dir / f"{quote(name, safe=':')}.code"
    written = partial(_write_code, path)
    if ensure_task(store, name=name, preset_name=preset, spec=spec, write_down=written):
        shown = path.read_text().strip() if sys.stderr.isatty() else f"written to {path}"
        print(f"task {name}: enrolment code {shown}", file=sys.stderr)


@tasks_app.command("create")
@one_line_errors
@located
def create_command(
    where: Where,
    name: Annotated[str, typer.Argument(help="the name of the new task")],
    preset: Annotated[str, typer.Option(help="the preset to start from, e.g. digits")],
    overrides: Overrides = "{}",
    single_use_codes: Annotated[
        int, typer.Option(help="so many codes for one client each, instead of one for many", min=0, max=10_000)
    ] = 0,
) -> None:
    """Create a task.

    Prints its id, then its enrolment codes: they are shown here and never again.
    """
    spec = task_spec(preset, _json(overrides))
    name = _valid_name(name)
    with opened_store(where.settings(), create=True) as store:
        model = save_initial_model(store.blobs, spec)
        now = SystemClock().now()
        created = store.write(
            lambda tx: create_task(
                tx,
                name=name,
                preset_name=preset,
                spec=spec,
                model=model,
                single_use_codes=single_use_codes,
                now=now,
            )
        )
    print(created.task.task_id)
    for code in created.codes:
        print(code)


@tasks_app.command("list")
@one_line_errors
@located
def list_command(where: Where) -> None:
    """List all tasks, oldest first.

    A table on a terminal; in a pipe id, name, state and rounds between tabs.
    """
    with opened_store(where.settings()) as store:
        _print_tasks(store.read(lambda tx: [task_summary(tx, task) for task in tx.tasks.all()]))


@tasks_app.command("show")
@one_line_errors
@located
def show_command(where: Where, task: TaskName) -> None:
    """Show one task as JSON, with its spec."""
    with opened_store(where.settings()) as store:
        view = store.read(lambda tx: task_view(tx, _task_named(tx, task)))
    print(json.dumps(view.model_dump(mode="json"), indent=2))


@tasks_app.command("start")
@one_line_errors
@located
def start_command(where: Where, task: TaskName) -> None:
    """Select now, without waiting for more.

    A task that already trains stays as it is.
    """
    with opened_store(where.settings()) as store:
        task_id = store.read(lambda tx: _task_named(tx, task)).task_id
        now = SystemClock().now()
        store.write(lambda tx: start_task(tx, task_id, now))
        _print_tasks(store.read(lambda tx: [task_summary(tx, _task_named(tx, task_id))]))


@tasks_app.command("stop")
@one_line_errors
@located
def stop_command(where: Where, task: TaskName) -> None:
    """End a task.

    Its open round is settled if enough updates are there, else voided.
    """
    with opened_store(where.settings()) as store:
        task_id = store.read(lambda tx: _task_named(tx, task)).task_id
        stop_task(store, task_id, None, SystemClock().now())
        _print_tasks(store.read(lambda tx: [task_summary(tx, _task_named(tx, task_id))]))


@app.command("audit")
@one_line_errors
@located
def audit_command(where: Where) -> None:
    """Check every invariant of the store.

    The store may be live or stopped. Prints what is violated and ends with 1, or says how much was checked.
    """
    with opened_store(where.settings()) as store:
        report = invariants.audit(store)
    for line in report.lines():
        print(line)
    if report.violations:
        raise typer.Exit(1)


@app.command("export")
@one_line_errors
@located
def export_command(
    where: Where,
    task: TaskName,
    out: Annotated[Path, typer.Option(help="folder to write to; must be new or empty")],
    table_format: Annotated[TableFormat, typer.Option("--format", help="how tables are written")] = TableFormat.CSV,
    version: Annotated[int | None, typer.Option(help="version of the model  [default: the newest]", min=0)] = None,
    force: Annotated[bool, typer.Option("--force", help="write into a folder that holds files already")] = False,
) -> None:
    """Write a task to files.

    Rounds, clients, budgets, payments and ledgers become tables, the task with its spec JSON, its model safetensors.
    Works on a live store and shows one moment of it. Budgets of a round that is still open are left out. Money is in
    micro-units.
    """
    if not force and out.is_dir() and any(out.iterdir()):
        raise CoordinatorError(f"{out} is not empty; --force writes into it and replaces files of the same names")
    with opened_store(where.settings()) as store:
        task_id = store.read(lambda tx: _task_named(tx, task)).task_id
        export = read_export(store, task_id, version)
    for path in write_export(export, out, table_format):
        print(path)


@app.command("backup")
@one_line_errors
@located
def backup_command(
    where: Where,
    out: Annotated[Path, typer.Option(help="folder to make; must be new or empty")],
    blobs_only: Annotated[
        bool, typer.Option("--blobs-only", help="leave the database out; for PostgreSQL, after a pg_dump")
    ] = False,
    copy: Annotated[
        bool, typer.Option("--copy", help="copy blobs also where a hard link would do (same disk, no extra space)")
    ] = False,
) -> None:
    """Copy the whole state, live or stopped.

    That is the database, the blobs, the tokens and the enrolment codes, as they are at one moment. `audit --state-dir
    OUT` checks the copy, `serve --state-dir OUT` runs on it. It appears under its name only when it is complete.
    """
    settings = where.settings()
    with opened_store(settings) as store:
        made = back_up(settings, store, out, blobs_only=blobs_only, copy=copy, watch=_with_progress)
    database = "database, " if made.database else ""
    print(f"{made.folder}: {database}{made.blobs} blobs, {made.secrets} tokens and codes")
    if made.missing:
        print(f"{made.missing} blobs are gone from the store; `audit` says which")
    if blobs_only:
        print("the database is not in this backup: use pg_dump, and let it run before the blobs are copied")


def _with_progress(blobs: list[str]) -> Iterable[str]:
    return track(blobs, description="blobs", console=console, disable=not console.is_terminal, transient=True)


def _print_tasks(tasks: list[TaskSummary]) -> None:
    if not console.is_terminal:
        for task in tasks:
            print(task.task_id, task.name, task.state, f"{task.settled_rounds}/{task.horizon}", sep="\t")
        return
    table = Table("name", "state", "rounds", "clients", "paid", "reason")
    for task in tasks:
        rounds = f"{task.settled_rounds}/{task.horizon}"
        table.add_row(
            task.name, task.state, rounds, str(task.clients), f"{task.paid_micro / MICRO:.6f}", task.reason or ""
        )
    console.print(table)


def _valid_name(name: str) -> str:
    try:
        return TypeAdapter[str](Name).validate_python(name)
    except ValidationError:
        raise CoordinatorError(f"{name!r} cannot be a name: letters, digits and . _ : / - only") from None


def _task_named(tx: Transaction, name: str) -> Task:
    task = tx.tasks.by_name(name) or tx.tasks.get(name)
    if task is None:
        raise CoordinatorError(f"there is no task {name!r}")
    return task


def _json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CoordinatorError(f"--overrides is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CoordinatorError("--overrides must be a JSON object")
    return value


def _write_code(path: Path, code: str) -> None:
    """Write an enrolment code down; one of a task that was never made is of no use any more."""
    path.unlink(missing_ok=True)
    create_private(path, code)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
