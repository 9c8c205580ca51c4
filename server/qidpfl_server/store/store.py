"""The store: readers in their own transactions, and one writer thread that commits waiting writes together.

Writes that wait at the same time share one commit and one fsync of blob names. The store answers a write only after the
commit, so that acknowledged means durable. A write that fails is rolled back to its savepoint; the others in the same
commit are not affected.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine

from qidpfl_shared.protocol.signatures import SigningKey

from ..clock import Micros
from ..errors import CoordinatorError, StoreBusy, SuspectedDamage
from .blobs import Blobs
from .changes.feed import ChangeFeed
from .changes.known import Change, KnownChanges
from .database import check_integrity, data_version, translated, translated_errors
from .repositories.chain import Head
from .settled import SettledSums
from .store_clock import DatabaseTime, StoreClock
from .transaction import Transaction

Result = TypeVar("Result")
Item = TypeVar("Item")
Work = Callable[[Transaction], Result]
# A task and the number of one of its rounds.
RoundKey = tuple[str, int]
# Gets all items of a round that wait at the same time; returns, in order, the result or the error of each.
BatchWork = Callable[[Transaction, str, int, Sequence[Item]], Sequence[Result | Exception]]
_MAX_BATCH = 128
_LONG_READ = "SET LOCAL idle_in_transaction_session_timeout = '10min'"
# The heads of more chains than this are read again.
_MAX_HEADS = 4096


@dataclass(frozen=True, eq=False)
class _Request:
    """A write that waits. One with a `round_key` is run together with others that have the same key and work.

    `task_id` is the task whose rows it changes, if it is known.
    """

    work: Callable[..., Any]
    round_key: RoundKey | None = None
    item: Any = None
    task_id: str | None = None
    answer: Future[Any] = field(default_factory=Future)


class Store:
    """The database and the blobs: `read` and `write` run one function inside one transaction."""

    def __init__(self, engine: Engine, blobs: Blobs, key: SigningKey | None = None) -> None:
        self.engine = engine
        self.blobs = blobs
        # Signs the heads of the chains; None for a store that has no key yet, and for a command that only reads.
        self.key = key
        # The counted commits that this process knows.
        self.changes = KnownChanges()
        self.time = DatabaseTime(engine)
        self._waiting: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        # Used by the writer thread only: its connection to a SQLite file, and what it remembers of the rows.
        self._connection: Connection | None = None
        self._derived: dict[Hashable, object] = {}
        self._heads: dict[str, Head] = {}
        self._seen: tuple[object, int] | None = None
        # Shared by the transactions that only read.
        self._settled = SettledSums()
        self._listeners: list[Callable[[set[str]], None]] = []
        self._last_parts: list[Work[None]] = []
        self._writer = threading.Thread(target=self._run_writer, name="store-writer", daemon=True)
        self._writer.start()

    def on_commit(self, listener: Callable[[set[str]], None]) -> None:
        """Call `listener` in the writer thread with the ids of the tasks that a commit has changed."""
        self._listeners.append(listener)

    def before_commit(self, work: Work[None]) -> None:
        """Run `work` in the writer thread as the last part of every transaction that changes a task, or makes it due.

        An error that it raises rolls the whole transaction back.
        """
        self._last_parts.append(work)

    def follow(self, on_change: Callable[[Change], None], on_connected: Callable[[], None]) -> ChangeFeed | None:
        """Call `on_change` for each announced commit, in a thread; None if this database announces nothing."""
        return None if self.has_one_server else ChangeFeed(self.engine, self.time, on_change, on_connected)

    def now(self) -> Micros:
        """The time of the database."""
        return StoreClock(self.time).now()

    def read(self, work: Work[Result], *, snapshot: bool = False) -> Result:
        """Run a function that only reads. It blocks: call it from a thread.

        With `snapshot` all statements see the same moment. SQLite always does this; PostgreSQL by default does not.
        """
        options: dict[str, Any] = {"read_only": True}
        if snapshot and self.engine.dialect.name == "postgresql":
            options["isolation_level"] = "REPEATABLE READ"
        with (
            translated_errors(),
            self.engine.connect().execution_options(**options) as connection,
            connection.begin(),
        ):
            if "isolation_level" in options:
                # What reads a snapshot computes between its statements, and holds no lock that others wait for.
                connection.exec_driver_sql(_LONG_READ)
            return work(Transaction(connection, self.blobs, self.key, settled=self._settled))

    def write(self, work: Work[Result]) -> Result:
        """Run a function that writes; return when its effect is durable. It blocks: call it from a thread."""
        result: Result = self._submit(_Request(work)).result()
        return result

    async def write_async(self, work: Work[Result], *, task_id: str | None = None) -> Result:
        """Like `write`, for the event loop: no thread waits. Writes that name the same `task_id` share a commit."""
        result: Result = await asyncio.wrap_future(self._submit(_Request(work, task_id=task_id)))
        return result

    async def write_batched(self, work: BatchWork[Item, Result], round_key: RoundKey, item: Item) -> Result:
        """Like `write_async`, for many small writes to one round: one call of `work` for all that wait together.

        A batch is what arrived during the previous commit: a request never waits for a batch to fill. Raises the
        error that `work` returned for this item, or the one that it raised for the batch.
        """
        request = _Request(work, round_key, item, task_id=round_key[0])
        result: Result = await asyncio.wrap_future(self._submit(request))
        return result

    @property
    def has_one_server(self) -> bool:
        """Whether no other server can use this store: a server locks a SQLite file for itself."""
        return self.engine.dialect.name == "sqlite"

    def is_damaged(self) -> bool:
        """Whether a check of the whole database file finds damage; False also if the file cannot be read now."""
        try:
            with translated_errors():
                return bool(check_integrity(self.engine))
        except SuspectedDamage:
            return True
        except StoreBusy:
            return False

    def close(self) -> None:
        """Finish the waiting writes, then stop."""
        self._waiting.put(None)
        self._writer.join()
        if self._connection is not None:
            self._connection.close()
        self.engine.dispose()

    def _submit(self, request: _Request) -> Future[Any]:
        self._waiting.put(request)
        return request.answer

    def _run_writer(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch = [first]
            stop = False
            while len(batch) < _MAX_BATCH:
                try:
                    following = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if following is None:
                    stop = True
                    break
                batch.append(following)
            for part in [batch] if self.has_one_server else _apart(batch):
                self._commit(part)
            if stop:
                return

    def _commit(self, requests: list[_Request]) -> None:
        # From here on a request cannot be cancelled: its effect may become durable.
        batch = [request for request in requests if request.answer.set_running_or_notify_cancel()]
        outcomes: list[tuple[_Request, Any]] = []
        changed: set[str] = set()
        counted = False
        try:
            with self._writing() as transaction:
                groups = _grouped(batch)
                for group in groups:
                    outcomes += zip(group, self._run(group, transaction, alone=len(groups) == 1), strict=True)
                self._finish(transaction)
                changed = transaction.touched | transaction.due
                counted = transaction.is_counted
        except _GroupFailed as failed:
            assert isinstance(failed.__cause__, Exception)
            outcomes = [(request, translated(failed.__cause__)) for request in batch]
        except Exception as error:
            if counted:
                self.changes.take_back_own()
            failure = translated(error)
            if not isinstance(failure, CoordinatorError):
                # Clients read this text, so it does not name the file of an error of the disk.
                reason = error.strerror if isinstance(error, OSError) else error
                failure = StoreBusy(f"the commit failed: {reason}")
            outcomes = [(request, failure) for request in batch]
        else:
            for listener in self._listeners:
                listener(changed)
        for request, result in outcomes:
            if isinstance(result, Exception):
                request.answer.set_exception(result)
            else:
                request.answer.set_result(result)

    @contextmanager
    def _writing(self) -> Iterator[Transaction]:
        """A writing transaction, which is committed at the end of the block.

        The writer keeps its connection to a SQLite file, because only that connection tells whether another one has
        changed the file. As long as none has, it need not read the heads of the chains again.
        """
        if not self.has_one_server:
            with self.engine.begin() as connection:
                yield Transaction(connection, self.blobs, self.key, self._derived)
            return
        if self._connection is None:
            self._connection = self.engine.connect()
        try:
            with self._connection.begin():
                seen = data_version(self._connection)
                if seen != self._seen:
                    self._derived.clear()
                    self._heads.clear()
                transaction = Transaction(self._connection, self.blobs, self.key, self._derived, heads=self._heads)
                yield transaction
            self._seen = seen
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            self._heads.update(transaction.chain.heads)
        except _GroupFailed:
            raise
        except BaseException:
            # It is not known what the file has now, and whether this connection still works.
            self._seen = None
            self._connection.close()
            self._connection = None
            raise

    def _run(self, group: Sequence[_Request], transaction: Transaction, *, alone: bool) -> Sequence[Any]:
        """The results of a group. Raises `_GroupFailed` if it fails alone: nothing is left to commit then."""
        # A group that is alone needs no savepoint.
        savepoint = nullcontext() if alone else transaction.connection.begin_nested()
        restore = transaction.saved()
        try:
            with savepoint:
                results = _results(group, transaction)
                transaction.chain.flush()
                return results
        except Exception as error:
            if alone:
                raise _GroupFailed from error
            restore()
            return [translated(error)] * len(group)

    def _finish(self, transaction: Transaction) -> None:
        """The last steps before the commit."""
        transaction.chain.seal(self.key)
        if transaction.touched or transaction.due:
            for last_part in self._last_parts:
                last_part(transaction)
        if transaction.renames_files:
            self.blobs.sync_names()
        if transaction.is_counted:
            self.changes.add_own(transaction.count_commit())


class _GroupFailed(Exception):
    """The only group of a transaction has failed, with the error that is the cause. The transaction is rolled back."""


def _results(group: Sequence[_Request], transaction: Transaction) -> Sequence[Any]:
    """Run the work of a group; the results of its requests in their order."""
    work, round_key = group[0].work, group[0].round_key
    if round_key is None:
        return [work(transaction)]
    results: Sequence[Any] = work(transaction, *round_key, [request.item for request in group])
    return results


def _apart(batch: list[_Request]) -> list[list[_Request]]:
    """The requests of each task, and each request whose task is not known, in transactions of their own.

    Each transaction locks the row of its task first. If it locked those of two tasks, two servers could lock them in
    opposite orders, and PostgreSQL would notice only after a second that they wait for each other.
    """
    parts: dict[object, list[_Request]] = {}
    for request in batch:
        parts.setdefault(request if request.task_id is None else request.task_id, []).append(request)
    return list(parts.values())


def _grouped(batch: list[_Request]) -> list[list[_Request]]:
    """Requests that run in one call, in the order of their first ones."""
    groups: dict[object, list[_Request]] = {}
    for request in batch:
        key = request if request.round_key is None else (request.work, request.round_key)
        groups.setdefault(key, []).append(request)
    return list(groups.values())
