"""The journal: what one data set has promised, released and earned, over all servers and tasks.

One SQLite file per data set. The account belongs to the lineage of the data set: records that are added, removed or
edited later share what was spent before.

The file survives `kill -9`. A promise or a release is fsynced before it leaves the machine. Receipts and payments are
written with the next promise or release, because the coordinator can repeat them: a round costs two commits. An owner
who loses the file loses the record of all releases: the client then enrols as a new one, and nothing prevents a second
release of the same records.
"""

import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from qidpfl_shared.core.privacy.account import DuplicateRelease, PrivacyAccount
from qidpfl_shared.core.privacy.running_account import RunningAccount
from qidpfl_shared.protocol.ledger import SpendState

from ..errors import JournalError
from .entries import (
    COLUMNS,
    PROVEN_DEVICES,
    Entry,
    Membership,
    RecordsVersion,
    SeenOffer,
    columns_of,
    entry_of,
    histogram_entry,
    release_of_entry,
    round_entry,
    seen_offer,
)
from .group_log import GroupLog, LoggedCommit, SqlValue
from .limits import LifetimeLimits, now
from .memory import JournalMemory
from .receipts import KeptReceipts
from .sqlite_file import Changes, JournalFile

DEFAULT_PATH = Path("qidpfl-journal.sqlite")
__all__ = [
    "DEFAULT_PATH",
    "PROVEN_DEVICES",
    "Entry",
    "Journal",
    "Membership",
    "RecordsVersion",
    "SeenOffer",
    "histogram_entry",
    "round_entry",
]


class Journal:
    """The journal of one data set. Only one process at a time may write it.

    All methods raise `JournalError` if the file is damaged, closed or cannot be written.
    """

    def __init__(self, path: Path, *, read_only: bool = False, logged: Sequence[LoggedCommit] | None = None) -> None:
        self.path = path
        # `logged` is what the log of the fleet has for this journal, before it joins the next one.
        self._file = JournalFile(path, read_only=read_only, logged=logged)
        # Read once: no other process changes a journal that this one may write.
        self._running: RunningAccount | None = None
        self._memory: JournalMemory | None = None if read_only else JournalMemory(self._file)
        self._read_only = read_only
        self.limits = LifetimeLimits(self._file)
        self.receipts = KeptReceipts(self._file)

    def close(self) -> None:
        """Release the file. A new file without any membership is removed."""
        self._file.close(discard=self._file.is_new and not self.memberships())

    @property
    def has_content(self) -> bool:
        """Whether something would be lost without the file."""
        return not self._file.is_new or bool(self.memberships() or self.limits.history())

    def join(self, group: GroupLog) -> None:
        """Share the fsyncs of commits with the other journals of a fleet from now on."""
        self._file.join(group)

    def flush(self) -> None:
        """Make everything durable that was written so far."""
        self._file.flush()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the data set and its tasks ----------------------------------------------------------------------------------

    def records(self) -> list[RecordsVersion]:
        """The versions of the data set that this journal was used with, oldest first."""
        rows = self._file.all("SELECT * FROM data_set ORDER BY rowid")
        return [RecordsVersion(**dict(row)) for row in rows]

    def bind(self, fingerprint: str, size: int) -> RecordsVersion | None:
        """Record the version of the data set that is used from now on.

        Returns the earlier version if the records have changed. The account stays the same.
        """
        known = self.records()
        if known and known[-1].fingerprint == fingerprint:
            return None
        with self._file.transaction() as database:
            version = RecordsVersion(fingerprint=fingerprint, size=size, recorded_at=now())
            _put(database, "INSERT INTO data_set", vars(version))
        return known[-1] if known else None

    def membership(self, task_id: str) -> Membership | None:
        """The membership in a task."""
        row = self._file.one("SELECT * FROM memberships WHERE task_id = ?", task_id)
        return None if row is None else Membership(**dict(row))

    def memberships(self) -> list[Membership]:
        """All tasks that this data set has joined, oldest first."""
        return [Membership(**dict(row)) for row in self._file.all("SELECT * FROM memberships ORDER BY rowid")]

    def save_membership(self, membership: Membership) -> None:
        """Write or replace the membership in a task."""
        with self._file.transaction() as database:
            _put(database, "REPLACE INTO memberships", vars(membership))

    def save_profile(self, membership: Membership, histogram: Entry | None, *, account: PrivacyAccount) -> None:
        """Write a membership with its profile and charge the histogram if there is one, in one transaction.

        Raises `ReleaseRefused` if the account does not admit the histogram; nothing is written then.
        """
        if histogram is not None:
            self._require_admitted(histogram, account)
        with self._counted() as totals, self._file.transaction() as database:
            _put(database, "REPLACE INTO memberships", vars(membership))
            if histogram is not None:
                self._forget(histogram.task_id, histogram.release)
                _put(database, "INSERT INTO entries", columns_of(histogram))
                totals.add(release_of_entry(histogram))

    def forget_membership(self, task_id: str) -> None:
        """Delete the membership in a task in which nothing was released."""
        with self._file.transaction() as database:
            database.execute("DELETE FROM memberships WHERE task_id = ?", [task_id])

    def latest_offer(self, task_id: str) -> SeenOffer | None:
        """The latest round that was announced in a task."""
        memory = self._memory
        if memory is not None and (known := memory.latest_offer(task_id)) is not None:
            return known
        row = self._file.one("SELECT * FROM offers WHERE task_id = ? ORDER BY round_number DESC LIMIT 1", task_id)
        if row is None:
            return None
        latest = seen_offer(row)
        if memory is not None:
            memory.keep_offer(task_id, latest, is_latest=True)
        return latest

    def offer(self, task_id: str, round_number: int) -> SeenOffer | None:
        """The terms of a round as they were announced to this journal."""
        memory = self._memory
        if memory is not None and (known := memory.offer(task_id, round_number)) is not None:
            return known
        row = self._file.one("SELECT * FROM offers WHERE task_id = ? AND round_number = ?", task_id, round_number)
        return None if row is None else seen_offer(row)

    def remember_offer(self, task_id: str, offer: SeenOffer) -> None:
        """Write the terms of a round before the client answers it.

        This needs no commit of its own: every release follows a reservation, whose commit also covers this row.
        """
        if self._memory is not None and self._memory.offer(task_id, offer.round_number) is not None:
            return
        is_new = self._file.change(*_insert("INSERT OR IGNORE INTO offers", {"task_id": task_id} | vars(offer)))
        if self._memory is not None and is_new:
            self._memory.keep_offer(task_id, offer)

    # --- the privacy account -----------------------------------------------------------------------------------------

    def account(self, *, lifetime_rho: float = math.inf, accept_unproven: bool = False) -> PrivacyAccount:
        """What all tasks together have released or reserved, under the owner's limit."""
        return self._totals.account(lifetime_rho=lifetime_rho, accept_unproven=accept_unproven)

    @property
    def _totals(self) -> RunningAccount:
        running = self._running
        if running is None:
            counted = (entry for entry in self.entries() if entry.state is not SpendState.FREED)
            running = RunningAccount(release_of_entry(entry) for entry in counted)
            if not self._read_only:
                self._running = running
        return running

    @contextmanager
    def _counted(self) -> Iterator[RunningAccount]:
        """The sums, to be changed with the file. After a failure they are read again."""
        try:
            yield self._totals
        except BaseException:
            self._running = None
            raise

    def entries(self, task_id: str | None = None) -> list[Entry]:
        """All entries in the order of their reservation, or those of one task."""
        rows = self._file.all("SELECT * FROM entries WHERE ? IN ('', task_id) ORDER BY position", task_id or "")
        return [self._entry(row) for row in rows]

    def unfinished(self, task_id: str) -> list[Entry]:
        """The entries of a task that are reserved, not acknowledged or not paid, in the order of their reservation."""
        rows = self._file.all(
            f"SELECT {COLUMNS} FROM entries WHERE task_id = ? AND (state = 'reserved' OR (state = 'spent' AND"
            " (acknowledged = 0 OR payment_micro IS NULL))) ORDER BY position",
            task_id,
        )
        return [self._entry(row) for row in rows]

    def entry(self, task_id: str, release: str) -> Entry | None:
        """One entry, or None if the journal does not have it."""
        memory = self._memory
        if memory is not None and memory.knows_entry(task_id, release):
            return memory.entry(task_id, release)
        # A journal of an earlier version that is opened read-only does not have all columns.
        columns = "*" if self._read_only else COLUMNS
        row = self._file.one(f"SELECT {columns} FROM entries WHERE task_id = ? AND release = ?", task_id, release)
        entry = None if row is None else self._entry(row)
        if memory is not None:
            memory.keep_entry(task_id, release, entry)
        return entry

    def payload(self, task_id: str, release: str) -> bytes | None:
        """The bytes of a release that is not acknowledged yet."""
        row = self._file.one("SELECT payload FROM entries WHERE task_id = ? AND release = ?", task_id, release)
        return None if row is None else row["payload"]

    def reserve(self, entry: Entry, *, account: PrivacyAccount) -> None:
        """Add an entry, or replace a freed one.

        Raises `ReleaseRefused` if the account does not admit it; nothing is written then.
        """
        self._require_admitted(entry, account)
        with self._counted() as totals, self._file.transaction() as database:
            if self.entry(entry.task_id, entry.release) is not None:
                database.execute(
                    "DELETE FROM entries WHERE task_id = ? AND release = ? AND state = ?",
                    [entry.task_id, entry.release, SpendState.FREED.value],
                )
            self._forget(entry.task_id, entry.release)
            _put(database, "INSERT INTO entries", columns_of(entry))
            totals.add(release_of_entry(entry))

    def spend(
        self, task_id: str, release: str, *, digest: str, payload: bytes, training_s: float | None = None
    ) -> None:
        """Mark a reserved release as spent, just before its bytes leave. From now on only these bytes may be sent.

        A repeat with the same bytes changes nothing. Raises `JournalError` for other bytes, and for a release that is
        not reserved: the caller must send nothing then.
        """
        known = self.entry(task_id, release)
        if known is not None and known.state is SpendState.SPENT and known.digest == digest:
            return
        self._update(
            "state = ?, digest = ?, payload = ?, training_s = ?",
            [SpendState.SPENT.value, digest, payload, training_s],
            task_id=task_id,
            release=release,
            only_reserved=True,
        )

    def mark_sent(self, task_id: str, release: str, *, digest: str) -> None:
        """Mark a reserved release as spent whose bytes this journal has lost, but the coordinator has."""
        self._update(
            "state = ?, digest = ?, acknowledged = 1",
            [SpendState.SPENT.value, digest],
            task_id=task_id,
            release=release,
            only_reserved=True,
        )

    def acknowledge(self, task_id: str, release: str) -> None:
        """Drop the bytes: the coordinator has stored them. If this is lost in a power cut, the client asks again."""
        self._update("acknowledged = 1, payload = NULL", [], task_id=task_id, release=release, synced=False)

    def free(self, task_id: str, release: str) -> None:
        """Cancel a reservation: nothing was sent, and nothing will be."""
        known = self.entry(task_id, release)
        with self._counted() as totals:
            self._update("state = ?", [SpendState.FREED.value], task_id=task_id, release=release, only_reserved=True)
            if known is not None:
                totals.remove(release_of_entry(known))

    def mark_unpaid(self, task_id: str, release: str) -> None:
        """Mark sent bytes that were refused or came too late: spent, but unpaid."""
        self._update("state = ?, payload = NULL", [SpendState.SPENT_UNPAID.value], task_id=task_id, release=release)

    def pay(self, task_id: str, release: str, payment_micro: int, *, accepted: bool) -> None:
        """Record the payment. A release that was not accepted is spent, but unpaid.

        If this is lost in a power cut, the client reads the payment again.
        """
        state = SpendState.SPENT if accepted else SpendState.SPENT_UNPAID
        self._update(
            "payment_micro = ?, state = ?, payload = NULL",
            [payment_micro, state.value],
            task_id=task_id,
            release=release,
            synced=False,
        )

    def expect_payment(self, task_id: str, release: str) -> None:
        """Mark an unpaid release, whose bytes the coordinator has, as spent: its round is settled again."""
        assignments = f"state = '{SpendState.SPENT.value}', acknowledged = 1, payment_micro = NULL, payload = NULL"
        self._update(assignments, [], task_id=task_id, release=release, synced=False)

    def _require_admitted(self, entry: Entry, account: PrivacyAccount) -> None:
        release = release_of_entry(entry)
        known = self.entry(entry.task_id, entry.release)
        if known is not None and known.state is not SpendState.FREED:
            raise DuplicateRelease(f"{release.name!r} is already recorded; charging it again would hide a release")
        account.charge(release)

    def _entry(self, row: sqlite3.Row) -> Entry:
        try:
            return entry_of(row)
        except (TypeError, ValueError) as error:
            raise JournalError(f"{self.path} is damaged: entry {row['position']!r}: {error}") from error

    def _update(
        self,
        assignments: str,
        values: list[SqlValue],
        *,
        task_id: str,
        release: str,
        synced: bool = True,
        only_reserved: bool = False,
    ) -> None:
        """Change an entry. With `only_reserved` the state is compared in the same statement that changes it.

        The caller may have read the state long before: it trains in between.
        """
        self._forget(task_id, release)
        changed = self._file.change(
            f"UPDATE entries SET {assignments} WHERE task_id = ? AND release = ? AND (? OR state = ?)",
            [*values, task_id, release, not only_reserved, SpendState.RESERVED.value],
        )
        if changed != 1:
            raise self._cannot_change(task_id, release)
        if synced:
            self._file.flush()

    def _forget(self, task_id: str, release: str) -> None:
        if self._memory is not None:
            self._memory.forget_entry(task_id, release)

    def _cannot_change(self, task_id: str, release: str) -> JournalError:
        known = self.entry(task_id, release)
        if known is None:
            return JournalError(f"{self.path} has no entry {release} of task {task_id}")
        return JournalError(f"{release} of task {task_id} is not reserved in {self.path}, but {known.state}")


def _put(database: Changes, statement: str, row: dict[str, SqlValue]) -> None:
    database.execute(*_insert(statement, row))


def _insert(statement: str, row: dict[str, SqlValue]) -> tuple[str, list[SqlValue]]:
    """The statement with the names and values of a row."""
    return f"{statement} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", [*row.values()]
