"""A copy of the server's state on which another server can run: database, blobs and secrets.

The database is copied first, then the blobs that the copy refers to. No blob can be missing, because a blob is on disk
before a row refers to it. The backup gets its name only when it is complete and durable.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from qidpfl_shared.durable_files import fsync_dir, write_synced

from ..errors import CoordinatorError
from ..service.retention import kept_digests
from ..settings import Settings
from ..store.blobs import FolderBlobs
from ..store.database import copy_sqlite
from ..store.store import Store
from .open_store import opened_store

Watch = Callable[[list[str]], Iterable[str]]


@dataclass(frozen=True)
class Backup:
    """What a backup contains. `missing` counts blobs that the database names but the store does not have."""

    folder: Path
    database: bool
    blobs: int
    missing: int
    secrets: int


def back_up(
    settings: Settings, store: Store, folder: Path, *, blobs_only: bool = False, copy: bool = False, watch: Watch
) -> Backup:
    """Copy a live or stopped store into a new folder. `watch` iterates over the blobs and may show progress.

    Only a SQLite database can be copied here. For PostgreSQL use pg_dump, then `blobs_only`.
    """
    is_sqlite = store.engine.dialect.name == "sqlite"
    if not is_sqlite and not blobs_only:
        raise CoordinatorError("this store is on PostgreSQL: run pg_dump first, then backup --blobs-only")
    with _created_at_once(folder) as partial:
        # Blobs are files in every backup, so that it needs nothing else.
        state = Settings(state_dir=partial, store_url=None, blob_dir=None, blobs=None)
        if blobs_only:
            referenced = store.read(kept_digests, snapshot=True)
        else:
            copy_sqlite(store.engine, partial / "coordinator.db")
            with opened_store(state) as copied:
                referenced = copied.read(kept_digests)
        target = FolderBlobs(partial / "blobs").root
        found = [store.blobs.copy_to(target, digest, link=not copy) for digest in watch(sorted(referenced))]
        secrets = _copy_secrets(settings, partial)
    return Backup(
        folder=folder, database=not blobs_only, blobs=sum(found), missing=len(found) - sum(found), secrets=secrets
    )


@contextmanager
def _created_at_once(folder: Path) -> Iterator[Path]:
    """A temporary folder that is renamed to `folder` at the end, or removed on an error."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CoordinatorError(f"{folder} exists and is not an empty folder: name a new one")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.part-"))
    try:
        yield partial
        for inside in (path for path in partial.rglob("*") if path.is_dir()):
            fsync_dir(inside)
        fsync_dir(partial)
        os.rename(partial, folder)
        fsync_dir(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _copy_secrets(settings: Settings, target: Path) -> int:
    """Copy the tokens, enrolment codes and the signing key; only the operator can read them."""
    found = sorted([*settings.secrets_folder.glob("*.token"), *settings.code_folder.glob("*.code")])
    named = {path.name: path for path in found}
    if settings.signing_key_file.is_file():
        named["signing.key"] = settings.signing_key_file
    for name, path in named.items():
        write_synced(target / name, path.read_bytes(), exclusive=True, mode=0o600)
    return len(named)
