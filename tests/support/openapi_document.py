"""The OpenAPI document of an application on a new store, without a server."""

import asyncio
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from qidpfl_server.api.app import create_app
from qidpfl_server.clock import SystemClock
from qidpfl_server.ops.tokens import Secrets
from qidpfl_server.service.notifications import ChangeNotifier
from qidpfl_server.service.scheduler import Scheduler
from qidpfl_server.settings import Settings
from qidpfl_server.store.blobs import FolderBlobs
from qidpfl_server.store.database import open_engine
from qidpfl_server.store.store import Store


def with_app(work: Any, settings: Settings | None = None) -> Any:
    """The answer of `work` to an application whose store is empty."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(open_engine(f"sqlite:///{folder}/coordinator.db"), FolderBlobs(Path(folder) / "blobs"))
        clock = SystemClock()

        async def made() -> FastAPI:
            return create_app(
                settings=settings or Settings(),
                store=store,
                clock=clock,
                secrets=Secrets(admin="a", viewer="v"),
                scheduler=Scheduler(store, clock, lambda _: None),
                notifier=ChangeNotifier(store),
            )

        found = work(asyncio.run(made()))
        store.close()
    return found


@cache
def document() -> dict[str, Any]:
    """The whole document, with its texts."""
    found: dict[str, Any] = with_app(lambda app: app.openapi())
    return found


def operations() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every operation by its method and path."""
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation
