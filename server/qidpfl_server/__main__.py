"""The commands of the coordinator."""

import json
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from qidpfl_shared.core.money import MICRO
from qidpfl_shared.protocol.messages import TaskSummary

from . import invariants, logs
from .clock import SystemClock
from .errors import CoordinatorError
from .serving import ensure_task, opened_store, serve
from .settings import Settings
from .settlement import stop_task
from .store.store import Store
from .store.transaction import Transaction
from .tasks import create_task, save_initial_model, start_task, task_spec
from .views import task_summary

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The QI-DPFL coordinator.")
tasks_app = typer.Typer(no_args_is_help=True, help="Create, list, show, start and stop tasks.")
app.add_typer(tasks_app, name="tasks")
console = Console()

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
StateDir = Annotated[Path | None, typer.Option(help="folder of database, blobs and secrets  [env: QIDPFL_STATE_DIR]")]
StoreUrl = Annotated[str | None, typer.Option(help="sqlite:///file or postgresql://…  [env: QIDPFL_STORE_URL]")]
BlobDir = Annotated[Path | None, typer.Option(help="folder of models and updates  [env: QIDPFL_BLOB_DIR]")]


def one_line_errors(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """End with one readable line instead of a traceback."""

    @wraps(function)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except CoordinatorError as error:
            message = str(error) or error.code.summary
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            message = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        except OSError as error:
            message = f"{error.filename or ''} {error.strerror or error}".strip()
        print(f"qidpfl-server: {message}", file=sys.stderr)
        raise typer.Exit(1)

    return wrapped


def settings_from(**given: Any) -> Settings:
    """The settings of the environment, with what was said on the command line."""
    return Settings(**{name: value for name, value in given.items() if value is not None})


@app.command("serve")
@one_line_errors
def serve_command(
    host: Annotated[str | None, typer.Option(help="address to listen on  [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="port to listen on, 0 for a free one  [default: 8080]")] = None,
    state_dir: StateDir = None,
    store_url: StoreUrl = None,
    blob_dir: BlobDir = None,
    tls_cert: Annotated[Path | None, typer.Option(help="certificate file for https")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="key file for https")] = None,
    preset: Annotated[str | None, typer.Option(help="make sure that a task of this preset exists")] = None,
    task: Annotated[str | None, typer.Option(help="its name  [default: the preset's]")] = None,
    overrides: Annotated[str, typer.Option(help="JSON to merge into the preset")] = "{}",
    exit_when_finished: Annotated[bool, typer.Option(help="stop when all tasks have ended")] = False,
) -> None:
    """Run the coordinator until it is told to stop."""
    settings = settings_from(
        host=host,
        port=port,
        state_dir=state_dir,
        store_url=store_url,
        blob_dir=blob_dir,
        tls_cert=tls_cert,
        tls_key=tls_key,
    )
    logs.configure(settings.log_format)
    with opened_store(settings) as store:
        if preset is not None:
            _ensure(settings, store, task or preset, preset, _json(overrides))
        serve(settings, store, exit_when_finished=exit_when_finished)


def _ensure(settings: Settings, store: Store, name: str, preset: str, overrides: dict[str, Any]) -> None:
    created = ensure_task(store, name=name, preset_name=preset, spec=task_spec(preset, overrides))
    path = settings.state_dir / f"{name}.code"
    if created is not None:
        _write_private(path, created.codes[0])
        shown = created.codes[0] if sys.stderr.isatty() else f"written to {path}"
        print(f"task {name}: enrolment code {shown}", file=sys.stderr)


@tasks_app.command("create")
@one_line_errors
def create_command(
    name: str,
    preset: Annotated[str, typer.Option(help="the preset to start from")],
    overrides: Annotated[str, typer.Option(help="JSON to merge into the preset")] = "{}",
    single_use_codes: Annotated[int, typer.Option(help="so many codes for one client each", min=0)] = 0,
    state_dir: StateDir = None,
    store_url: StoreUrl = None,
    blob_dir: BlobDir = None,
) -> None:
    """Create a task; its enrolment codes are printed once."""
    spec = task_spec(preset, _json(overrides))
    with opened_store(settings_from(state_dir=state_dir, store_url=store_url, blob_dir=blob_dir)) as store:
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
def list_command(state_dir: StateDir = None, store_url: StoreUrl = None, blob_dir: BlobDir = None) -> None:
    """List all tasks."""
    with opened_store(settings_from(state_dir=state_dir, store_url=store_url, blob_dir=blob_dir)) as store:
        _print_tasks(store.read(lambda tx: [task_summary(tx, task) for task in tx.tasks.all()]))


@tasks_app.command("show")
@one_line_errors
def show_command(name: str, state_dir: StateDir = None, store_url: StoreUrl = None, blob_dir: BlobDir = None) -> None:
    """Show one task as JSON, with its spec."""
    with opened_store(settings_from(state_dir=state_dir, store_url=store_url, blob_dir=blob_dir)) as store:
        task = store.read(lambda tx: _task_named(tx, name))
        summary = store.read(lambda tx: task_summary(tx, task))
    print(json.dumps(summary.model_dump(mode="json") | {"spec": task.spec.model_dump(mode="json")}, indent=2))


@tasks_app.command("start")
@one_line_errors
def start_command(name: str, state_dir: StateDir = None, store_url: StoreUrl = None, blob_dir: BlobDir = None) -> None:
    """Select now, without waiting for more clients."""
    with opened_store(settings_from(state_dir=state_dir, store_url=store_url, blob_dir=blob_dir)) as store:
        task = store.read(lambda tx: _task_named(tx, name))
        now = SystemClock().now()
        store.write(lambda tx: start_task(tx, task.task_id, now))


@tasks_app.command("stop")
@one_line_errors
def stop_command(name: str, state_dir: StateDir = None, store_url: StoreUrl = None, blob_dir: BlobDir = None) -> None:
    """Settle the open round if it can be, then end the task."""
    with opened_store(settings_from(state_dir=state_dir, store_url=store_url, blob_dir=blob_dir)) as store:
        task = store.read(lambda tx: _task_named(tx, name))
        stop_task(store, task.task_id, None, SystemClock().now())


@app.command("audit")
@one_line_errors
def audit_command(state_dir: StateDir = None, store_url: StoreUrl = None, blob_dir: BlobDir = None) -> None:
    """Check every invariant of the store, live or stopped; ends with 1 if one is broken."""
    with opened_store(settings_from(state_dir=state_dir, store_url=store_url, blob_dir=blob_dir)) as store:
        report = invariants.audit(store)
    for line in report.lines():
        print(line)
    if report.violations:
        raise typer.Exit(1)


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


def _task_named(tx: Transaction, name: str) -> Any:
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


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(f"{text}\n")


def main() -> None:
    app()


if __name__ == "__main__":
    main()
