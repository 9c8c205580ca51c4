"""Runs the server: builds it from its parts and serves until it is stopped."""

import asyncio
import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import structlog
import uvicorn

from qidpfl_shared.core.aggregation import Parameters
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import TaskState
from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.tracing import TracingUnavailable, start_tracing

from ..api.app import create_app
from ..clock import SystemClock
from ..errors import CoordinatorError, DamagedState, RequestRefused
from ..identifiers import new_id
from ..ops.auto_export import AutoExport
from ..ops.startup_checks import require_living_tasks
from ..ops.tokens import Secrets, load_secrets
from ..plugins.rules import NO_RULES, RuleRegistry
from ..service.evaluation import Evaluators
from ..service.notifications import ChangeNotifier
from ..service.scheduler import Scheduler
from ..service.tasks import create_task, new_codes, save_initial_model
from ..settings import Settings
from ..store.database import exclusive
from ..store.store import Store
from ..store.store_clock import StoreClock
from ..store.transaction import Transaction
from ..tracking.open_trackers import tracked
from .display.guidance import Guidance, differences
from .display.ports import open_without_tls
from .display.waiting_log import log_waiting
from .http.connections import ConnectionLimits, limits_within, raise_file_limit
from .http.http_protocol import protocol_with
from .http.server import CoordinatorServer, Drain
from .progress import is_shown, show_progress
from .tls import client_certificates, reload_on_hangup

_log = structlog.get_logger()
_M_ARENA_MAX = -8


def ensure_task(
    store: Store,
    *,
    name: str,
    preset_name: str,
    spec: TaskSpec,
    start: Parameters | None = None,
    write_down: Callable[[str], object],
    shared_code: bool = False,
    code: str | None = None,
) -> bool:
    """Create a task of this name if there is none; return whether it was created.

    The enrolment codes are written to a file before the task exists, so that a crash in between cannot lose them.
    An operator may give a shared `code`, which names the id of the task and is in a file already.
    """
    if (known := store.read(lambda tx: tx.tasks.by_name(name))) is not None:
        # A task of an earlier release does not name its version of the protocol.
        if changed := differences(known.spec.current, spec):
            _log.warning("task_differs", task=name, reason="the task of this name keeps its own spec", changed=changed)
        return False
    model = save_initial_model(store.blobs, spec, start)
    now, task_id = store.now(), new_id()
    single_use_codes = 0 if shared_code or code is not None else None
    if code is None:
        codes = new_codes(task_id, spec, single_use_codes)
        write_down("\n".join(codes))
    else:
        task_id, codes = code.partition(".")[0], (code,)
        _require_unused(store, task_id, name)
    try:
        store.write(
            lambda tx: create_task(
                tx,
                name=name,
                preset_name=preset_name,
                spec=spec,
                model=model,
                now=now,
                task_id=task_id,
                single_use_codes=single_use_codes,
                codes=codes,
            )
        )
    except (RequestRefused, DamagedState) as error:
        # Another server on the same database may just have created it. Both find no task, and one violates a key.
        may_be_overtaken = isinstance(error, DamagedState) or error.code is ErrorCode.TASK_EXISTS
        if may_be_overtaken and store.read(lambda tx: tx.tasks.by_name(name)) is not None:
            return False
        raise
    return True


def _require_unused(store: Store, task_id: str, name: str) -> None:
    """Raise if a code of the operator names a task that exists under another name, or that was deleted."""
    known = store.read(lambda tx: tx.tasks.get(task_id))
    if known is not None and known.name != name:
        raise CoordinatorError(f"the enrolment code is that of task {known.name}: `keys new` makes another one")
    if task_id in store.read(lambda tx: {gone.task_id for gone in tx.tombstones.all()}):
        raise CoordinatorError("the enrolment code is that of a deleted task: `keys new` makes another one")


def serve(
    settings: Settings,
    store: Store,
    *,
    prepare: Callable[[], Guidance | None] = lambda: None,
    custom_workloads: Sequence[str] = (),
    models: Sequence[str] = (),
    held_out: Mapping[str, Path] | None = None,
    rules: RuleRegistry = NO_RULES,
    exit_when_finished: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT, or until all tasks have ended. `prepare` runs once the store is locked."""
    _limit_malloc_arenas()
    if settings.traces:
        _start_tracing()
    evaluators = Evaluators(data_dir=settings.data_dir, custom=custom_workloads, models=models, held_out=held_out)
    store.now()
    with exclusive(store.engine), _auto_export(settings, store), tracked(settings, store):
        store.read(lambda tx: require_living_tasks(tx, rules))
        secrets = load_secrets(settings)
        _show_secrets(secrets)
        _log.info("blob_store", place=store.blobs.place)
        if store.key is not None:
            _log.info("signing_key", key_id=store.key.key_id, public_key=store.key.public_key)
        if (warning := open_without_tls(settings)) is not None:
            _log.warning("open_without_tls", reason=warning)
        guidance = prepare()
        _prepare_evaluation(store, evaluators)
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(
                    _serve(
                        settings,
                        store,
                        secrets,
                        evaluators,
                        rules,
                        guidance,
                        exit_when_finished=exit_when_finished,
                    )
                )
        except SystemExit as error:
            # uvicorn has logged the reason.
            raise CoordinatorError(f"cannot start on {settings.host}:{settings.port}") from error
    if exit_when_finished:
        store.read(_require_good_ends)


def _start_tracing() -> None:
    try:
        start_tracing("qidpfl-server")
    except TracingUnavailable as error:
        raise CoordinatorError(str(error)) from None


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop takes about a tenth less processor time per request than asyncio. It does not exist for every platform."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(
    settings: Settings,
    store: Store,
    secrets: Secrets,
    evaluators: Evaluators,
    rules: RuleRegistry,
    guidance: Guidance | None,
    *,
    exit_when_finished: bool,
) -> None:
    clock = StoreClock(store.time, SystemClock())
    notifier = ChangeNotifier(store)
    scheduler = Scheduler(
        store,
        clock,
        lambda task: evaluators.of(task.spec),
        rules,
        defer_from_s=settings.deferred_evaluation_s,
    )
    app = create_app(
        settings=settings,
        store=store,
        clock=clock,
        secrets=secrets,
        scheduler=scheduler,
        notifier=notifier,
        rules=rules,
    )
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=protocol_with(
            header_timeout_s=settings.header_timeout_s,
            body_timeout_s=settings.body_timeout_s,
            min_bytes_per_s=settings.min_bytes_per_s,
        ),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=settings.forwarded_allow_ips is not None,
        forwarded_allow_ips=settings.forwarded_allow_ips,
        timeout_graceful_shutdown=settings.shutdown_timeout_s,
        timeout_keep_alive=30,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        **client_certificates(settings),
    )
    drain = Drain(settings.drain_s, app.state.context.drain)
    server = CoordinatorServer(
        config, notifier, _connection_limits(settings), drain, lambda url: _show_start(url, settings, guidance, store)
    )
    reload_on_hangup(settings, secrets, config, server.use_tls)
    beside = [asyncio.create_task(_stop_when_finished(server, store))] if exit_when_finished else []
    shown = is_shown(settings.log_format)
    beside.append(asyncio.create_task(show_progress(store) if shown else log_waiting(store)))
    await server.serve()
    for watcher in beside:
        watcher.cancel()
    await asyncio.gather(*beside, return_exceptions=True)


def _connection_limits(settings: Settings) -> ConnectionLimits:
    # All connections through a proxy have its address.
    per_address = None if settings.forwarded_allow_ips is not None else settings.max_connections_per_address
    return limits_within(raise_file_limit(), total=settings.max_connections, per_address=per_address)


async def _stop_when_finished(server: CoordinatorServer, store: Store) -> None:
    """Stop a few seconds after the last task has ended, so that clients can read its end and their ledgers."""
    while True:
        await asyncio.sleep(1)
        # An error of the store must not end this loop: the process would then run forever.
        with contextlib.suppress(CoordinatorError):
            tasks = await asyncio.to_thread(store.read, lambda tx: tx.tasks.all())
            if tasks and all(task.ended for task in tasks):
                await asyncio.sleep(5)
                server.stop()
                return


def _require_good_ends(tx: Transaction) -> None:
    """Raise unless all tasks ended well, so that the exit code of the process tells it."""
    for task in tx.tasks.all():
        if not task.ended:
            raise CoordinatorError(f"stopped while task {task.name} was {task.state}")
        if task.state is TaskState.FAILED:
            raise CoordinatorError(f"task {task.name} failed: {task.reason}")


def _prepare_evaluation(store: Store, evaluators: Evaluators) -> None:
    """Read the held-out records of running tasks in the background, so that the log reports missing ones early."""
    specs = store.read(lambda tx: [task.spec for task in tx.tasks.live()])
    for evaluator in {evaluators.of(spec) for spec in specs}:
        # A custom workload may be slow. The server does not wait for it, not even when it stops.
        threading.Thread(target=evaluator.prepare, daemon=True).start()


@contextlib.contextmanager
def _auto_export(settings: Settings, store: Store) -> Iterator[None]:
    """Export tasks that end here in the transaction that ends them; all others at the start and at the stop."""
    if settings.results_dir is None:
        yield
        return
    export = AutoExport(settings.results_dir)
    store.before_commit(export.write_ended)
    store.read(export.write_missing)
    yield
    store.read(export.write_missing)


def _show_secrets(secrets: Secrets) -> None:
    """Print new tokens to a terminal; elsewhere print only the path of their files."""
    for path in secrets.created:
        value = Path(path).read_text().strip() if sys.stderr.isatty() else "written"
        print(f"{path.stem} token: {value} ({path})", file=sys.stderr)


def _show_start(url: str, settings: Settings, guidance: Guidance | None, store: Store) -> None:
    _show_dashboard(f"{url}/dashboard", settings.secrets_folder)
    if guidance is not None:
        _show_guidance(guidance, url, store)


def _show_dashboard(url: str, folder: Path) -> None:
    """Print the link of the dashboard with the viewer's token to a terminal; elsewhere only the name of its file."""
    path = folder / "viewer.token"
    if sys.stderr.isatty():
        print(f"dashboard: {url}#token={path.read_text().strip()}", file=sys.stderr)
    else:
        _log.info("dashboard", url=url, token_file=str(path))


def _show_guidance(guidance: Guidance, url: str, store: Store) -> None:
    """Print what to do next to a terminal; elsewhere log it."""
    lines = guidance.lines(url, store)
    if sys.stderr.isatty():
        print("\n".join(lines), file=sys.stderr)
    else:
        for line in lines:
            _log.info("guidance", said=line.strip())


def _limit_malloc_arenas(count: int = 2) -> None:
    """Let all threads share a few heaps of glibc; no effect with another C library.

    By default glibc gives each thread a heap and keeps freed memory in each of them. Megabytes pass through many
    threads here, so that memory would grow from round to round.
    """
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, count)
    except (AttributeError, OSError):
        return
