"""`create_app`: the parts joined into one application. Importing this module creates nothing."""

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from fastapi import FastAPI

from ..clock import Clock
from ..service.notifications import ChangeNotifier
from ..service.scheduler import Scheduler
from ..settings import Settings
from ..store.store import Store
from ..tokens import Secrets
from . import errors
from .context import Context
from .limits import RequestLimits
from .metrics import Metrics
from .openapi import DocumentedApp
from .routes import clients, operations, reading, roster, tasks

_DESCRIPTION = """A coordinator buys privacy from clients to train one model.

Enrol, store a profile, wait for an announcement, declare a budget, upload the noised update, read the ledger. Every
error is problem+json with a stable `code`; see docs/protocol.md for the whole story."""


def create_app(
    *,
    settings: Settings,
    store: Store,
    clock: Clock,
    secrets: Secrets,
    scheduler: Scheduler,
    notifier: ChangeNotifier,
) -> FastAPI:
    """The application over a store that is already open."""
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # What was loaded stays for good: the garbage collector need not look through it again and again.
        gc.freeze()
        notifier.listen()
        notifier.on_change(scheduler.wake)
        scheduler.on_settlement(metrics.observe_settlement)
        notifier.on_foreign_change(app.state.context.callers.forget)
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
        version="1",
        description=_DESCRIPTION,
        lifespan=lifespan,
        openapi_url="/openapi.json" if docs else None,
        docs_url="/docs" if docs else None,
        redoc_url=None,
        # A redirect would lead to whatever host the caller has named.
        redirect_slashes=False,
    )
    app.state.context = Context(
        settings=settings,
        store=store,
        clock=clock,
        secrets=secrets,
        notifier=notifier,
        scheduler=scheduler,
        metrics=metrics,
    )
    errors.install(app)
    for router in (clients.router, roster.router, reading.router, tasks.router, operations.router):
        app.include_router(router)
    app.add_middleware(RequestLimits, metrics=metrics, max_requests=settings.max_requests)
    return app
