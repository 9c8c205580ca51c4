"""Opening the store of a server: `serve`, the other commands and the backup all do it here."""

import contextlib
from collections.abc import Iterator

from ..settings import Settings
from ..store.blobs import Blobs
from ..store.database import migrate, open_engine, require_existing
from ..store.small_blobs import SmallBlobs
from ..store.store import Store
from .signing import prepare_key, use_key
from .startup_checks import prepare_blobs


@contextlib.contextmanager
def opened_store(settings: Settings, *, create: bool = False) -> Iterator[Store]:
    """The store of these settings, migrated to the schema of this program.

    Raises:
        DamagedState: if there is no store and `create` is false, or if the store cannot be used.
    """
    engine = open_engine(settings.database_url)
    if not create:
        require_existing(engine)
    migrate(engine)
    store = Store(engine, Blobs(settings.blob_folder, create=False, small=SmallBlobs(engine)))
    try:
        if create:
            prepare_blobs(store)
            prepare_key(settings, store)
        else:
            use_key(settings, store)
        yield store
    finally:
        store.close()
