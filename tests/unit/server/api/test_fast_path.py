"""Which requests take the short way, and which go to the routes."""

import asyncio
from pathlib import Path

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from qidpfl_server.api.app import create_app
from qidpfl_server.api.fast_path import FastPath
from qidpfl_server.clock import SystemClock
from qidpfl_server.ops.tokens import Secrets
from qidpfl_server.service.notifications import ChangeNotifier
from qidpfl_server.service.scheduler import Scheduler
from qidpfl_server.settings import Settings
from qidpfl_server.store.blobs import FolderBlobs
from qidpfl_server.store.database import open_engine
from qidpfl_server.store.store import Store
from support.fast_stores import migrate_new

ROUND = "/v1/tasks/5f1d/rounds"
TOKEN = {"Authorization": "Bearer unknown"}


async def paths_to_the_routes(folder: Path, requests: list[httpx.Request]) -> tuple[list[str], list[int]]:
    """Which of the requests reach the routes, and the statuses of all answers."""
    migrate_new(folder / "coordinator.db")
    store = Store(open_engine(f"sqlite:///{folder}/coordinator.db"), FolderBlobs(folder / "blobs"))
    clock = SystemClock()
    app = create_app(
        settings=Settings(),
        store=store,
        clock=clock,
        secrets=Secrets(admin="a", viewer="v"),
        scheduler=Scheduler(store, clock, lambda _: None),
        notifier=ChangeNotifier(store),
    )
    passed: list[str] = []

    async def routes(scope: Scope, receive: Receive, send: Send) -> None:
        passed.append(scope["path"])
        await app(scope, receive, send)

    short = FastPath(routes, app, app.state.context, app.state.callers)

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = app
        await short(scope, receive, send)

    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(served), base_url="http://x") as client:
            return passed, [(await client.send(request)).status_code for request in requests]
    finally:
        store.close()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"{ROUND}/current"),
        ("GET", f"{ROUND}/current?after=3.1&wait=30"),
        ("GET", "/v1/tasks/5f1d/models/0"),
        ("GET", "/v1/tasks/5f1d/models/17"),
        ("PUT", f"{ROUND}/1/budget"),
        ("PUT", f"{ROUND}/1/update"),
    ],
)
def test_a_well_formed_request_does_not_reach_the_routes(tmp_path: Path, method: str, path: str) -> None:
    request = httpx.Request(method, f"http://x{path}", headers=TOKEN)
    assert asyncio.run(paths_to_the_routes(tmp_path, [request])) == ([], [401])


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", f"{ROUND}/current"),
        ("GET", f"{ROUND}/1"),
        ("GET", "/v1/tasks/5F/rounds/current"),
        ("GET", "/v1/tasks/5f1d/models/01"),
        ("GET", "/v1/tasks/5f1d/models/1.safetensors"),
        ("PUT", f"{ROUND}/0/budget"),
        ("PUT", f"{ROUND}/1/budget/"),
    ],
)
def test_all_other_requests_reach_the_routes(tmp_path: Path, method: str, path: str) -> None:
    request = httpx.Request(method, f"http://x{path}", headers=TOKEN)
    passed, _ = asyncio.run(paths_to_the_routes(tmp_path, [request]))
    assert passed == [path]
