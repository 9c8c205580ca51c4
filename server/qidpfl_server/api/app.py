"""`create_app` builds the application from its parts. Importing this module creates nothing."""

import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
from fastapi import FastAPI

from qidpfl_shared.protocol.compatibility import PROTOCOL_VERSION

from ..clock import Clock
from ..ops.tokens import Secrets
from ..plugins.rules import NO_RULES, RuleRegistry
from ..service.notifications import ChangeNotifier
from ..service.rounds.settlement_timer import Timing
from ..service.scheduler import Scheduler
from ..settings import Settings
from ..store.store import Store
from . import errors
from .auth import CallerCache
from .context import Context
from .document import pages
from .document.texts import TAGS
from .fast_path import FastPath
from .limits import RequestLimits
from .metrics import Metrics
from .openapi import DocumentedApp, operation_id
from .rates import CallerRates
from .routes import clients, controls, dashboard, models, operations, overview, rounds, tasks, tokens
from .traces.spans import TracedFastPath, telemetry, trace_settlement


def create_app(
    *,
    settings: Settings,
    store: Store,
    clock: Clock,
    secrets: Secrets,
    scheduler: Scheduler,
    notifier: ChangeNotifier,
    rules: RuleRegistry = NO_RULES,
) -> FastAPI:
    """The application on a store that is already open."""
    metrics = Metrics()
    rates = CallerRates(
        per_client_s=settings.requests_per_s_per_client, per_address_s=settings.requests_per_s_per_address
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # The loaded modules stay in memory: the garbage collector need not scan them again.
        gc.freeze()
        notifier.listen()
        notifier.on_change(scheduler.wake)
        notifier.on_due(scheduler.advance)
        notifier.on_foreign_due(scheduler.stand_by)
        scheduler.on_settlement(_observed(metrics) if settings.traces else metrics.observe_settlement)
        notifier.on_foreign_change(app.state.callers.clear)
        async with anyio.create_task_group() as group:
            group.start_soon(notifier.run)
            group.start_soon(scheduler.run)
            group.start_soon(scheduler.keep_clean)
            yield
            notifier.close()
            group.cancel_scope.cancel()

    docs = settings.docs_are_open
    app = DocumentedApp(
        title="QI-DPFL coordinator",
        version=PROTOCOL_VERSION,
        lifespan=lifespan,
        openapi_url="/openapi.json" if docs else None,
        docs_url=None,
        redoc_url=None,
        openapi_tags=TAGS,
        servers=[{"url": "/", "description": "this coordinator"}],
        license_info={"name": "Apache 2.0", "identifier": "Apache-2.0"},
        generate_unique_id_function=operation_id,
        # A redirect would go to the host that the caller names in its headers.
        redirect_slashes=False,
        telemetry=telemetry(traces=settings.traces),
    )
    app.state.callers = CallerCache()
    app.state.context = Context(
        settings=settings,
        store=store,
        clock=clock,
        secrets=secrets,
        notifier=notifier,
        scheduler=scheduler,
        rules=rules,
        metrics=metrics,
        rates=rates,
    )
    errors.install(app)
    # Routes match in this order: `/clients/me` before `/clients/{client_id}`, `/rounds/current` before a number.
    for part in (clients, rounds, models, tasks, overview, controls, tokens, operations, dashboard):
        app.include_router(part.router)
    if docs:
        app.include_router(pages.router)
    fast_path = TracedFastPath if settings.traces else FastPath
    app.put_behind(
        lambda inner: RequestLimits(
            fast_path(inner, app, app.state.context, app.state.callers),
            metrics=metrics,
            secrets=secrets,
            callers=app.state.callers,
            rates=rates,
            max_requests=settings.max_requests,
            max_requests_per_client=settings.max_requests_per_client,
        )
    )
    return app


def _observed(metrics: Metrics) -> Callable[[Timing], None]:
    """Counts a settlement, and makes a span of it."""

    def observe(timing: Timing) -> None:
        metrics.observe_settlement(timing)
        trace_settlement(timing)

    return observe
