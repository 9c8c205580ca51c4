"""A real store in a temporary folder, a clock that stands still, and the use cases on both."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from qidpfl_server.settings import Settings
from qidpfl_server.store.store import Store
from support.fakes import FakeClock
from support.fast_stores import fast_store, migrate_new
from support.use_cases import UseCases


@pytest.fixture(scope="session", autouse=True)
def plain_logs() -> None:
    """Log lines as JSON. The default renderer draws each traceback, which takes a second."""
    structlog.configure(processors=[structlog.processors.format_exc_info, structlog.processors.JSONRenderer()])


@pytest.fixture(scope="session")
def migrated_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database with its tables, made once: each test copies the file."""
    path = tmp_path_factory.mktemp("migrated") / "coordinator.db"
    migrate_new(path)
    return path


@pytest.fixture
def store(migrated_database: Path, tmp_path: Path) -> Iterator[Store]:
    with fast_store(tmp_path / "coordinator.db", tmp_path / "blobs", template=migrated_database) as store:
        yield store


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The settings of `store`."""
    return Settings(state_dir=tmp_path)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def cases(store: Store, clock: FakeClock) -> UseCases:
    return UseCases(store, clock)
