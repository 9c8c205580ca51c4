"""The parts of the server that all routes share, and access to the store that does not block the event loop."""

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import anyio.to_thread
from fastapi import Depends, Request, Response
from pydantic import TypeAdapter

from qidpfl_shared.protocol.messages import RoundResult, UpdateReceipt
from qidpfl_shared.protocol.signatures import Signed

from ..clock import Clock, Micros
from ..ops.tokens import Secrets
from ..plugins.rules import RuleRegistry
from ..service.credentials import Credential, find_credential
from ..service.figures import task_figures
from ..service.notifications import ChangeNotifier
from ..service.rounds.submissions import Delivery, find_receipts
from ..service.scheduler import Scheduler
from ..service.views import result_of_round
from ..settings import Settings
from ..store.store import RoundKey, Store
from ..store.transaction import Transaction
from .batching import RequestBatcher
from .caches import DownloadCache, SettledRoundCache
from .health import SharedAnswer
from .metrics import Metrics
from .rates import CallerRates, EnrolmentLimits
from .uploads import UploadReceiver

Result = TypeVar("Result")
_GAUGES_MAX_AGE_S = 1.0


class Context:
    """The parts of a running server."""

    def __init__(
        self,
        *,
        settings: Settings,
        store: Store,
        clock: Clock,
        secrets: Secrets,
        notifier: ChangeNotifier,
        scheduler: Scheduler,
        rules: RuleRegistry,
        metrics: Metrics,
        rates: CallerRates,
    ) -> None:
        self.settings = settings
        self.store = store
        self.clock = clock
        self.secrets = secrets
        self.notifier = notifier
        self.scheduler = scheduler
        self.rules = rules
        self.metrics = metrics
        self.rates = rates
        # Whether the server will stop soon, and wants no further clients.
        self.is_draining = False
        self.readers = anyio.CapacityLimiter(8)
        # Readiness has a thread of its own: it does not wait behind other readers.
        self._readiness_reader = anyio.CapacityLimiter(1)
        self._computations = anyio.CapacityLimiter(2)
        self.readiness = SharedAnswer(self._check_readiness)
        # A flood of requests for the metrics must not read all tasks for each of them.
        self.task_gauges = SharedAnswer(self._read_task_gauges, max_age_s=_GAUGES_MAX_AGE_S)
        self.uploads = UploadReceiver(settings.max_uploads)
        self.enrolments = EnrolmentLimits(settings.enrolments_per_s)
        self.downloads = DownloadCache()
        self.settled_rounds = SettledRoundCache()
        # All clients ask for the result of a round as soon as it is settled: one read answers those that wait.
        self.round_results = RequestBatcher(self._read_result)
        # Requests for the same round at the same time share a reading transaction.
        self.admissions = RequestBatcher(self._look_up)
        # So do look-ups of credentials: a flood of unknown ones takes one thread, and a transaction for many of them.
        self._credentials = RequestBatcher(self._look_up_credentials)

    def drain(self) -> None:
        """Answer that this server is not ready any more. It serves all requests until it stops."""
        self.is_draining = True

    def now(self) -> Micros:
        return self.clock.now()

    async def read(self, work: Callable[[Transaction], Result]) -> Result:
        """Run a reading transaction in a thread."""
        return await anyio.to_thread.run_sync(self.store.read, work, limiter=self.readers)

    async def compute(self, work: Callable[[], Result]) -> Result:
        """Run a computation without the store in a thread. At most two at a time, so that readers keep theirs."""
        return await anyio.to_thread.run_sync(work, limiter=self._computations)

    async def read_json(self, adapter: TypeAdapter[Result], work: Callable[[Transaction], Result]) -> Response:
        """The answer with what a reading transaction finds. Long lists become JSON in the thread, too."""

        def as_json() -> bytes:
            return adapter.dump_json(self.store.read(work))

        body = await anyio.to_thread.run_sync(as_json, limiter=self.readers)
        return Response(body, media_type="application/json")

    async def _check_readiness(self) -> None:
        def check() -> None:
            self.store.read(lambda tx: tx.change_counter())
            self.store.blobs.check()

        await anyio.to_thread.run_sync(check, limiter=self._readiness_reader)

    async def _read_task_gauges(self) -> None:
        gauges = self.metrics.tasks
        gauges.set(await self.read(lambda tx: task_figures(tx, gauges.LIMIT, gauges.known)))

    async def write(self, work: Callable[[Transaction], Result], *, task_id: str | None = None) -> Result:
        """Run a writing transaction. It shares one commit with others that wait; on PostgreSQL, of the same task."""
        return await self.store.write_async(work, task_id=task_id)

    def signed(self, message: Signed) -> Signed:
        """The message with the signature of this server."""
        return message if self.store.key is None else self.store.key.signed(message)

    async def look_up_credential(self, secret_hash: str) -> Credential | None:
        """What the secret with this hash stands for; None if it is unknown, revoked or expired."""
        return await self._credentials.submit(None, secret_hash)

    async def _look_up_credentials(self, _: None, hashes: Sequence[str]) -> list[Credential | Exception | None]:
        now = self.now()
        return await self.read(lambda tx: [find_credential(tx, secret_hash, now) for secret_hash in hashes])

    async def _look_up(self, round_key: RoundKey, items: Sequence[Delivery]) -> list[UpdateReceipt | Exception | None]:
        return await self.read(lambda tx: find_receipts(tx, *round_key, items))

    async def _read_result(self, round_key: RoundKey, waiting: Sequence[None]) -> list[RoundResult | Exception]:
        task_id, number = round_key
        if (known := self.settled_rounds.get(task_id, number)) is not None:
            return [known] * len(waiting)
        result, awaits_evaluation = await self.read(lambda tx: result_of_round(tx, task_id, number))
        self.settled_rounds.add(task_id, result, awaits_evaluation=awaits_evaluation)
        return [result] * len(waiting)


async def get_context(request: Request) -> Context:
    """A coroutine, so that FastAPI does not use a thread for it."""
    context: Context = request.app.state.context
    return context


Ctx = Annotated[Context, Depends(get_context)]
