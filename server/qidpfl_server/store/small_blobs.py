"""Reads the blobs that are rows of the database. The latest ones stay in memory: the next settlement needs them."""

import threading
from collections import OrderedDict

from sqlalchemy import Engine

from .database import translated_errors
from .repositories.small_blobs import SmallBlobRows

# The largest blob that is a row. SQLite writes larger ones more slowly than the file system does.
SMALL_BYTES = 64 * 1024
_REMEMBERED_BYTES = 8 << 20


class SmallBlobs:
    """The rows of all transactions. `Transaction.publish` writes them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._recent: OrderedDict[str, bytes] = OrderedDict()
        self._recent_bytes = 0
        # Requests, settlements and the writer use it at the same time.
        self._lock = threading.Lock()

    def recent(self, digest: str) -> bytes | None:
        """The bytes if this process has just written them. They were checked then."""
        return self._recent.get(digest)

    def remember(self, digest: str, data: bytes) -> None:
        """Keep the bytes for the next reads, and forget the oldest ones."""
        with self._lock:
            if digest in self._recent:
                return
            self._recent[digest] = data
            self._recent_bytes += len(data)
            while self._recent_bytes > _REMEMBERED_BYTES:
                _, oldest = self._recent.popitem(last=False)
                self._recent_bytes -= len(oldest)

    def stored(self, digest: str) -> object | None:
        """The bytes of a row as they are stored, unchecked; None if there is no such row."""
        with translated_errors(), self._engine.connect().execution_options(read_only=True) as connection:
            return SmallBlobRows(connection).get(digest)

    def has(self, digest: str) -> bool:
        """Whether there is such a row."""
        with translated_errors(), self._engine.connect().execution_options(read_only=True) as connection:
            return SmallBlobRows(connection).has(digest)
