"""The log of a fleet: one fsync makes the commits of many journals durable.

Each member of a fleet has its own journal, a SQLite file. A commit of such a journal reaches the file at once, without
an fsync, and its statements are appended to the log of the folder. The member goes on when the log is fsynced; members
that commit at the same time share the fsync. A kill loses nothing: the files are complete. After a power cut a file may
lack its last commits. They are in the log, with a number for each commit of a journal, and the client that next opens
the journal for writing repeats those that the file does not have.

The log covers one run. When a fleet starts, it brings all journals up to date, fsyncs them and begins a new log.
"""

import hashlib
import json
import os
import struct
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qidpfl_shared.durable_files import fsync_dir

from ..errors import JournalError

NAME = "fleet.log"
# Longer commits are fsynced in their own file: writing them twice costs more than an fsync.
LONGEST_RECORD = 1 << 20
# A longer log begins anew, after an fsync of the journals that are in it.
_LONGEST_LOG = 256 << 20
_MAGIC = b"QJL1"
_FRAME = struct.Struct(">4sIQ16s")
SqlValue = str | int | float | bytes | None
Waiting = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, kw_only=True)
class LoggedCommit:
    """One commit of a journal. `sequence` counts the commits of this journal that went through a log, from 1."""

    journal: str
    sequence: int
    statements: Sequence[tuple[str, Sequence[SqlValue]]]

    def encoded(self) -> bytes:
        """The commit as a record of the log. Bytes follow on the JSON text in their order."""
        blobs = [value for _, values in self.statements for value in values if isinstance(value, bytes)]
        statements = [
            (sql, [{"bytes": len(value)} if isinstance(value, bytes) else value for value in values])
            for sql, values in self.statements
        ]
        text = json.dumps([self.journal, self.sequence, statements]).encode()
        content = b"".join((text, *blobs))
        return _FRAME.pack(_MAGIC, len(text), len(content) - len(text), _checksum(content)) + content


def read_log(folder: Path) -> dict[str, list[LoggedCommit]]:
    """The commits in the log of a folder by journal, in their order; none if there is no log.

    The log ends at its first incomplete record: what follows was never acknowledged.
    """
    found: dict[str, list[LoggedCommit]] = defaultdict(list)
    try:
        data = (folder / NAME).read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise JournalError(f"{folder / NAME} cannot be read: {error.strerror or error}") from error
    start = 0
    while (end := _end_of_record(data, start)) is not None:
        commit = _decoded(data[start:end])
        found[commit.journal].append(commit)
        start = end
    return dict(found)


class GroupLog:
    """The open log of a running fleet. Many threads may commit at the same time.

    The process must hold the locks of all journals in the folder that it opens. `journals` are their files. `waiting`
    is the block in which a thread waits for the disk.
    """

    def __init__(self, folder: Path, journals: Iterable[Path], *, waiting: Waiting = nullcontext) -> None:
        self.path = folder / NAME
        self._waits = waiting
        self._changed = threading.Condition()
        self._waiting: list[bytes] = []
        self._added = self._durable = 0
        self._is_flushing = False
        self._failure: OSError | None = None
        self._dirty: set[Path] = set()
        for journal in journals:
            sync_journal(journal)
        self._file = self._begun()

    def commit(self, journal: Path, record: bytes) -> None:
        """Return when the record is durable. The journal already has it.

        Raises `JournalError` if the log cannot be written; no later commit succeeds then.
        """
        with self._waits(), self._changed:
            self._waiting.append(record)
            self._dirty.add(journal)
            self._added += 1
            ticket = self._added
            while self._durable < ticket:
                if self._failure is not None:
                    reason = self._failure.strerror or self._failure
                    raise JournalError(f"the log of the fleet, {self.path}, cannot be written: {reason}")
                if self._is_flushing:
                    self._changed.wait()
                else:
                    self._flush()

    def close(self, journals: Iterable[Path]) -> None:
        """Close the log, after all journals were closed, and remove it if they are durable without it.

        SQLite fsyncs a file when it is closed, unless the disk is full or another process reads it.
        """
        os.close(self._file)
        with suppress(OSError):
            for journal in journals:
                sync_journal(journal)
            self.path.unlink(missing_ok=True)

    def _flush(self) -> None:
        """Write what waits, for all members that wait. Called with the lock, which it releases during the fsync."""
        records, self._waiting, until = self._waiting, [], self._added
        dirty = self._dirty
        self._is_flushing = True
        self._changed.release()
        failure = None
        try:
            _write(self._file, b"".join(records))
            os.fdatasync(self._file)
            is_long = os.fstat(self._file).st_size > _LONGEST_LOG
        except OSError as error:
            failure, is_long = error, False
        finally:
            self._changed.acquire()
            self._is_flushing = False
        if failure is None:
            self._durable = until
        else:
            self._failure = failure
        if is_long:
            self._dirty = set()
            self._begin_anew(dirty)
        self._changed.notify_all()

    def _begin_anew(self, dirty: set[Path]) -> None:
        """Begin a new log once the journals are durable. All records of the old one are in their journals."""
        try:
            for journal in dirty:
                sync_journal(journal)
            os.close(self._file)
            self._file = self._begun()
        except OSError as error:
            self._failure = error

    def _begun(self) -> int:
        """A new, empty log in place of the old one. The journals are durable without the old one."""
        self.path.unlink(missing_ok=True)
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        fsync_dir(self.path.parent)
        return file


def sync_journal(journal: Path) -> None:
    """Make all commits of a journal durable. They are in its log file until SQLite itself moves and fsyncs them.

    The main file is left alone: closing it here would release the locks of SQLite on it.
    """
    with suppress(FileNotFoundError):
        file = os.open(journal.with_name(f"{journal.name}-wal"), os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _end_of_record(data: bytes, start: int) -> int | None:
    """Where the record ends that begins here; None if there is no complete one."""
    if len(data) - start < _FRAME.size:
        return None
    magic, text, blobs, checksum = _FRAME.unpack_from(data, start)
    content = start + _FRAME.size
    end: int = content + text + blobs
    if magic != _MAGIC or end > len(data) or _checksum(data[content:end]) != checksum:
        return None
    return end


def _decoded(record: bytes) -> LoggedCommit:
    _, length, _, _ = _FRAME.unpack_from(record)
    place = _FRAME.size + length
    journal, sequence, statements = json.loads(record[_FRAME.size : place])
    decoded: list[tuple[str, list[SqlValue]]] = []
    for sql, values in statements:
        row: list[SqlValue] = []
        for value in values:
            if isinstance(value, dict):
                row.append(record[place : place + value["bytes"]])
                place += value["bytes"]
            else:
                row.append(value)
        decoded.append((sql, row))
    return LoggedCommit(journal=journal, sequence=sequence, statements=decoded)
