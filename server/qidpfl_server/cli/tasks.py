"""The commands under `tasks`: create, list, show, start, pause, resume, stop and delete; and enrolment codes."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError

from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol.fields import Name
from qidpfl_shared.protocol.messages import TaskSummary, TaskView
from qidpfl_shared.protocol.operators import CreateCodes

from ..domain import Task
from ..errors import CoordinatorError
from ..ops.model_files import read_model_file
from ..ops.open_store import opened_store
from ..plugins.rules import load_rules
from ..service.controls import create_codes, enrolment_codes, pause_task, revoke_code
from ..service.deletion import delete_task
from ..service.evaluation import Evaluators
from ..service.progress.results import TaskResults, task_results
from ..service.progress.waiting import Waiting, waiting_for
from ..service.selection import open_window
from ..service.tasks import create_task, resume_task, save_initial_model, start_task, stop_task
from ..service.views import task_summary, task_view
from ..store.transaction import Transaction
from .display.task_lists import AsJson, print_json, print_task, print_tasks
from .options import Rules, Where, guarded, located
from .task_files import init_command, planned_from_file, say_how_to_serve
from .task_options import Clients, Rounds, Wanted

tasks_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Create, list, show, start, pause, resume, stop and delete tasks."
)

TaskName = Annotated[str, typer.Argument(metavar="TASK", help="name or id of the task")]
Overrides = Annotated[
    str,
    typer.Option(help='JSON to merge into the preset, nested like the spec: \'{"game": {"horizon": 5}}\', or @FILE'),
]


@tasks_app.command("create")
@guarded
@located
def create_command(
    where: Where,
    name: Annotated[str, typer.Argument(help="the name of the new task")],
    preset: Annotated[
        str | None, typer.Option(help="the preset to start from: e.g. digits, or own for a workload of your own")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="instead of a preset: a task file for own data, which `tasks init` writes")
    ] = None,
    clients: Clients = None,
    rounds: Rounds = None,
    overrides: Overrides = "{}",
    workload: Annotated[
        str | None,
        typer.Option(
            help="module:Class or file.py:Class of a custom workload, which sets labels, convexity and layout"
        ),
    ] = None,
    rules: Rules = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="the model to start from, FILE.safetensors or FILE.f32  [default: a new one];"
            " with --file also the owners' own model, FILE.py:Class"
        ),
    ] = None,
    held_out: Annotated[
        Path | None, typer.Option(help="with --file: check this file for `serve --held-out`; it is not stored")
    ] = None,
    single_use_codes: Annotated[
        int | None,
        typer.Option(
            help="number of codes for one client each, 0 for one shared code  [default: one per expected client]",
            min=0,
            max=10_000,
        ),
    ] = None,
) -> None:
    """Create a task.

    Prints its id, then its enrolment codes. The codes cannot be shown again later.
    """
    if (preset is None) == (file is None):
        raise CoordinatorError("give exactly one of --preset and --file")
    settings = where.settings()
    registry = load_rules(rules or [])
    name = valid_name(name)
    if file is not None:
        if workload is not None or overrides != "{}" or clients is not None or rounds is not None:
            raise CoordinatorError(
                "a task file says everything itself: leave --workload, --overrides, --clients and --rounds out"
            )
        spec, parameters = planned_from_file(file, model, held_out, registry)
    else:
        assert preset is not None
        if held_out is not None:
            raise CoordinatorError("--held-out needs --file: other tasks are evaluated on their workload's records")
        changes = parsed_overrides(overrides)
        wanted = Wanted(preset=preset, overrides=changes, clients=clients, rounds=rounds, workload=workload)
        spec, parameters = wanted.task(registry, settings.data_dir)
        if model is not None:
            parameters = read_model_file(Path(model), spec)
    with opened_store(settings, create=True) as store:
        initial = save_initial_model(store.blobs, spec, parameters)
        now = store.now()
        created = store.write(
            lambda tx: create_task(
                tx,
                name=name,
                preset_name=preset,
                spec=spec,
                model=initial,
                single_use_codes=single_use_codes,
                now=now,
            )
        )
    print(created.task.task_id)
    for code in created.codes:
        print(code)
    if file is not None:
        say_how_to_serve(spec, model, held_out)
        return
    named = () if workload is None else (workload,)
    if (obstacle := Evaluators(data_dir=settings.data_dir, custom=named).obstacle(spec)) is not None:
        print(f"note: its rounds cannot be evaluated from here: {obstacle}", file=sys.stderr)
    elif workload is not None:
        print(f"note: serve --workload {workload} evaluates its rounds", file=sys.stderr)
    for path in registry.files_of(spec):
        print(f"note: serve --rules {path} runs it", file=sys.stderr)


tasks_app.command("init")(init_command)


@tasks_app.command("list")
@guarded
@located
def list_command(
    where: Where,
    deleted: Annotated[
        bool, typer.Option("--deleted", help="the tombstones of deleted tasks instead, as JSON")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List all tasks, oldest first, with accuracy, money and epsilon.

    On a terminal a table; else id, name, state and rounds, separated by tabs; or JSON.
    """
    with opened_store(where.settings()) as store:
        if deleted:
            stones = store.read(lambda tx: tx.tombstones.all())
            print(json.dumps([stone.model_dump(mode="json") for stone in stones], indent=2))
            return
        tasks = store.read(
            lambda tx: [(task_summary(tx, task), task_results(tx, task)) for task in tx.tasks.all()], snapshot=True
        )
    print_tasks(tasks, as_json=as_json)


@tasks_app.command("show")
@guarded
@located
def show_command(where: Where, task: TaskName, as_json: AsJson = False) -> None:
    """Show one task: what it waits for, accuracy, money, epsilon, and the verdicts of the noise audit.

    In a pipe, or with --json, as JSON with its spec and the head of its chain.
    """

    def read(tx: Transaction) -> tuple[TaskView, TaskResults, Waiting | None]:
        known = task_named(tx, task)
        return task_view(tx, known), task_results(tx, known), waiting_for(tx, known, store.now())

    with opened_store(where.settings()) as store:
        view, results, waiting = store.read(read, snapshot=True)
    print_task(view, results, waiting, as_json=as_json)


@tasks_app.command("start")
@guarded
@located
def start_command(
    where: Where,
    task: TaskName,
    rules: Rules = None,
    window: Annotated[bool, typer.Option("--window", help="only begin the enrolment window now")] = False,
) -> None:
    """Select clients now, without waiting for more.

    A task that is already training does not change. With --window the enrolment window begins now, instead of with the
    first stored profile.
    """
    registry = load_rules(rules or [])
    with opened_store(where.settings()) as store:
        task_id = store.read(lambda tx: task_named(tx, task)).task_id
        now = store.now()
        store.write(lambda tx: open_window(tx, task_id, now) if window else start_task(tx, task_id, now, registry))
        print_tasks([store.read(lambda tx: _listed(tx, task_id))], as_json=False)


@tasks_app.command("resume")
@guarded
@located
def resume_command(where: Where, task: TaskName, rules: Rules = None) -> None:
    """Continue a task that is paused, or that failed with step_failed or state_damaged.

    After a failure first remove the cause, which the log names. Clients that have ended must be started again.
    """
    registry = load_rules(rules or [])
    with opened_store(where.settings()) as store:
        task_id = store.read(lambda tx: task_named(tx, task)).task_id
        now = store.now()
        store.write(lambda tx: resume_task(tx, task_id, now, registry))
        print_tasks([store.read(lambda tx: _listed(tx, task_id))], as_json=False)


@tasks_app.command("pause")
@guarded
@located
def pause_command(where: Where, task: TaskName) -> None:
    """Open no new round of a task until it is resumed.

    An open round goes on to its end.
    """
    with opened_store(where.settings()) as store:
        task_id = store.read(lambda tx: task_named(tx, task)).task_id
        now = store.now()
        store.write(lambda tx: pause_task(tx, task_id, now))
        print_tasks([store.read(lambda tx: _listed(tx, task_id))], as_json=False)


@tasks_app.command("codes")
@guarded
@located
def codes_command(
    where: Where,
    task: TaskName,
    new: Annotated[int, typer.Option("--new", min=0, max=1000, help="make so many codes and print them, once")] = 0,
    shared: Annotated[bool, typer.Option("--shared", help="with --new: each code is for many clients")] = False,
    revoke: Annotated[str | None, typer.Option("--revoke", help="revoke the code with this id")] = None,
    as_json: AsJson = False,
) -> None:
    """List the enrolment codes of a task: id, whether it is single-use, the client that used it, and its revocation.

    The codes themselves are not stored and cannot be listed.
    """
    with opened_store(where.settings()) as store:
        task_id = store.read(lambda tx: task_named(tx, task)).task_id
        now = store.now()
        if revoke is not None:
            store.write(lambda tx: revoke_code(tx, task_id, revoke, now))
        if new:
            request = CreateCodes(count=new, single_use=not shared)
            made = store.write(lambda tx: create_codes(tx, task_id, request, now)).enrolment_codes
            print_json(list(made)) if as_json else print("\n".join(made))
            return
        listed = store.read(lambda tx: enrolment_codes(tx, task_id))
        if as_json:
            print_json([known.model_dump(mode="json") for known in listed])
            return
        for known in listed:
            use = "single-use" if known.single_use else "shared"
            revoked = "" if known.revoked_at is None else f"revoked {known.revoked_at.isoformat()}"
            print(known.code_id, use, known.used_by or "", revoked, sep="\t")


@tasks_app.command("stop")
@guarded
@located
def stop_command(where: Where, task: TaskName) -> None:
    """End a task.

    Its open round is settled if it has enough updates, else it is void.
    """
    with opened_store(where.settings()) as store:
        task_id = store.read(lambda tx: task_named(tx, task)).task_id
        stop_task(store, task_id, None, store.now())
        print_tasks([store.read(lambda tx: _listed(tx, task_id))], as_json=False)


@tasks_app.command("delete")
@guarded
@located
def delete_command(where: Where, task: TaskName) -> None:
    """Delete a task that has ended, with everything that it has stored. Prints its tombstone, which stays.

    A task that was already deleted is named by its id. Export a task first if its clients may want to check receipts.
    """
    with opened_store(where.settings()) as store:
        known = store.read(lambda tx: tx.tombstones.get(task))
        task_id = task if known is not None else store.read(lambda tx: task_named(tx, task)).task_id
        now = store.now()
        stone = store.write(lambda tx: delete_task(tx, task_id, deleted_by="operator", now=now))
    failpoint("delete.after_commit")
    print(json.dumps(stone.model_dump(mode="json"), indent=2))


def task_named(tx: Transaction, name: str) -> Task:
    """The task with this id or name."""
    task = tx.tasks.get(name) or tx.tasks.by_name(name)
    if task is None:
        raise CoordinatorError(f"there is no task {name!r}")
    return task


def valid_name(name: str) -> str:
    """The name, if it is valid."""
    try:
        return TypeAdapter[str](Name).validate_python(name)
    except ValidationError:
        raise CoordinatorError(f"{name!r} cannot be a name: letters, digits and . _ : / - only") from None


def parsed_overrides(text: str) -> dict[str, Any]:
    """The value of --overrides: JSON, or @FILE with it."""
    named = text.startswith("@")
    place = f"--overrides: {text[1:]}" if named else "--overrides"
    try:
        value = json.loads(_text_of(Path(text[1:])) if named else text)
    except ValueError as error:
        raise CoordinatorError(f"{place} is not JSON: {error}") from error
    except RecursionError:
        raise CoordinatorError(f"{place} is nested too deeply") from None
    if not isinstance(value, dict):
        raise CoordinatorError(f"{place} must be a JSON object")
    return value


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CoordinatorError(f"--overrides: cannot read {path}: {error.strerror or error}") from error


def _listed(tx: Transaction, task_id: str) -> tuple[TaskSummary, TaskResults]:
    task = task_named(tx, task_id)
    return task_summary(tx, task), task_results(tx, task)
