"""Opening the store of a server: `serve`, the other commands and the backup all do it here."""

import contextlib
from collections.abc import Iterator

from ..settings import Settings
from ..store.blobs import Blobs, FolderBlobs
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
    store = Store(engine, _blobs_of(settings, SmallBlobs(engine)))
    try:
        if create:
            prepare_blobs(store)
            prepare_key(settings, store)
        else:
            use_key(settings, store)
        yield store
    finally:
        store.close()


def _blobs_of(settings: Settings, small: SmallBlobs) -> Blobs:
    """The blob store of these settings: a folder, or a bucket with this folder for blobs that are being written."""
    if settings.blobs is None:
        return FolderBlobs(settings.blob_folder, create=False, small=small)
    # Imported here: a coordinator with a folder does not need obstore.
    from ..store.blobs.object_client import ObjectClient
    from ..store.blobs.object_store import ObjectStoreBlobs

    client = ObjectClient.open(settings.blobs)
    return ObjectStoreBlobs(client, settings.blob_folder / "staging", create=False, small=small)


def check_bucket(url: str) -> bool:
    """Whether a coordinator has used this bucket before. Raises `CoordinatorError` if it does not answer."""
    from ..store.blobs.object_client import ObjectClient
    from ..store.blobs.object_store import LAYOUT

    return ObjectClient.open(url).check(LAYOUT)
