"""One writer for the whole process: writes that wait at the same time share one commit and one sync of names.

Whoever waits for its write is answered only after the commit, so that acknowledged still means durable. A write that
is refused rolls back to where it began and harms none of its neighbours.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Engine

from ..errors import CoordinatorError, StoreBusy
from .blobs import Blobs
from .database import translated_errors
from .transaction import Transaction

Result = TypeVar("Result")
Work = Callable[[Transaction], Result]
_LARGEST_BATCH = 128


@dataclass(frozen=True)
class _Request:
    work: Work[Any]
    answer: Future[Any]


class Store:
    """The database and the blobs: `read` and `write` run one function inside one transaction."""

    def __init__(self, engine: Engine, blobs: Blobs) -> None:
        self.engine = engine
        self.blobs = blobs
        # How many of the counted changes this process has made.
        self.local_commits = 0
        self._waiting: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._listeners: list[Callable[[set[str]], None]] = []
        self._last_parts: list[Work[None]] = []
        self._writer = threading.Thread(target=self._write_for_ever, name="store-writer", daemon=True)
        self._writer.start()

    def on_commit(self, listener: Callable[[set[str]], None]) -> None:
        """Call `listener` with the ids of the tasks that a commit has changed, from the writer's thread."""
        self._listeners.append(listener)

    def before_commit(self, work: Work[None]) -> None:
        """Run `work` as the last part of every transaction that changes a task, in the writer's thread.

        What it raises takes the whole transaction back.
        """
        self._last_parts.append(work)

    def read(self, work: Work[Result], *, snapshot: bool = False) -> Result:
        """Run a function that only reads. Blocks; call it from a thread.

        A `snapshot` shows one moment throughout. SQLite always gives one; PostgreSQL by default one per statement.
        """
        options: dict[str, Any] = {"read_only": True}
        if snapshot and self.engine.dialect.name == "postgresql":
            options["isolation_level"] = "REPEATABLE READ"
        with (
            translated_errors(),
            self.engine.connect().execution_options(**options) as connection,
            connection.begin(),
        ):
            return work(Transaction(connection, self.blobs))

    def write(self, work: Work[Result]) -> Result:
        """Run a function that writes, and return when its effect is durable. Blocks; call it from a thread."""
        result: Result = self._submit(work).result()
        return result

    async def write_async(self, work: Work[Result]) -> Result:
        """Like `write`, for the event loop: no thread waits."""
        result: Result = await asyncio.wrap_future(self._submit(work))
        return result

    def close(self) -> None:
        """Finish what is waiting, then stop."""
        self._waiting.put(None)
        self._writer.join()
        self.engine.dispose()

    def _submit(self, work: Work[Result]) -> "Future[Result]":
        answer: Future[Result] = Future()
        self._waiting.put(_Request(work, answer))
        return answer

    def _write_for_ever(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch = [first]
            stop = False
            while len(batch) < _LARGEST_BATCH:
                try:
                    following = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if following is None:
                    stop = True
                    break
                batch.append(following)
            self._commit_together(batch)
            if stop:
                return

    def _commit_together(self, requests: list[_Request]) -> None:
        # From here on nobody can take a request back: its effect may become durable.
        batch = [request for request in requests if request.answer.set_running_or_notify_cancel()]
        outcomes: list[tuple[_Request, Any, BaseException | None]] = []
        touched: set[str] = set()
        try:
            with translated_errors(), self.engine.begin() as connection:
                transaction = Transaction(connection, self.blobs)
                for request in batch:
                    outcomes.append((request, *_outcome(transaction, request.work)))
                if transaction.touched:
                    for last_part in self._last_parts:
                        last_part(transaction)
                if transaction.published:
                    self.blobs.sync_names()
                if transaction.touched:
                    transaction.count_commit()
                touched = transaction.touched
                self.local_commits += bool(touched)
        except Exception as error:
            self.local_commits -= bool(touched)
            failure = error if isinstance(error, CoordinatorError) else StoreBusy(f"the commit failed: {error}")
            for request in batch:
                request.answer.set_exception(failure)
            return
        for listener in self._listeners:
            listener(touched)
        for request, result, refusal in outcomes:
            if refusal is None:
                request.answer.set_result(result)
            else:
                request.answer.set_exception(refusal)


def _outcome(transaction: Transaction, work: Work[Any]) -> tuple[Any, BaseException | None]:
    try:
        with _revertible(transaction):
            return work(transaction), None
    except Exception as error:
        return None, error


@contextmanager
def _revertible(transaction: Transaction) -> Iterator[None]:
    """A savepoint, and what the work had meant to announce, taken back together."""
    touched = set(transaction.touched)
    try:
        with translated_errors(), transaction.connection.begin_nested():
            yield
    except BaseException:
        transaction.touched = touched
        raise
