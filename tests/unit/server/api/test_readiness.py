"""`/readyz` says whether the server can do its background work."""

import asyncio

import httpx

from qidpfl_server.api.app import create_app
from qidpfl_server.ops.tokens import Secrets
from qidpfl_server.service.notifications import ChangeNotifier
from qidpfl_server.service.scheduler import Scheduler
from qidpfl_server.settings import Settings
from support.use_cases import UseCases


def test_a_server_whose_background_work_has_ended_is_not_ready(cases: UseCases, settings: Settings) -> None:
    async def statuses() -> list[int]:
        scheduler = Scheduler(cases.store, cases.clock, lambda task: None)
        app = create_app(
            settings=settings,
            store=cases.store,
            clock=cases.clock,
            secrets=Secrets(admin="a" * 43, viewer="v" * 43),
            scheduler=scheduler,
            notifier=ChangeNotifier(cases.store),
        )
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as http:
            work = asyncio.create_task(scheduler.run())
            found = [(await http.get("/readyz")).status_code]
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            return [*found, (await http.get("/readyz")).status_code]

    assert asyncio.run(statuses()) == [200, 503]
