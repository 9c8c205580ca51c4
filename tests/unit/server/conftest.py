"""A real store in a temporary folder, a clock that stands still, and the use cases on both."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from qidpfl_server.store.blobs import Blobs
from qidpfl_server.store.database import migrate, open_engine
from qidpfl_server.store.store import Store
from support.fakes import FakeClock
from support.use_cases import UseCases


@pytest.fixture(scope="session")
def migrated_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database with its tables, made once: each test copies the file."""
    path = tmp_path_factory.mktemp("migrated") / "coordinator.db"
    engine = open_engine(f"sqlite:///{path}")
    migrate(engine)
    engine.dispose()
    return path


@pytest.fixture
def store(migrated_database: Path, tmp_path: Path) -> Iterator[Store]:
    shutil.copyfile(migrated_database, tmp_path / "coordinator.db")
    store = Store(open_engine(f"sqlite:///{tmp_path / 'coordinator.db'}"), Blobs(tmp_path / "blobs"))
    yield store
    store.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def cases(store: Store, clock: FakeClock) -> UseCases:
    return UseCases(store, clock)
