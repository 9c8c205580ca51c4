"""SQLite by default, PostgreSQL by URL, each opened the way that loses nothing."""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from ..errors import CoordinatorError, DamagedState, StorageFull, StoreBusy

_BUSY_TIMEOUT_S = 5.0
_MIGRATIONS = Path(__file__).parent / "migrations"


def open_engine(url: str) -> Engine:
    """An engine for this URL. Every transaction that writes is serialised and durable when it returns."""
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite":
            return _open_sqlite(parsed)
        if parsed.get_backend_name() == "postgresql":
            return _open_postgresql(parsed)
    except (ArgumentError, ValueError):
        # It may hold a password: neither it nor what was said of it is shown.
        raise DamagedState("the store URL is not a database URL: use sqlite:///file or postgresql://…") from None
    raise DamagedState(f"{parsed.get_backend_name()} is not supported: use sqlite:///file or postgresql://…")


def _open_sqlite(url: URL) -> Engine:
    engine = create_engine(url, connect_args={"timeout": _BUSY_TIMEOUT_S, "check_same_thread": False}, pool_size=8)

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: Any) -> None:
        # The driver's own transaction handling would begin late and without IMMEDIATE.
        connection.isolation_level = None
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=5000"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A read that turns into a write fails at once under contention; a writer takes its place from the start.
        reading = connection.get_execution_options().get("read_only", False)
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    return engine


def _open_postgresql(url: URL) -> Engine:
    options = " ".join(
        f"-c {name}={value}"
        for name, value in (
            # By default a paused or cut-off process would keep its locks for ever.
            ("idle_in_transaction_session_timeout", "15s"),
            ("lock_timeout", "5s"),
            ("statement_timeout", "60s"),
            ("synchronous_commit", "on"),
        )
    )
    keep_alive = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
    return create_engine(
        url.set(drivername="postgresql+psycopg"),
        connect_args={"options": options, "connect_timeout": 5, **keep_alive},
        pool_size=8,
        pool_pre_ping=True,
        isolation_level="READ COMMITTED",
    )


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turn what the database says into our own errors."""
    try:
        yield
    except CoordinatorError:
        raise
    except DBAPIError as error:
        raise _translated(error) from error


def _translated(error: DBAPIError) -> CoordinatorError:
    said = str(error.orig)
    if ("full" in said and "disk" in said) or "No space left" in said:
        return StorageFull("the database has no space left")
    locked = "locked" in said or "busy" in said
    retryable = getattr(error.orig, "sqlstate", None) in {"40001", "40P01", "55P03", "57014", "25P03", "57P01"}
    if locked or retryable or error.connection_invalidated or "connection" in said:
        return StoreBusy("the database is locked or away")
    return DamagedState(f"the database refused: {said.splitlines()[0]}")


def migrate(engine: Engine) -> None:
    """Bring the tables to the version this program knows; refuse a store that is newer or not ours."""
    if engine.dialect.name == "sqlite" and engine.url.database:
        _make_private(Path(engine.url.database))
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    try:
        with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                # Several coordinators may find the same empty database: one of them makes the tables.
                connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('qidpfl.migrate'))"))
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except CommandError as error:
        known = ScriptDirectory.from_config(config).get_current_head()
        raise DamagedState(
            f"the store at {_shown(engine)} has another version than {known}, the one this program knows: {error}"
        ) from error
    except SQLAlchemyError as error:
        raise _unusable(engine, error) from error


def _make_private(database: Path) -> None:
    """Make an empty file for the operator only where there is none; SQLite's other files get the same mode."""
    database.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(database, os.O_RDWR | os.O_CREAT, 0o600))


def check_integrity(engine: Engine) -> list[str]:
    """What the database itself finds wrong with its file; PostgreSQL checks its pages whenever it reads them."""
    if engine.dialect.name != "sqlite":
        return []
    with engine.connect().execution_options(read_only=True) as connection:
        found = [str(row[0]) for row in connection.execute(text("PRAGMA integrity_check"))]
    return [] if found == ["ok"] else found


def copy_sqlite(engine: Engine, target: Path) -> None:
    """Copy a SQLite store, live or stopped, as it is at one moment, and make the copy durable."""
    source = engine.raw_connection()
    _make_private(target)
    try:
        copy = sqlite3.connect(target)
        try:
            # All pages in one step: the copy is one snapshot, writers go on meanwhile and never make it start again.
            source.driver_connection.backup(copy)  # type: ignore[union-attr]
        finally:
            copy.close()
    except sqlite3.Error as error:
        raise StoreBusy(f"the store at {_shown(engine)} cannot be copied: {error}") from error
    finally:
        source.close()
    with target.open("rb") as file:
        os.fsync(file.fileno())


def require_existing(engine: Engine) -> None:
    """Refuse a place that holds no store: a command that only looks must not make one."""
    database = engine.url.database
    present = engine.dialect.name != "sqlite" or not database or Path(database).is_file()
    if present:
        try:
            with engine.connect().execution_options(read_only=True) as connection:
                present = inspect(connection).has_table("alembic_version")
        except SQLAlchemyError as error:
            raise _unusable(engine, error) from error
    if not present:
        raise DamagedState(f"there is no store at {_shown(engine)}")


@contextmanager
def exclusive(engine: Engine) -> Iterator[None]:
    """Hold the SQLite store for this process: two coordinators on one file would not see each other's waiters."""
    if engine.dialect.name != "sqlite" or not engine.url.database:
        yield
        return
    path = Path(f"{engine.url.database}.lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreBusy(f"another coordinator is running on {engine.url.database}") from None
        yield
    finally:
        os.close(descriptor)


def _unusable(engine: Engine, error: SQLAlchemyError) -> DamagedState:
    reason = str(getattr(error, "orig", error)).splitlines()[0]
    return DamagedState(f"the store at {_shown(engine)} cannot be opened: {reason}")


def _shown(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=True)
