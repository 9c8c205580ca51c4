"""Errors of the database drivers become the server's own, by their codes."""

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from qidpfl_server.errors import CoordinatorError, DamagedState, DiskFailure, StorageFull, StoreBusy, SuspectedDamage
from qidpfl_server.store.blobs import FolderBlobs
from qidpfl_server.store.database import migrate, open_engine, translated_errors
from qidpfl_server.store.store import Store


class PostgresqlError(Exception):
    """An error as psycopg raises it: with a SQLSTATE if the server sent one."""

    def __init__(self, sqlstate: str | None) -> None:
        super().__init__("some text")
        self.sqlstate = sqlstate


def translated(error: DBAPIError) -> CoordinatorError:
    with pytest.raises(CoordinatorError) as caught, translated_errors():
        raise error
    return caught.value


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_FULL, StorageFull),
        (sqlite3.SQLITE_BUSY, StoreBusy),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, StoreBusy),
        (sqlite3.SQLITE_LOCKED, StoreBusy),
        (sqlite3.SQLITE_CORRUPT, SuspectedDamage),
        (sqlite3.SQLITE_NOTADB, SuspectedDamage),
        (sqlite3.SQLITE_IOERR, DiskFailure),
        (sqlite3.SQLITE_IOERR_FSYNC, DiskFailure),
        (sqlite3.SQLITE_CANTOPEN, DiskFailure),
        (sqlite3.SQLITE_READONLY, DiskFailure),
        (sqlite3.SQLITE_CONSTRAINT, DamagedState),
    ],
)
def test_sqlite_errors_are_classified_by_result_code(code: int, expected: type[CoordinatorError]) -> None:
    error = sqlite3.OperationalError("some text")
    error.sqlite_errorcode = code
    assert type(translated(OperationalError("SELECT 1", {}, error))) is expected


@pytest.mark.parametrize(
    ("sqlstate", "expected"),
    [
        ("53100", StorageFull),
        ("40001", StoreBusy),
        ("55P03", StoreBusy),
        ("57P01", StoreBusy),
        ("08006", StoreBusy),
        (None, StoreBusy),
        ("58030", DiskFailure),
        ("XX001", SuspectedDamage),
        ("42P01", DamagedState),
    ],
)
def test_postgresql_errors_are_classified_by_sqlstate(sqlstate: str | None, expected: type[CoordinatorError]) -> None:
    assert type(translated(OperationalError("SELECT 1", {}, PostgresqlError(sqlstate)))) is expected


def test_a_violated_constraint_is_damage() -> None:
    assert type(translated(IntegrityError("INSERT", {}, PostgresqlError("23505")))) is DamagedState


def test_an_error_of_a_real_lock_is_busy() -> None:
    first, second = (sqlite3.connect("file:shared?mode=memory&cache=shared", uri=True, timeout=0) for _ in range(2))
    first.execute("CREATE TABLE one (x)")
    first.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError) as caught:
        second.execute("BEGIN IMMEDIATE")
    assert type(translated(OperationalError("BEGIN", {}, caught.value))) is StoreBusy
    first.close()
    second.close()


def test_a_file_that_was_misread_is_read_again_and_only_a_check_calls_it_damaged(tmp_path: Path) -> None:
    """The bytes change under the open store, as a failing disk returns them, and change back."""
    file = tmp_path / "store.db"
    engine = open_engine(f"sqlite:///{file}")
    migrate(engine)
    store = Store(engine, FolderBlobs(tmp_path / "blobs"))
    # The last connection moves everything into one file.
    engine.dispose()
    sound = file.read_bytes()
    file.write_bytes(sound[:100] + bytes(len(sound) - 100))
    for _ in range(2):
        with pytest.raises(SuspectedDamage):
            store.read(lambda tx: tx.tasks.all())
    assert store.is_damaged()
    file.write_bytes(sound)
    assert store.read(lambda tx: tx.tasks.all()) == []
    assert not store.is_damaged()
    store.close()
