"""The journal: what one data set has promised, released and earned, over all servers and tasks. It survives `kill -9`.

One SQLite file per data set. What is promised and what is released is on the disk before it leaves; what a coordinator
would tell again (receipts, payments) gets there with the next of these. Who loses it loses the memory of what
was released: the client then enrols as somebody new, and nothing stops it from selling the same records again.
"""

import math
import sqlite3
from dataclasses import dataclass, replace
from pathlib import Path

from qidpfl_shared.core.privacy.account import PrivacyAccount, Release
from qidpfl_shared.protocol.messages import SpendState

from ..errors import JournalError
from ..participant.verification import SeenOffer
from .sqlite_file import JournalFile


@dataclass(frozen=True, kw_only=True)
class Membership:
    """A task that this data set has joined, or is about to. The token is a secret; it is never shown."""

    task_id: str
    server: str
    enrolment_key: str
    spec: str
    spec_digest: str
    client_id: str | None = None
    token: str | None = None
    ordinal: int | None = None
    profile: str | None = None
    lifetime_rho: float | None = None

    def __repr__(self) -> str:
        return f"Membership(task_id={self.task_id!r}, server={self.server!r}, client_id={self.client_id!r})"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One release, from its reservation on, and the seconds of training that it took."""

    task_id: str
    release: str
    mechanism: str
    rho: float
    proven_rho: float
    state: SpendState
    digest: str | None = None
    acknowledged: bool = False
    payment_micro: int | None = None
    training_s: float | None = None


class Journal:
    """The journal of one data set; only one process at a time may write it."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._file = JournalFile(path, read_only=read_only)

    def close(self) -> None:
        """Let others use it. One that was made for nothing is removed."""
        self._file.close(discard=self._file.is_new and not self.memberships())

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the data set and its tasks ----------------------------------------------------------------------------------

    def check_data_set(self, fingerprint: str) -> None:
        """Refuse another data set than the one that the journal is tied to, if it is."""
        known = self._file.one("SELECT fingerprint FROM data_set")
        if known is not None and known["fingerprint"] != fingerprint:
            raise JournalError(f"{self.path} is the journal of another data set; give this one a journal of its own")

    def bind(self, fingerprint: str) -> None:
        """Tie the journal to a data set at its first use; refuse another one ever after."""
        self.check_data_set(fingerprint)
        with self._file.transaction() as database:
            database.execute("INSERT INTO data_set SELECT ? WHERE NOT EXISTS (SELECT 1 FROM data_set)", [fingerprint])

    def membership(self, task_id: str) -> Membership | None:
        """What is known of a task."""
        row = self._file.one("SELECT * FROM memberships WHERE task_id = ?", task_id)
        return None if row is None else Membership(**dict(row))

    def memberships(self) -> list[Membership]:
        """All tasks that this data set has joined."""
        return [Membership(**dict(row)) for row in self._file.all("SELECT * FROM memberships ORDER BY rowid")]

    def save_membership(self, membership: Membership) -> None:
        """Write down what is known of a task now."""
        with self._file.transaction() as database:
            _put(database, "REPLACE INTO memberships", vars(membership))

    def introduce(self, membership: Membership, histogram: Entry, *, account: PrivacyAccount) -> None:
        """Write down the profile and charge its histogram, both or neither (`ReleaseRefused`)."""
        account.charge(_release(histogram))
        with self._file.transaction() as database:
            _put(database, "REPLACE INTO memberships", vars(membership))
            _put(database, "INSERT INTO entries", _values(histogram))

    def forget_membership(self, task_id: str) -> None:
        """Forget a task in which nothing was released."""
        with self._file.transaction() as database:
            database.execute("DELETE FROM memberships WHERE task_id = ?", [task_id])

    def latest_offer(self, task_id: str) -> SeenOffer | None:
        """The latest round that was announced in a task."""
        row = self._file.one("SELECT * FROM offers WHERE task_id = ? ORDER BY round_number DESC LIMIT 1", task_id)
        return None if row is None else SeenOffer(**{name: row[name] for name in SeenOffer.__dataclass_fields__})

    def remember_offer(self, task_id: str, offer: SeenOffer) -> None:
        """Write down what a round is about, before answering it.

        Nothing is released on it before a reservation, which is synced, and this with it.
        """
        with self._file.transaction(synced=False) as database:
            _put(database, "INSERT OR IGNORE INTO offers", {"task_id": task_id} | vars(offer))

    # --- the privacy account -----------------------------------------------------------------------------------------

    def account(self, *, lifetime_rho: float = math.inf, accept_unproven: bool = False) -> PrivacyAccount:
        """What all tasks together have released or reserved, under the owner's limit."""
        releases = tuple(_release(entry) for entry in self.entries() if entry.state is not SpendState.FREED)
        return PrivacyAccount(lifetime_rho=lifetime_rho, accept_unproven=accept_unproven, releases=releases)

    def entries(self, task_id: str | None = None) -> list[Entry]:
        """All entries in their order, or those of one task."""
        rows = self._file.all("SELECT * FROM entries WHERE ? IN ('', task_id) ORDER BY position", task_id or "")
        return [_entry(row) for row in rows]

    def entry(self, task_id: str, release: str) -> Entry | None:
        """One entry, if it is there."""
        row = self._file.one("SELECT * FROM entries WHERE task_id = ? AND release = ?", task_id, release)
        return None if row is None else _entry(row)

    def payload(self, task_id: str, release: str) -> bytes | None:
        """The bytes of a release that is not acknowledged yet."""
        row = self._file.one("SELECT payload FROM entries WHERE task_id = ? AND release = ?", task_id, release)
        return None if row is None else row["payload"]

    def reserve(self, entry: Entry, *, account: PrivacyAccount) -> None:
        """Add an entry, also in the place of a freed one, if the account admits it.

        Raises `ReleaseRefused` where it does not; nothing is written then.
        """
        account.charge(_release(entry))
        with self._file.transaction() as database:
            _clear(database, entry, SpendState.FREED)
            _put(database, "INSERT INTO entries", _values(entry))

    def record_foreign(self, entry: Entry) -> bool:
        """Charge a release that the coordinator has seen, whatever the limits say; False where it is known.

        It may only add: where this journal has sent other bytes in that round, or is about to, both count and these
        are not sent any more.
        """
        known = self.entry(entry.task_id, entry.release)
        if known is not None and known.digest == entry.digest:
            return False
        if known is not None and known.state is SpendState.RESERVED:
            entry = replace(entry, rho=max(entry.rho, known.rho), proven_rho=max(entry.proven_rho, known.proven_rho))
        elif known is not None and known.state is not SpendState.FREED:
            entry = replace(entry, release=f"{entry.release}/{entry.digest}")
            if self.entry(entry.task_id, entry.release) is not None:
                return False
            self.give_up(known.task_id, known.release)
        with self._file.transaction() as database:
            _clear(database, entry, SpendState.FREED, SpendState.RESERVED)
            _put(database, "INSERT INTO entries", _values(entry))
        return True

    def spend(
        self, task_id: str, release: str, *, digest: str, payload: bytes, training_s: float | None = None
    ) -> None:
        """The bytes are about to leave: from now on the budget is spent, and only these bytes may be sent."""
        state = SpendState.SPENT.value
        self._change(task_id, release, state=state, digest=digest, payload=payload, training_s=training_s)

    def last_training_s(self, task_id: str) -> float | None:
        """How long the latest training in a task took, as far as is known."""
        trained = [entry.training_s for entry in self.entries(task_id) if entry.training_s is not None]
        return trained[-1] if trained else None

    def acknowledge(self, task_id: str, release: str) -> None:
        """The coordinator has the bytes, durably: they need not be kept. Forgotten, it would be asked again."""
        self._change(task_id, release, synced=False, acknowledged=1, payload=None)

    def free(self, task_id: str, release: str) -> None:
        """Nothing was sent, and nothing will be."""
        self._change(task_id, release, state=SpendState.FREED.value)

    def give_up(self, task_id: str, release: str) -> None:
        """The bytes were sent, and refused or too late: spent, unpaid."""
        self._change(task_id, release, state=SpendState.SPENT_UNPAID.value, payload=None)

    def pay(self, task_id: str, release: str, payment_micro: int, *, accepted: bool) -> None:
        """Record what the coordinator paid; a release that was not accepted is spent for nothing.

        Forgotten, it would be read again.
        """
        state = SpendState.SPENT if accepted else SpendState.SPENT_UNPAID
        self._change(task_id, release, synced=False, payment_micro=payment_micro, state=state.value, payload=None)

    def _change(self, task_id: str, release: str, *, synced: bool = True, **values: object) -> None:
        assignments = ", ".join(f"{column} = ?" for column in values)
        with self._file.transaction(synced=synced) as database:
            cursor = database.execute(
                f"UPDATE entries SET {assignments} WHERE task_id = ? AND release = ?",
                [*values.values(), task_id, release],
            )
            if cursor.rowcount != 1:
                raise JournalError(f"{self.path} has no entry {release} of task {task_id}")


def _put(database: sqlite3.Connection, where: str, values: dict[str, object]) -> None:
    marks = ", ".join("?" * len(values))
    database.execute(f"{where} ({', '.join(values)}) VALUES ({marks})", [*values.values()])


def _clear(database: sqlite3.Connection, entry: Entry, *states: SpendState) -> None:
    for state in states:
        database.execute(
            "DELETE FROM entries WHERE task_id = ? AND release = ? AND state = ?",
            [entry.task_id, entry.release, state.value],
        )


def _values(entry: Entry) -> dict[str, object]:
    return vars(entry) | {
        "proven_rho": None if math.isinf(entry.proven_rho) else entry.proven_rho,
        "state": entry.state.value,
        "acknowledged": int(entry.acknowledged),
    }


def _release(entry: Entry) -> Release:
    return Release(
        name=f"{entry.task_id}/{entry.release}",
        mechanism=entry.mechanism,
        rho=entry.rho,
        proven_rho=entry.proven_rho,
    )


def _entry(row: sqlite3.Row) -> Entry:
    # An older journal that is only looked at does not have all columns.
    values = {name: row[name] for name in Entry.__dataclass_fields__ if name in row.keys()}  # noqa: SIM118
    values["proven_rho"] = math.inf if row["proven_rho"] is None else row["proven_rho"]
    values["state"] = SpendState(row["state"])
    values["acknowledged"] = bool(row["acknowledged"])
    return Entry(**values)
