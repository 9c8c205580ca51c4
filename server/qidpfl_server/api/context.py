"""What every route has at hand, and how it gets to the store without blocking the event loop."""

from collections.abc import Callable
from typing import Annotated, TypeVar

import anyio.to_thread
from fastapi import Depends, Request

from ..clock import Clock, Micros
from ..clockwork import Clockwork
from ..secret_files import Secrets
from ..settings import Settings
from ..store.store import Store
from ..store.transaction import Transaction
from .announcements import Announcements
from .callers import KnownCallers
from .metrics import Metrics

Result = TypeVar("Result")


class Context:
    """The parts of a running coordinator."""

    def __init__(
        self,
        *,
        settings: Settings,
        store: Store,
        clock: Clock,
        secrets: Secrets,
        announcements: Announcements,
        clockwork: Clockwork,
        metrics: Metrics,
    ) -> None:
        self.settings = settings
        self.store = store
        self.clock = clock
        self.secrets = secrets
        self.announcements = announcements
        self.clockwork = clockwork
        self.metrics = metrics
        self.callers = KnownCallers()
        self.readers = anyio.CapacityLimiter(8)
        self.upload_slots = anyio.CapacityLimiter(settings.max_uploads)
        self.disk = anyio.CapacityLimiter(8)

    def now(self) -> Micros:
        return self.clock.now()

    async def read(self, work: Callable[[Transaction], Result]) -> Result:
        """Run a reading transaction in a thread."""
        return await anyio.to_thread.run_sync(self.store.read, work, limiter=self.readers)

    async def write(self, work: Callable[[Transaction], Result]) -> Result:
        """Run a writing transaction, together with others that wait."""
        return await self.store.write_async(work)


async def get_context(request: Request) -> Context:
    """Asynchronous only so that no request needs a thread for it."""
    context: Context = request.app.state.context
    return context


Ctx = Annotated[Context, Depends(get_context)]
