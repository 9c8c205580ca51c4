"""Stores for unit tests: a copy of a migrated database, which does not wait for the disk."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import event

from qidpfl_server.store.blobs import FolderBlobs
from qidpfl_server.store.database import migrate, open_engine
from qidpfl_server.store.small_blobs import SmallBlobs
from qidpfl_server.store.store import Store


def migrate_new(path: Path) -> None:
    """Make an empty database with its tables."""
    engine = open_engine(f"sqlite:///{path}")
    migrate(engine)
    engine.dispose()


@contextmanager
def fast_store(
    database: Path, blobs: Path, *, template: Path | None = None, small_blobs: bool = False
) -> Iterator[Store]:
    """The store of these files; with a template, the database is a copy of it. All blobs are files by default."""
    if template is not None:
        database.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(template, database)
    engine = open_engine(f"sqlite:///{database}")

    @event.listens_for(engine, "connect")
    def do_not_wait(connection: sqlite3.Connection, _record: Any) -> None:
        connection.execute("PRAGMA synchronous=OFF")

    store = Store(engine, FolderBlobs(blobs, small=SmallBlobs(engine) if small_blobs else None))
    try:
        yield store
    finally:
        store.close()
