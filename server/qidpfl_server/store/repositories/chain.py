"""The chain of each task: collects the rows that a transaction writes, and appends one entry for each of them."""

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, text

from qidpfl_shared.protocol.chain import FIRST_HEAD, STORE_CHAIN, ChainEntry, extended
from qidpfl_shared.protocol.signatures import ChainHead, ChainPosition, MessageSignature, SigningKey

from ...errors import CoordinatorError
from ..guarded import Fact, Mark, facts_of
from ..prepared import Prepared
from ..schema import chain, chain_heads, signing_keys

_ONE = select(chain_heads.c.sequence, chain_heads.c.head).where(chain_heads.c.task_id == bindparam("task_id"))
_HEAD, _HEAD_FOR_UPDATE = Prepared(_ONE), Prepared(_ONE.with_for_update())
_INSERT = Prepared(insert(chain))
_PUT_HEAD = Prepared(
    text(
        "INSERT INTO chain_heads (task_id, sequence, head, key_id, signature)"
        " VALUES (:task_id, :sequence, :head, :key_id, :signature) ON CONFLICT (task_id) DO UPDATE"
        " SET sequence = excluded.sequence, head = excluded.head, key_id = excluded.key_id,"
        " signature = excluded.signature"
    )
)
_FOUND = select(chain.c.subject, chain.c.kind, chain.c.sequence, chain.c.head).where(
    chain.c.task_id == bindparam("task_id"), chain.c.subject.in_(bindparam("subjects", expanding=True))
)
_MAX_NAMED = 500
# The sequence and head of a chain.
Head = tuple[int, str]


class ChainRows:
    """The chains inside one transaction. The repositories mark what they write; `flush` appends the entries."""

    def __init__(self, connection: Connection, known: dict[str, Head] | None = None) -> None:
        self._connection = connection
        # Heads that the writer of the store remembers. They are those of the rows.
        self._known = {} if known is None else known
        self._marks: dict[Mark, Mapping[str, Any] | None] = {}
        # The heads of the chains that this transaction has extended or locked.
        self._heads: dict[str, Head] = {}
        self._extended: set[str] = set()
        # What this transaction has appended, by chain and subject.
        self._appended: dict[tuple[str, str], Head] = {}

    def mark(self, *mark: Any, row: Mapping[str, Any] | None = None) -> None:
        """Note that a row was written. `store.guarded` lists the marks. A `row` that is given is not read again."""
        self._marks[mark] = row

    def forget(self, task_id: str) -> None:
        """Drop what this transaction knows of a chain that it has deleted."""
        self._marks = {
            mark: row
            for mark, row in self._marks.items()
            if task_id not in mark and (row is None or row["task_id"] != task_id)
        }
        self._heads.pop(task_id, None)
        self._known.pop(task_id, None)
        self._extended.discard(task_id)
        self._appended = {}

    def saved(self) -> Callable[[], None]:
        """A function that returns to the present state, if the work after this moment is rolled back."""
        marks, heads, extended_chains = dict(self._marks), dict(self._heads), set(self._extended)

        def restore() -> None:
            self._marks, self._heads, self._extended = marks, heads, extended_chains
            self._appended = {}

        return restore

    @property
    def heads(self) -> Mapping[str, Head]:
        """The heads of the chains that this transaction has extended or locked."""
        return self._heads

    def flush(self, *, kind: str | None = None) -> None:
        """Append an entry for every marked row. `kind` replaces the usual kind of the entries."""
        if not self._marks:
            return
        marks, self._marks = self._marks, {}
        for task_id, facts in facts_of(self._connection, marks).items():
            self.append(task_id, facts if kind is None else (fact._replace(kind=kind) for fact in facts))

    def append(self, task_id: str, facts: Iterable[Fact]) -> None:
        """Append entries to a chain, in one statement."""
        sequence, head = self.lock(task_id)
        rows: list[dict[str, Any]] = [
            {
                "task_id": task_id,
                "sequence": entry.sequence,
                "kind": entry.kind,
                "subject": entry.subject,
                "content": entry.content,
                "head": entry.head,
            }
            for entry in extended(head, sequence, facts)
        ]
        if rows:
            _INSERT.run(self._connection, rows)
            for row in rows:
                self._appended[task_id, row["subject"]] = row["sequence"], row["head"]
            self._heads[task_id] = rows[-1]["sequence"], rows[-1]["head"]
            self._extended.add(task_id)

    def seal(self, key: SigningKey | None) -> None:
        """Store the new heads, signed. Called once, as the last part of a transaction.

        Raises:
            CoordinatorError: the store has a key, but this process does not.
        """
        for task_id in sorted(self._extended):
            if key is None and self._has_key():
                raise CoordinatorError(
                    "the store is signed, but the signing key is missing: restore signing.key in the state folder,"
                    " or name its file with QIDPFL_SIGNING_KEY"
                )
            self.put_head(task_id, key)
        self._extended.clear()

    def put_head(self, task_id: str, key: SigningKey | None) -> None:
        """Store the head of a chain, signed if there is a key."""
        sequence, head = self.lock(task_id)
        signature = None
        if key is not None:
            position = ChainPosition.model_construct(task_id=task_id, sequence=sequence, head=head)
            signature = key.signed(ChainHead.model_construct(chain=position)).signature
        _PUT_HEAD.run(
            self._connection,
            {
                "task_id": task_id,
                "sequence": sequence,
                "head": head,
                "key_id": None if signature is None else signature.key_id,
                "signature": None if signature is None else signature.value,
            },
        )

    def present(self, task_id: str) -> ChainPosition | None:
        """The newest position of a chain, with what this transaction has appended; None if there is no chain."""
        self.flush()
        sequence, head = self.lock(task_id)
        return ChainPosition(task_id=task_id, sequence=sequence, head=head) if sequence else None

    def head(self, task_id: str) -> ChainPosition | None:
        """The newest position of a chain; None if there is no chain."""
        row = _HEAD.run(self._connection, {"task_id": task_id}).one_or_none()
        return None if row is None else ChainPosition(task_id=task_id, sequence=row.sequence, head=row.head)

    def signed_head(self, task_id: str) -> ChainHead | None:
        """The newest position of a chain with its signature, if it has one."""
        row = self._connection.execute(select(chain_heads).where(chain_heads.c.task_id == task_id)).one_or_none()
        if row is None:
            return None
        signed = None if row.key_id is None else MessageSignature(key_id=row.key_id, value=row.signature)
        position = ChainPosition(task_id=task_id, sequence=row.sequence, head=row.head)
        return ChainHead(chain=position, signature=signed)

    def unsigned(self) -> list[str]:
        """The chains whose head is not signed."""
        query = select(chain_heads.c.task_id).where(chain_heads.c.key_id.is_(None))
        return list(self._connection.execute(query).scalars())

    def all(self) -> list[str]:
        """The ids of all chains."""
        return list(self._connection.execute(select(chain_heads.c.task_id)).scalars())

    def position(self, task_id: str, subject: str, *, kind: str | None = None) -> ChainPosition | None:
        """The newest entry of a subject, or its first one of a kind."""
        return self.positions(task_id, [subject], kind=kind).get(subject)

    def positions(
        self, task_id: str, subjects: Collection[str], *, kind: str | None = None
    ) -> Mapping[str, ChainPosition]:
        """The newest entries of subjects, or their first ones of a kind; those without an entry are left out."""
        self.flush()
        found: dict[str, ChainPosition] = {}
        if kind is None:
            for subject in subjects:
                if (known := self._appended.get((task_id, subject))) is not None:
                    found[subject] = ChainPosition.model_construct(task_id=task_id, sequence=known[0], head=known[1])
        wanted = [subject for subject in subjects if subject not in found]
        for start in range(0, len(wanted), _MAX_NAMED):
            key = {"task_id": task_id, "subjects": wanted[start : start + _MAX_NAMED]}
            for row in sorted(self._connection.execute(_FOUND, key), key=lambda row: -row.sequence):
                if (row.subject not in found) if kind is None else (row.kind in (kind, "adopted")):
                    found[row.subject] = ChainPosition.model_construct(
                        task_id=task_id, sequence=row.sequence, head=row.head
                    )
        return found

    def entries(self, task_id: str) -> Generator[ChainEntry]:
        """All entries of a chain in their order, read in parts. A caller that stops early closes it."""
        query = select(chain).where(chain.c.task_id == task_id).order_by(chain.c.sequence)
        with self._connection.execute(query, execution_options={"yield_per": 1000}) as rows:
            for row in rows:
                yield ChainEntry(
                    sequence=row.sequence, kind=row.kind, subject=row.subject, content=row.content, head=row.head
                )

    def lock(self, task_id: str) -> Head:
        """The head of a chain, locked until the end of the transaction."""
        if task_id in self._known and task_id not in self._heads:
            self._heads[task_id] = self._known[task_id]
        if task_id not in self._heads:
            if task_id == STORE_CHAIN and self._connection.dialect.name == "postgresql":
                # The first row of this chain may not exist yet, so that it cannot be locked.
                self._connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('qidpfl.chain'))"))
            row = _HEAD_FOR_UPDATE.run(self._connection, {"task_id": task_id}).one_or_none()
            self._heads[task_id] = self._longest(task_id) if row is None else (row.sequence, row.head)
        return self._heads[task_id]

    def _longest(self, task_id: str) -> Head:
        """The newest entry of a chain whose row in `chain_heads` is missing: the chain is new, or was damaged."""
        newest = select(func.max(chain.c.sequence)).where(chain.c.task_id == task_id).scalar_subquery()
        query = select(chain.c.sequence, chain.c.head).where(chain.c.task_id == task_id, chain.c.sequence == newest)
        row = self._connection.execute(query).one_or_none()
        return (0, FIRST_HEAD) if row is None else (row.sequence, row.head)

    def _has_key(self) -> bool:
        return self._connection.execute(select(signing_keys.c.position).limit(1)).scalar() is not None
