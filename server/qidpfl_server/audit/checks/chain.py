"""The chain of a task against its rows: no row was changed, removed or added behind the coordinator's back.

An intruder without the private key can compute a new chain, but cannot sign its head. The holder of the key can: a head
that was kept outside the store finds that too.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing

from qidpfl_shared.protocol.chain import STORE_CHAIN, BrokenChain, ChainEntry, checked
from qidpfl_shared.protocol.signatures import (
    ChainHead,
    ChainPosition,
    KeyList,
    SignedMessage,
    WrongSignature,
    successors,
    verify_message,
)

from ...store.guarded import SUBMISSIONS, Fact, store_facts, submission_facts, whole_task
from ...store.transaction import Transaction
from ..report import Report

_SETTLED = "round.settled"


class ChainAuditor:
    """Checks the chains of a store. `kept` are heads that were kept outside, `pinned` is a public key from outside."""

    def __init__(self, keys: KeyList, kept: Sequence[ChainHead], pinned: str | None, report: Report) -> None:
        self._keys = {key.key_id: key.public_key for key in keys.keys}
        self._kept = kept
        self._report = report
        if pinned is not None:
            self._check_keys(keys, pinned)

    def audit_task(self, tx: Transaction, task_id: str, place: str) -> None:
        """Every row of a task has its newest entry, and every entry its row."""
        known = _Newest(tx, task_id, place, self._report)
        self._read(tx, task_id, place, known)
        known.compare(whole_task(tx.connection, task_id))

    def audit_store(self, tx: Transaction) -> None:
        """Every task, key and tombstone is in the chain of the store; a kept head is of a task that is there."""
        known = _Newest(tx, STORE_CHAIN, "the store", self._report)
        self._read(tx, STORE_CHAIN, "the store", known)
        known.compare(store_facts(tx.connection))
        for stone in tx.tombstones.all():
            place = f"the tombstone of task {stone.name}"
            if self._keys:
                self._verify(stone, place)
        for head in self._kept:
            position = head.chain
            assert position is not None
            if position.task_id != STORE_CHAIN and tx.tasks.get(position.task_id) is None:
                self._check_deleted(tx, position)

    def _read(self, tx: Transaction, task_id: str, place: str, known: "_Newest") -> None:
        """Check the links of a chain and its stored head; give every entry to `known`."""
        wanted = {head.chain.sequence: head for head in self._kept if head.chain and head.chain.task_id == task_id}
        last: ChainEntry | None = None
        try:
            with closing(tx.chain.entries(task_id)) as entries:
                for last in checked(entries):
                    known.add(last)
                    if (kept := wanted.pop(last.sequence, None)) is not None and kept.chain is not None:
                        same = last.head == kept.chain.head
                        self._report.require(
                            same, f"{place}: entry {last.sequence} of the chain has another head than kept"
                        )
        except BrokenChain as error:
            self._report.require(False, f"{place}: the chain is broken: {error}")
            return
        for sequence in wanted:
            end = 0 if last is None else last.sequence
            self._report.require(False, f"{place}: the chain ends at {end}, before the kept head {sequence}: cut off")
        self._check_head(tx.chain.signed_head(task_id), last, task_id, place)

    def _check_head(self, head: ChainHead | None, last: ChainEntry | None, task_id: str, place: str) -> None:
        if last is None:
            # Only the chain of a new store has no entry.
            empty = head is None and task_id == STORE_CHAIN
            self._report.require(empty, f"{place}: the chain is missing")
            return
        newest = ChainPosition(task_id=task_id, sequence=last.sequence, head=last.head)
        fits = head is not None and head.chain == newest
        self._report.require(fits, f"{place}: the chain ends at {last.sequence}, which is not its stored head")
        if fits and head is not None and self._keys:
            self._verify(head, f"{place}: the head of the chain")

    def _verify(self, message: SignedMessage, place: str) -> None:
        signature = message.signature
        if signature is None or signature.key_id not in self._keys:
            self._report.require(False, f"{place} is not signed with a key of this store")
            return
        try:
            verify_message(self._keys[signature.key_id], message)
        except (WrongSignature, ValueError) as error:
            self._report.require(False, f"{place}: {error}")
        else:
            self._report.checked += 1

    def _check_keys(self, keys: KeyList, pinned: str) -> None:
        try:
            successors(pinned, keys)
        except ValueError as error:
            self._report.require(False, f"the keys of the store: {error}")
        else:
            self._report.checked += 1

    def _check_deleted(self, tx: Transaction, kept: ChainPosition) -> None:
        stone = tx.tombstones.get(kept.task_id)
        if stone is None or stone.chain is None:
            self._report.require(False, f"task {kept.task_id} of a kept head is not in this store")
            return
        later = stone.chain.sequence > kept.sequence
        self._report.require(
            later or stone.chain == kept, f"task {stone.name}: its tombstone does not follow on the kept head"
        )


class _Newest:
    """The newest entry of every subject of a chain. Submissions of settled rounds are compared and dropped at once."""

    def __init__(self, tx: Transaction, task_id: str, place: str, report: Report) -> None:
        self._tx = tx
        self._task_id = task_id
        self._place = place
        self._report = report
        self._contents: dict[str, str] = {}
        self._submissions: dict[int, dict[str, str]] = {}

    def add(self, entry: ChainEntry) -> None:
        of, _, rest = entry.subject.partition("/")
        if of in SUBMISSIONS:
            self._submissions.setdefault(int(rest.partition("/")[0]), {})[entry.subject] = entry.content
            return
        self._contents[entry.subject] = entry.content
        if of == "round" and entry.kind == _SETTLED:
            number = int(rest)
            self._compare(self._submissions.pop(number, {}), self._facts_of_round(number))

    def compare(self, facts: Iterable[Fact]) -> None:
        """Compare the entries with the rows."""
        for submissions in self._submissions.values():
            self._contents |= submissions
        self._compare(self._contents, facts)

    def _facts_of_round(self, number: int) -> Iterable[Fact]:
        for of in SUBMISSIONS:
            yield from submission_facts(self._tx.connection, of, self._task_id, number)

    def _compare(self, recorded: dict[str, str], facts: Iterable[Fact]) -> None:
        left = dict(recorded)
        for fact in facts:
            place = f"{self._place}: {_shown(fact.subject)}"
            if fact.subject not in recorded:
                self._report.require(False, f"{place} is not in the chain: it was added behind the coordinator's back")
                continue
            left.pop(fact.subject, None)
            self._report.require(
                recorded[fact.subject] == fact.content, f"{place} differs from its record in the chain"
            )
        for subject in left:
            self._report.require(False, f"{self._place}: {_shown(subject)} is in the chain, but its row is missing")


def _shown(subject: str) -> str:
    """A subject as a message names it. A code is known by the beginning of its hash."""
    of, _, rest = subject.partition("/")
    if of in SUBMISSIONS:
        number, _, client_id = rest.partition("/")
        return f"the {of} of client {client_id} in round {number}"
    return f"enrolment code {rest[:12]}" if of == "code" else f"{of} {rest}".strip()
