"""Claims of sweeps on blobs of an object store, so that no row refers to an object that is being removed.

An object cannot be removed on the condition that no row refers to it. A sweep therefore claims it in the database
first, under a lock that excludes transactions which publish blobs. From then on these refuse the blob. A finished claim
is kept for some hours: a transaction whose upload may be older than the removal looks whether the object is there.
"""

import time
from collections.abc import Collection

from sqlalchemy import Connection, bindparam, delete, insert, select, text, update

from ...clock import SECOND, Micros
from ..schema import blob_removals

# After this time another process takes over a claim. The process that has made it gives up much earlier.
_ABANDONED_S = 900.0
# Finished claims are kept for so long: longer than any process waits between an upload and its row.
_KEPT_S = 4 * 3600.0
# An arbitrary number that no other part of this program uses as a lock.
_LOCK = 7_103_265_119
_STATE = select(blob_removals.c.finished_at).where(blob_removals.c.digest == bindparam("digest"))


class RemovalRows:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._is_shared = False

    def state(self, digest: str) -> bool | None:
        """Whether the removal of this blob is finished; None if there is no claim. None is made before the commit."""
        if not self._is_shared:
            self._lock(shared=True)
            self._is_shared = True
        row = self._connection.execute(_STATE, {"digest": digest}).one_or_none()
        return None if row is None else row.finished_at is not None

    def claim(self, digests: Collection[str]) -> list[str]:
        """Claim blobs, and what other processes have left claimed; the blobs that may be removed now.

        The caller has called `lock` before it has looked which blobs are not referred to.
        """
        now, claims = self._now(), blob_removals.c
        self._connection.execute(delete(blob_removals).where(claims.finished_at < now - round(_KEPT_S * SECOND)))
        known = self._connection.execute(select(claims.digest, claims.started_at, claims.finished_at)).all()
        mine = {row.digest for row in known if row.finished_at is None and self._is_abandoned(row.started_at, now)}
        mine |= set(digests) - {row.digest for row in known if row.finished_at is None}
        if mine:
            self._connection.execute(delete(blob_removals).where(claims.digest.in_(mine)))
            self._connection.execute(insert(blob_removals), [{"digest": one, "started_at": now} for one in mine])
        return sorted(mine)

    def finish(self, digests: Collection[str]) -> None:
        """The claimed blobs are gone."""
        claims = blob_removals.c
        self._connection.execute(
            update(blob_removals)
            .where(claims.digest.in_(digests), claims.finished_at.is_(None))
            .values(finished_at=self._now())
        )

    def lock(self) -> None:
        """Wait for the transactions that publish blobs, and make later ones wait, until the commit."""
        self._lock(shared=False)

    def _lock(self, *, shared: bool) -> None:
        """On SQLite all transactions that write run one after the other."""
        if self._connection.dialect.name == "postgresql":
            name = "pg_advisory_xact_lock_shared" if shared else "pg_advisory_xact_lock"
            self._connection.execute(text(f"SELECT {name}({_LOCK})"))

    def _now(self) -> Micros:
        """The time of the database, because the clocks of its servers may differ."""
        if self._connection.dialect.name == "postgresql":
            micros = self._connection.execute(text("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"))
            return int(micros.scalar_one())
        return time.time_ns() // 1000

    def _is_abandoned(self, started_at: Micros, now: Micros) -> bool:
        return started_at < now - round(_ABANDONED_S * SECOND)
