"""How the bytes of a blob are checked when they are read.

The name of a blob is the SHA-256 of its bytes. To compute it again at every read would cost more than everything else
that a round does with an update. A process therefore remembers a checksum (XXH3, 128 bits) of the blobs that it has
written and fsynced, and compares that: it finds bytes that have changed since. The SHA-256 of all other blobs is
computed: of those from before a restart, those of other processes, and in commands such as the audit.
"""

import hashlib
import threading
from typing import Protocol

from xxhash import xxh3_128

# About 3 MB. The oldest checksums are forgotten; the SHA-256 of such a blob is computed again.
_REMEMBERED = 10_000


class _Hash(Protocol):
    def update(self, data: bytes | bytearray | memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


class ContentCheck:
    """Compares bytes that are read in pieces with what is known of them. `is_slow` if it takes longer than reading."""

    def __init__(self, found: _Hash, expected: str, *, is_slow: bool) -> None:
        self._found = found
        self._expected = expected
        self.is_slow = is_slow

    def add(self, data: bytes | bytearray | memoryview) -> None:
        """Add the next bytes."""
        self._found.update(data)

    def passes(self) -> bool:
        """Whether these were the right bytes."""
        return self._found.hexdigest() == self._expected


class Checksums:
    """The checksums of the blobs that this process has written last."""

    def __init__(self, limit: int = _REMEMBERED) -> None:
        self._limit = limit
        self._by_digest: dict[str, str] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._by_digest)

    def remember(self, digest: str, checksum: str) -> None:
        """Keep the checksum of a blob that is durable, and forget the oldest one if there are too many."""
        with self._lock:
            self._by_digest[digest] = checksum
            if len(self._by_digest) > self._limit:
                del self._by_digest[next(iter(self._by_digest))]

    def check(self, digest: str) -> ContentCheck:
        """A check of the bytes of this digest, by their checksum if it is known."""
        checksum = self._by_digest.get(digest)
        if checksum is None:
            return ContentCheck(hashlib.sha256(), digest, is_slow=True)
        return ContentCheck(xxh3_128(), checksum, is_slow=False)
