"""A copy of a coordinator's state that another coordinator can run on: database, blobs and secrets.

First the database as it is at one moment, then the blobs that this copy refers to: a blob is on disk before anything
refers to it, so that none can be missing. The copy appears under its name only when it is complete and durable.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..cli.serve import opened_store
from ..errors import CoordinatorError
from ..service.retention import kept_digests
from ..settings import Settings
from ..store.blobs import Blobs
from ..store.database import copy_sqlite
from ..store.store import Store

Watch = Callable[[list[str]], Iterable[str]]


@dataclass(frozen=True)
class Backup:
    """What a backup holds; `missing` blobs are referred to, but not in the store either."""

    folder: Path
    database: bool
    blobs: int
    missing: int
    secrets: int


def back_up(
    settings: Settings, store: Store, folder: Path, *, blobs_only: bool = False, copy: bool = False, watch: Watch
) -> Backup:
    """Copy a live or stopped store into a new folder; `watch` passes the blobs on one by one and may show progress.

    Only SQLite can be copied from here: the database of a PostgreSQL store is left to pg_dump (`blobs_only`).
    """
    is_sqlite = store.engine.dialect.name == "sqlite"
    if not is_sqlite and not blobs_only:
        raise CoordinatorError("this store is on PostgreSQL: run pg_dump first, then backup --blobs-only")
    with _appearing(folder) as partial:
        state = Settings(state_dir=partial, store_url=None, blob_dir=None)
        if blobs_only:
            referenced = store.read(kept_digests, snapshot=True)
        else:
            copy_sqlite(store.engine, partial / "coordinator.db")
            with opened_store(state) as copied:
                referenced = copied.read(kept_digests)
        target = Blobs(partial / "blobs")
        found = [store.blobs.copy_to(target, digest, link=not copy) for digest in watch(sorted(referenced))]
        secrets = _copy_secrets(settings, partial)
    return Backup(
        folder=folder, database=not blobs_only, blobs=sum(found), missing=len(found) - sum(found), secrets=secrets
    )


@contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """A folder beside the wished one, which takes its name at the end; nothing is left if that is not reached."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CoordinatorError(f"{folder} exists and is not an empty folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.part-"))
    try:
        yield partial
        for inside in (path for path in partial.rglob("*") if path.is_dir()):
            _sync(inside)
        _sync(partial)
        os.rename(partial, folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _copy_secrets(settings: Settings, target: Path) -> int:
    """The tokens and enrolment codes, readable by the operator only."""
    found = sorted([*settings.state_dir.glob("*.token"), *settings.code_folder.glob("*.code")])
    for path in found:
        descriptor = os.open(target / path.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(path.read_bytes())
            file.flush()
            os.fsync(file.fileno())
    return len(found)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
