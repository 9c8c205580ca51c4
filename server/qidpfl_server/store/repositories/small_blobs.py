"""Blobs that are rows of the database, by digest. They need no entry in a chain: the digest guards the bytes."""

from collections.abc import Mapping

from sqlalchemy import Connection, bindparam, delete, select, text

from ..prepared import Prepared
from ..schema import small_blobs

# A blob that is written again gets a new number, so that a sweep that has seen the old one does not delete it.
_PUT = Prepared(
    text(
        "INSERT INTO small_blobs (digest, writes, data) VALUES (:digest, 1, :data)"
        " ON CONFLICT (digest) DO UPDATE SET writes = small_blobs.writes + 1, data = excluded.data"
    )
)
_GET = Prepared(select(small_blobs.c.data).where(small_blobs.c.digest == bindparam("digest")))
_HAS = select(small_blobs.c.writes).where(small_blobs.c.digest == bindparam("digest"))
_REMOVE = delete(small_blobs).where(
    small_blobs.c.digest == bindparam("of_digest"), small_blobs.c.writes == bindparam("of_writes")
)


class SmallBlobRows:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def put(self, digest: str, data: bytes) -> None:
        """Store the bytes of a digest."""
        _PUT.run(self._connection, {"digest": digest, "data": data})

    def get(self, digest: str) -> object | None:
        """The bytes as they are stored, unchecked; None if there are none."""
        stored: object | None = _GET.run(self._connection, {"digest": digest}).scalar()
        return stored

    def has(self, digest: str) -> bool:
        return self._connection.execute(_HAS, {"digest": digest}).scalar() is not None

    def writes(self) -> dict[str, int]:
        """How often each blob was written, by digest."""
        rows = self._connection.execute(select(small_blobs.c.digest, small_blobs.c.writes))
        return {digest: writes for digest, writes in rows}

    def remove(self, writes: Mapping[str, int]) -> int:
        """Remove the blobs that were not written again since; the number of removed ones."""
        return sum(
            self._connection.execute(_REMOVE, {"of_digest": digest, "of_writes": count}).rowcount
            for digest, count in writes.items()
        )
