"""The store of a test, which several processes may open."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from qidpfl_server.store.blobs import FolderBlobs
from qidpfl_server.store.database import migrate, open_engine
from qidpfl_server.store.store import Store
from support.store_rows import Open


@pytest.fixture
def opened(store_url: str, tmp_path: Path) -> Iterator[Open]:
    """Opens the store, as often as wanted, as another process would."""
    stores: list[Store] = []

    def another() -> Store:
        engine = open_engine(store_url)
        migrate(engine)
        stores.append(Store(engine, FolderBlobs(tmp_path / "blobs")))
        return stores[-1]

    yield another
    for store in stores:
        store.close()


@pytest.fixture
def store(opened: Open) -> Store:
    return opened()
