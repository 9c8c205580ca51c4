"""SQLite by default, PostgreSQL by URL; both with settings that make each commit durable."""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, ExceptionContext, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from ..errors import CoordinatorError, DamagedState, DiskFailure, StorageFull, StoreBusy, SuspectedDamage
from .adoption import adopt_tasks

_BUSY_TIMEOUT_S = 5.0
_MIGRATIONS = Path(__file__).parent / "migrations"
# Primary result codes of SQLite, and SQLSTATEs of PostgreSQL (appendix A of its manual).
_SQLITE_FULL = {sqlite3.SQLITE_FULL}
_SQLITE_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_SQLITE_DISK = {
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PROTOCOL,
}
_SQLITE_SUSPECT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_POSTGRESQL_FULL = {"53100"}
# System error (I/O), out of memory, too many open files.
_POSTGRESQL_DISK = {"58000", "58030", "53000", "53200"}
_POSTGRESQL_SUSPECT = {"XX001", "XX002"}
# Serialization failure, deadlock, lock or statement timeout, idle timeout, too many connections.
_POSTGRESQL_BUSY = {"40001", "40P01", "55P03", "57014", "25P03", "53300"}
# A connection to PostgreSQL whose other side has gone without a word fails within half a minute.
_REACHABLE = {
    "connect_timeout": 5,
    **{"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3},
    "tcp_user_timeout": 20_000,
}
# Connection exceptions, and a server that shuts down or starts.
_POSTGRESQL_AWAY = ("08", "57P")


def open_engine(url: str) -> Engine:
    """An engine for this URL. Transactions that write run one after the other and are durable when they return."""
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite":
            return _open_sqlite(parsed)
        if parsed.get_backend_name() == "postgresql":
            return _open_postgresql(parsed)
    except (ArgumentError, ValueError):
        # The URL may contain a password: neither the URL nor the message of the error is shown.
        raise DamagedState("the store URL is not a database URL: use sqlite:///file or postgresql://…") from None
    raise DamagedState(f"{parsed.get_backend_name()} is not supported: use sqlite:///file or postgresql://…")


def _open_sqlite(url: URL) -> Engine:
    engine = create_engine(url, connect_args={"timeout": _BUSY_TIMEOUT_S, "check_same_thread": False}, pool_size=8)

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: Any) -> None:
        # The driver would begin transactions late and without IMMEDIATE.
        connection.isolation_level = None
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=5000"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "handle_error")
    def drop_connections(context: ExceptionContext) -> None:
        # A connection keeps the pages that it has read: after a failing disk has returned wrong bytes, read them again.
        error = context.original_exception
        if isinstance(error, sqlite3.Error) and _primary_code(error) in _SQLITE_DISK | _SQLITE_SUSPECT:
            context.is_disconnect = True

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A read that becomes a write can fail at once under contention, so a writer takes the lock at its start.
        reading = connection.get_execution_options().get("read_only", False)
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    return engine


def _open_postgresql(url: URL) -> Engine:
    options = " ".join(
        f"-c {name}={value}"
        for name, value in (
            # Without these limits a paused or disconnected process would keep its locks forever.
            # Below the limit for a lock: what waits for such a process gets the lock instead of an error.
            ("idle_in_transaction_session_timeout", "4s"),
            ("lock_timeout", "5s"),
            ("statement_timeout", "60s"),
            ("synchronous_commit", "on"),
        )
    )
    return create_engine(
        url.set(drivername="postgresql+psycopg"),
        connect_args={"options": options, **_REACHABLE},
        pool_size=8,
        pool_pre_ping=True,
        isolation_level="READ COMMITTED",
    )


@contextmanager
def separate_connection(engine: Engine) -> Iterator[Any]:
    """A connection of PostgreSQL's driver beside those of the pool. Each statement on it is a transaction."""
    places, named = engine.dialect.create_connect_args(engine.url)
    connection: Any = engine.dialect.loaded_dbapi.connect(*places, autocommit=True, **{**_REACHABLE, **named})
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise the errors of the database driver as `CoordinatorError`."""
    try:
        yield
    except DBAPIError as error:
        raise translated(error) from error


def translated(error: Exception) -> Exception:
    """An error of the database driver as `CoordinatorError`, with the original as its cause; any other unchanged."""
    if not isinstance(error, DBAPIError):
        return error
    found = _coordinator_error(error)
    found.__cause__ = error
    return found


def _coordinator_error(error: DBAPIError) -> CoordinatorError:
    driver_error = error.orig
    if isinstance(driver_error, sqlite3.Error):
        code = _primary_code(driver_error)
        full, busy = code in _SQLITE_FULL, code in _SQLITE_BUSY
        disk, suspect = code in _SQLITE_DISK, code in _SQLITE_SUSPECT
    else:
        state = getattr(driver_error, "sqlstate", None)
        full = state in _POSTGRESQL_FULL
        disk, suspect = state in _POSTGRESQL_DISK, state in _POSTGRESQL_SUSPECT
        # Without a SQLSTATE the error comes from the driver: the server was not reached or the connection was lost.
        lost = state is None and isinstance(error, (OperationalError, InterfaceError))
        busy = lost or state in _POSTGRESQL_BUSY or (state is not None and state.startswith(_POSTGRESQL_AWAY))
    if full:
        return StorageFull("the database has no space left")
    if suspect:
        return SuspectedDamage("the database file looks damaged")
    if disk:
        return DiskFailure("the disk of the database reports an error")
    if busy or error.connection_invalidated:
        return StoreBusy("the database is locked or cannot be reached")
    return DamagedState(f"the database reports an error: {str(driver_error).splitlines()[0]}")


def _primary_code(error: sqlite3.Error) -> int:
    """The low byte of an extended result code. An error of the Python module has no code."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def migrate(engine: Engine) -> None:
    """Migrate the tables to the schema of this program. Raise for a store that is newer or of another program."""
    if engine.dialect.name == "sqlite" and engine.url.database:
        _make_private(Path(engine.url.database))
    if _is_current(engine):
        return
    # Alembic takes longer to import than the rest of the store.
    from .migrating import NoPath, upgrade

    try:
        with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                # Several servers may start on the same empty database: only one of them may create the tables.
                connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('qidpfl.migrate'))"))
            had_chain = inspect(connection).has_table("chain")
            upgrade(connection)
            if not had_chain:
                adopt_tasks(connection)
    except NoPath as error:
        raise DamagedState(
            f"the store at {_shown(engine)} does not have schema version {newest_version()} of this program: {error}"
        ) from error
    except SQLAlchemyError as error:
        raise _unusable(engine, error) from error


def _is_current(engine: Engine) -> bool:
    """Whether the store has the newest version of the schema. False also if that cannot be read."""
    try:
        # A writing transaction: a store that cannot be written is found at the start, as by a migration.
        with engine.begin() as connection:
            if not inspect(connection).has_table("alembic_version"):
                return False
            versions = list(connection.execute(text("SELECT version_num FROM alembic_version")).scalars())
    except SQLAlchemyError:
        return False
    return versions == [newest_version()]


def newest_version() -> str:
    """The newest version of the schema, by the names of the migrations: `NNNN_what.py`."""
    return max(path.name for path in (_MIGRATIONS / "versions").glob("[0-9]*.py")).partition("_")[0]


def _make_private(database: Path) -> None:
    """Create the file if it is missing, readable by the operator only; SQLite gives its other files the same mode."""
    database.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(database, os.O_RDWR | os.O_CREAT, 0o600))


def check_integrity(engine: Engine) -> list[str]:
    """The problems that SQLite finds in its file. PostgreSQL checks its pages when it reads them."""
    if engine.dialect.name != "sqlite":
        return []
    with engine.connect().execution_options(read_only=True) as connection:
        found = [str(row[0]) for row in connection.execute(text("PRAGMA integrity_check"))]
    return [] if found == ["ok"] else found


def data_version(connection: Connection) -> tuple[object, int]:
    """A value that changes if another connection has changed the SQLite file. It compares one open connection only."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver, driver.execute("PRAGMA data_version").fetchone()[0]


def copy_sqlite(engine: Engine, target: Path) -> None:
    """Copy a live or stopped SQLite database as it is at one moment, and fsync the copy."""
    source = engine.raw_connection()
    _make_private(target)
    try:
        copy = sqlite3.connect(target)
        try:
            # All pages in one step: the copy is one snapshot, and a concurrent write does not restart it.
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
    """Raise if there is no store: a command that only reads must not create one."""
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
    """Lock the SQLite store for this process: two servers on one file would not notify each other of changes."""
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
