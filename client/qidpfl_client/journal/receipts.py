"""The signed messages that a journal keeps, and the keys that it has pinned.

The journal keeps one message of each kind for a round; of announcements one for each attempt. So the number of rounds
bounds its size. Only the part that the signature covers is kept, so no token is in it.
"""

import json
import sqlite3
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from qidpfl_shared.protocol.chain import canonical_json
from qidpfl_shared.protocol.signatures import (
    ChainPosition,
    MessageSignature,
    SignedMessage,
    WrongSignature,
    verify,
    verify_bytes,
)

from ..errors import JournalError, UntrustedCoordinator
from .sqlite_file import JournalFile

# Each kind, and the kind of the same round that must be earlier in the chain.
_AFTER = {"budget": "announcement", "update": "budget", "result": "update"}
_KINDS = "'announcement', 'budget', 'update', 'result', 'enrolment', 'profile'"


@dataclass(frozen=True, kw_only=True)
class KeptReceipt:
    """A signed message of a task. `round_number` and `attempt` are 0 where it has none."""

    task_id: str
    kind: str
    round_number: int
    attempt: int
    sequence: int
    head: str
    body: str
    key_id: str
    signature: str

    @property
    def facts(self) -> dict[str, Any]:
        """The signed part of the message. Raises `JournalError` if the journal is damaged."""
        try:
            facts = json.loads(self.body)
        except ValueError:
            facts = None
        if not isinstance(facts, dict):
            raise JournalError(f"the journal is damaged: the {self.name} is not JSON")
        return facts

    @property
    def name(self) -> str:
        """The message in words."""
        of = f" of round {self.round_number}" if self.round_number else ""
        attempt = f", attempt {self.attempt}" if self.attempt > 1 else ""
        word = self.kind if self.kind in ("announcement", "result", "enrolment") else f"{self.kind} receipt"
        return f"{word}{of}{attempt}"

    def verify(self, public_key: str) -> None:
        """Check the signature. Raises `WrongSignature`, and `JournalError` if the journal is damaged."""
        verify(public_key, self.kind, self.facts, MessageSignature(key_id=self.key_id, value=self.signature))

    def verify_body(self, public_key: str) -> None:
        """Check the signature of a new message, whose body is canonical JSON. Raises `WrongSignature`.

        The members of a fleet get the same announcement: the same signature of the same bytes is computed once.
        """
        _verified(public_key, self.kind, self.body, self.key_id, self.signature)


@lru_cache(maxsize=64)
def _verified(public_key: str, kind: str, body: str, key_id: str, signature: str) -> None:
    verify_bytes(public_key, kind, body.encode(), MessageSignature(key_id=key_id, value=signature))


_COLUMNS = tuple(KeptReceipt.__dataclass_fields__)
_KEEP = f"REPLACE INTO receipts ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"


class KeptReceipts:
    """The tables `receipts` and `pinned_keys` of a journal file."""

    def __init__(self, file: JournalFile) -> None:
        self._file = file
        # Read once: no other process changes a journal that this one may write.
        self._pinned: dict[str, dict[str, str]] = {}
        # The furthest position in the chain of a task. After a rollback it may be too far, which is harmless.
        self._furthest: dict[str, int] = {}

    def pinned(self, task_id: str) -> dict[str, str]:
        """The pinned keys of a task by their ids, oldest first; empty if its coordinator has signed nothing."""
        if not self._file.has_receipts:
            return {}
        if task_id in self._pinned:
            return self._pinned[task_id]
        rows = self._file.all("SELECT key_id, public_key FROM pinned_keys WHERE task_id = ? ORDER BY position", task_id)
        pinned = {row["key_id"]: row["public_key"] for row in rows}
        if not self._file.read_only:
            self._pinned[task_id] = pinned
        return pinned

    def pin(self, task_id: str, key_id: str, public_key: str) -> None:
        """Trust a key from now on. The caller has checked that it is the first one, or follows on a pinned one."""
        self._pinned.pop(task_id, None)
        with self._file.transaction() as database:
            database.execute(
                "INSERT OR IGNORE INTO pinned_keys (task_id, key_id, public_key) VALUES (?, ?, ?)",
                [task_id, key_id, public_key],
            )

    def all(self, task_id: str) -> list[KeptReceipt]:
        """The kept messages of a task in the order of the chain."""
        if not self._file.has_receipts:
            return []
        return [
            _kept(row) for row in self._file.all("SELECT * FROM receipts WHERE task_id = ? ORDER BY sequence", task_id)
        ]

    def keep(self, message: SignedMessage, *, round_number: int = 0, attempt: int = 0) -> None:
        """Check the signature and the place in the chain of a message, and keep it.

        The next fsync covers it: the coordinator repeats a receipt.

        Raises:
            UntrustedCoordinator: the signature is wrong, or the chain has gone backwards or split.
        """
        position, signature = message.chain, message.signature
        assert position is not None and signature is not None
        kept = KeptReceipt(
            task_id=position.task_id,
            kind=message.kind,
            round_number=round_number,
            attempt=attempt,
            sequence=position.sequence,
            head=position.head,
            body=canonical_json(message.signed_part()).decode(),
            key_id=signature.key_id,
            signature=signature.value,
        )
        try:
            kept.verify_body(self.pinned(kept.task_id)[signature.key_id])
        except (WrongSignature, KeyError) as error:
            reason = "it has an unknown key" if isinstance(error, KeyError) else error
            raise UntrustedCoordinator(f"the {kept.name} is not signed by the pinned key: {reason}") from error
        furthest = self._furthest_position(kept.task_id)
        # What is further on than all known messages contradicts none of them.
        if kept.sequence <= furthest:
            self._check_order(kept, position)
        self._file.change(_KEEP, [*vars(kept).values()])
        self._furthest[kept.task_id] = max(furthest, kept.sequence)

    def _furthest_position(self, task_id: str) -> int:
        """The furthest position of the messages of a task; -1 if there are none. Read once."""
        known = self._furthest.get(task_id)
        if known is not None:
            return known
        row = self._file.one("SELECT max(sequence) AS furthest FROM receipts WHERE task_id = ?", task_id)
        return -1 if row is None or row["furthest"] is None else int(row["furthest"])

    def _check_order(self, new: KeptReceipt, position: ChainPosition) -> None:
        """Refuse a chain that has split or gone backwards: another head at a known entry, or facts in another order."""
        for row in self._comparable(new, position):
            known = _kept(row)
            if _splits(new, known):
                raise UntrustedCoordinator(
                    f"the {new.name} has another head at entry {new.sequence} of the chain than the {known.name}:"
                    " the coordinator has rewritten its records"
                )
            if _goes_back(new, known):
                raise UntrustedCoordinator(
                    f"the {new.name} is at entry {new.sequence} of the chain, before the {known.name} at entry"
                    f" {known.sequence}: the coordinator has lost or rewritten its records"
                )

    def _comparable(self, new: KeptReceipt, position: ChainPosition) -> list[sqlite3.Row]:
        """The messages that can contradict a new one. Their number does not grow with the rounds."""
        rows = self._file.all(
            "SELECT * FROM receipts WHERE task_id = ? AND sequence = ? UNION ALL"
            f" SELECT * FROM receipts WHERE task_id = ? AND kind IN ({_KINDS}) AND round_number = ?",
            *(new.task_id, position.sequence, new.task_id, new.round_number),
        )
        if new.kind == "announcement":
            # Of the announcements that must be earlier, the one furthest on in the chain. The sign keeps SQLite from
            # reading all announcements: it walks back from the end of the chain instead.
            rows += self._file.all(
                "SELECT * FROM receipts WHERE task_id = ? AND +kind = 'announcement' AND"
                " (+round_number, +attempt) <= (?, ?) ORDER BY sequence DESC LIMIT 1",
                new.task_id,
                new.round_number,
                new.attempt,
            )
        return rows


def contradicts(new: KeptReceipt, known: KeptReceipt) -> bool:
    """Whether a message and a known one cannot be of the same chain: it has split, or lost or rewritten entries."""
    return _splits(new, known) or _goes_back(new, known)


def _splits(new: KeptReceipt, known: KeptReceipt) -> bool:
    return known.sequence == new.sequence and known.head != new.head


def _goes_back(new: KeptReceipt, known: KeptReceipt) -> bool:
    return new.sequence < known.sequence and _follows(new, known)


def _follows(new: KeptReceipt, known: KeptReceipt) -> bool:
    """Whether a message must be later in the chain than a known one."""
    if new.kind == known.kind == "announcement":
        return (new.round_number, new.attempt) >= (known.round_number, known.attempt)
    if new.round_number != known.round_number:
        return False
    # The answer to the first attempt stays valid in later ones, whose announcements follow on it.
    first = known.kind != "announcement" or known.attempt == 1
    return new.kind == known.kind or (_AFTER.get(new.kind) == known.kind and first)


def _kept(row: sqlite3.Row) -> KeptReceipt:
    return KeptReceipt(**{name: row[name] for name in _COLUMNS})
