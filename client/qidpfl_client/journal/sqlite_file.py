"""The SQLite file of a journal: one writing process, durable transactions, one-line errors."""

import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Protocol

from qidpfl_shared.durable_files import create_folder

from ..errors import JournalError
from .group_log import LONGEST_RECORD, GroupLog, LoggedCommit, SqlValue, read_log, sync_journal
from .group_log import NAME as LOG_NAME
from .schema import FIRST_COMMIT, INDEXES, LIMITS_SINCE, RECEIPTS_SINCE, SCHEMA, UPGRADES, VERSION


class Changes(Protocol):
    """Takes the statements of a transaction."""

    def execute(self, sql: str, values: Sequence[SqlValue] = (), /) -> sqlite3.Cursor: ...


class _Recorded:
    """Executes statements and notes those that change something, for the log of a fleet."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self.statements: list[tuple[str, Sequence[SqlValue]]] = []

    def execute(self, sql: str, values: Sequence[SqlValue] = (), /) -> sqlite3.Cursor:
        cursor = self._database.execute(sql, values)
        self.statements.append((sql, tuple(values)))
        return cursor


class JournalFile:
    """A SQLite file with the tables of a journal, created if it is missing; `is_new` tells which.

    A file without a committed schema is new: a kill while the file is created leaves such a file behind.

    The members of a fleet share the fsyncs of their commits: see `join` and the module `group_log`.

    Every failure is a `JournalError` with one line of text.
    """

    def __init__(self, path: Path, *, read_only: bool, logged: Sequence[LoggedCommit] | None = None) -> None:
        self.path = path
        self.read_only = read_only
        # All names of one journal lead to this file, and the lock is beside it.
        self._resolved = Path(os.path.realpath(path))
        self.is_new = False
        self._lock: IO[bytes] | None = None
        self._database: sqlite3.Connection | None = None
        # Read once: only the process that holds the lock changes it, and only when it opens the file.
        self._version = 0
        self._in_fleet = logged is not None
        self._group: GroupLog | None = None
        self._recorded: _Recorded | None = None
        self._sequence = 0
        # How often changes were taken back: what was remembered of them is then not true any more.
        self.rollbacks = 0
        try:
            with self._translated():
                self._open(read_only)
                if not read_only:
                    self._repeat(read_log(self._resolved.parent).get(path.name, []) if logged is None else logged)
        except BaseException:
            self.close(discard=self.is_new)
            raise

    def one(self, query: str, *values: SqlValue) -> sqlite3.Row | None:
        """The first row, or None."""
        rows = self.all(query, *values)
        return rows[0] if rows else None

    def all(self, query: str, *values: SqlValue) -> list[sqlite3.Row]:
        """All rows."""
        try:
            return self._opened.execute(query, values).fetchall()
        except (sqlite3.Error, OSError) as error:
            raise self._failure(error) from error

    @property
    def has_limits(self) -> bool:
        """Whether the file records limits. An earlier version that is opened read-only does not."""
        return self._version >= LIMITS_SINCE

    @property
    def has_receipts(self) -> bool:
        """Whether the file keeps signed receipts. An earlier version that is opened read-only does not."""
        return self._version >= RECEIPTS_SINCE

    def change(self, sql: str, values: Sequence[SqlValue]) -> int:
        """Execute one statement, and return how many rows it has changed. The next `flush` makes it durable.

        A statement changes all its rows or none: it needs no savepoint.
        """
        try:
            database = self._opened
            if not database.in_transaction:
                database.execute("BEGIN IMMEDIATE")
            return (self._recorded or database).execute(sql, values).rowcount
        except (sqlite3.Error, OSError) as error:
            self._forget_if_rolled_back()
            raise self._failure(error) from error

    @contextmanager
    def transaction(self, *, synced: bool = True) -> Iterator[Changes]:
        """All changes or none, fsynced at the end, together with all earlier ones.

        With `synced=False` this connection sees the changes at once. They become durable with the next synced
        transaction or `flush`; a kill before that loses them.
        """
        with self._translated():
            database = self._opened
            if not database.in_transaction:
                database.execute("BEGIN IMMEDIATE")
            database.execute("SAVEPOINT step")
            recorded = self._recorded
            before = 0 if recorded is None else len(recorded.statements)
            try:
                yield recorded or database
            except BaseException:
                self.rollbacks += 1
                if database.in_transaction:
                    database.execute("ROLLBACK TO step")
                    database.execute("RELEASE step")
                    if recorded is not None:
                        del recorded.statements[before:]
                self._forget_if_rolled_back()
                raise
            database.execute("RELEASE step")
            if synced:
                self._commit(database)

    def _forget_if_rolled_back(self) -> None:
        """SQLite itself ends the transaction after some errors, such as a full disk."""
        self.rollbacks += 1
        if self._recorded is not None and not self._opened.in_transaction:
            self._recorded.statements.clear()

    def flush(self) -> None:
        """Make all changes durable."""
        try:
            if self._opened.in_transaction:
                self._commit(self._opened)
        except (sqlite3.Error, OSError) as error:
            raise self._failure(error) from error

    def join(self, group: GroupLog) -> None:
        """Share fsyncs with other journals from now on. All earlier changes are durable, or the file is empty."""
        with self._translated():
            # A fleet has hundreds of journals, each of which looks up few rows.
            self._opened.execute("PRAGMA cache_size = -256")
        self._group, self._recorded = group, _Recorded(self._opened)

    def _commit(self, database: sqlite3.Connection) -> None:
        group, recorded = self._group, self._recorded
        statements: list[tuple[str, Sequence[SqlValue]]] = []
        try:
            if recorded is not None:
                statements, recorded.statements = recorded.statements, []
                database.execute("UPDATE group_commits SET sequence = ?", [self._sequence + 1])
            database.execute("COMMIT")
        except BaseException:
            self.rollbacks += 1
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise
        if group is not None:
            self._sequence += 1
            commit = LoggedCommit(journal=self.path.name, sequence=self._sequence, statements=statements)
            record = commit.encoded()
            if len(record) > LONGEST_RECORD:
                sync_journal(self._resolved)
            else:
                group.commit(self._resolved, record)

    def _repeat(self, logged: Sequence[LoggedCommit]) -> None:
        """Repeat the commits that the file has lost in a power cut."""
        database = self._opened
        self._sequence = database.execute("SELECT sequence FROM group_commits").fetchone()[0]
        for commit in logged:
            if commit.sequence <= self._sequence:
                continue
            if commit.sequence != self._sequence + 1:
                raise JournalError(
                    f"{self.path} is an older copy than the log of its fleet, {self._resolved.parent / LOG_NAME}: use"
                    " the newest copy"
                )
            database.execute("BEGIN IMMEDIATE")
            for sql, values in commit.statements:
                database.execute(sql, values)
            database.execute("UPDATE group_commits SET sequence = ?", [commit.sequence])
            database.execute("COMMIT")
            self._sequence = commit.sequence

    def close(self, *, discard: bool = False) -> None:
        """Close and unlock the file, after a commit of all changes; with `discard`, remove it first.

        A file that cannot be written stays as it was at the last commit: what is lost then can be asked for again.
        """
        if self._database is not None:
            if self._database.in_transaction and not discard:
                with suppress(sqlite3.Error):
                    # SQLite fsyncs the file when it is closed: the log of a fleet is not needed.
                    self._database.execute("COMMIT")
            self._database.close()
        if self._lock is not None:
            if discard:
                for suffix in ("", "-wal", "-shm", ".lock"):
                    _beside(self._resolved, suffix).unlink(missing_ok=True)
            self._lock.close()
        self._database = self._lock = None

    @property
    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            raise JournalError(f"the journal {self.path} is closed")
        return self._database

    def _open(self, read_only: bool) -> None:
        where = self._resolved.as_uri()
        if read_only:
            if not self._resolved.exists():
                raise JournalError(
                    f"there is no journal {self.path}: name it with --journal FILE; `run` and `fleet` create one"
                )
            where += "?mode=ro"
        else:
            self._lock = _locked(self._resolved, shown=self.path)
            self._require_one_name()
            self.is_new = self._resolved.stat().st_size == 0
        # The members of a fleet move between threads, but only one thread at a time uses a journal.
        database = sqlite3.connect(where, uri=True, isolation_level=None, check_same_thread=False)
        self._database = database
        database.row_factory = sqlite3.Row
        self.is_new = not read_only and _has_no_schema(database)
        # Checked before the first write: a file of another program stays as it is.
        # A read-only open never migrates the file; columns that an earlier version lacks are unknown.
        if not self.is_new and _version(database) not in {VERSION, *UPGRADES}:
            raise JournalError(f"{self.path} is not a journal that this version of the client can read")
        if not read_only:
            if self._in_fleet:
                # The fleet fsyncs the file before it begins a new log, which then covers it.
                database.execute("PRAGMA synchronous = NORMAL")
            database.execute("PRAGMA journal_mode = WAL")
            if self.is_new:
                database.executescript(f"BEGIN IMMEDIATE; {SCHEMA} {INDEXES} PRAGMA user_version = {VERSION}; COMMIT;")
            while (version := _version(database)) in UPGRADES:
                change = f"{UPGRADES[version]} PRAGMA user_version = {version + 1};"
                database.executescript(f"BEGIN IMMEDIATE; {change} COMMIT;")
            database.executescript(f"BEGIN IMMEDIATE; {INDEXES} {FIRST_COMMIT} COMMIT;")
            if not self._in_fleet:
                database.execute("PRAGMA synchronous = FULL")
        self._version = _version(database)

    def _require_one_name(self) -> None:
        """Refuse a file with hard links: SQLite keeps the latest releases in a file beside the name that was used."""
        if self._resolved.stat().st_nlink > 1:
            raise JournalError(f"{self.path} has a second name (a hard link): remove the other name, or copy the file")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise self._failure(error) from error

    def _failure(self, error: sqlite3.Error | OSError) -> JournalError:
        reason = error.strerror if isinstance(error, OSError) else error
        return JournalError(f"the journal {self.path} cannot be used: {reason}")


def _version(database: sqlite3.Connection) -> int:
    version: int = database.execute("PRAGMA user_version").fetchone()[0]
    return version


def _has_no_schema(database: sqlite3.Connection) -> bool:
    tables: int = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return tables == 0 and _version(database) == 0


def _locked(path: Path, *, shown: Path) -> IO[bytes]:
    """Lock the journal for this process. Creates the folder and file if missing, readable by their owner only."""
    create_folder(path.parent, mode=0o700)
    name = _beside(path, ".lock")
    while True:
        lock = name.open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous holder may have removed the lock file between open and flock: then try again.
            if name.exists() and os.path.samestat(os.fstat(lock.fileno()), name.stat()):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
                return lock
        except BlockingIOError:
            lock.close()
            raise JournalError(f"{shown} is in use by another process") from None
        except BaseException:
            lock.close()
            raise
        lock.close()


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}{suffix}")
