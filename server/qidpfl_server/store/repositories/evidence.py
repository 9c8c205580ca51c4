"""The public keys of the coordinator, and the tombstones of deleted tasks. Both are in the chain of the store."""

from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from qidpfl_shared.protocol.chain import STORE_CHAIN
from qidpfl_shared.protocol.evidence import Tombstone
from qidpfl_shared.protocol.messages import TaskState
from qidpfl_shared.protocol.signatures import ChainPosition, KeyList, MessageSignature, PublicKeyInfo

from ...clock import as_datetime, as_micros
from ..guarded import key_fact, tombstone_fact
from ..schema import (
    budgets,
    chain,
    chain_heads,
    client_credentials,
    clients,
    enrolment_codes,
    escrow_settlements,
    events,
    invitations,
    models,
    operator_tokens,
    payments,
    rounds,
    signing_keys,
    tasks,
    tombstones,
    updates,
)
from ..validation import rows_of
from .chain import ChainRows

# In this order no row refers to a row that is already gone.
_OF_TASK = (
    *(payments, escrow_settlements, updates, budgets, invitations, rounds, models, events),
    *(client_credentials, clients, enrolment_codes, chain, chain_heads, tasks),
)


class KeyRows:
    def __init__(self, connection: Connection, chain: ChainRows) -> None:
        self._connection = connection
        self._chain = chain

    def all(self) -> KeyList:
        """All keys, oldest first; the last one signs."""
        rows = self._connection.execute(select(signing_keys).order_by(signing_keys.c.position))
        return KeyList(keys=tuple(_key(row) for row in rows))

    def add(self, key: PublicKeyInfo) -> None:
        """Add the key that signs from now on."""
        last = self._connection.execute(select(func.max(signing_keys.c.position))).scalar() or 0
        endorsement = key.endorsement
        self._connection.execute(
            insert(signing_keys).values(
                position=last + 1,
                key_id=key.key_id,
                public_key=key.public_key,
                created_at=as_micros(key.created_at),
                endorsed_by=None if endorsement is None else endorsement.key_id,
                endorsement=None if endorsement is None else endorsement.value,
            )
        )
        row = self._connection.execute(select(signing_keys).where(signing_keys.c.key_id == key.key_id)).one()
        self._chain.append(STORE_CHAIN, [key_fact(row)])


class TombstoneRows:
    def __init__(self, connection: Connection, chain: ChainRows) -> None:
        self._connection = connection
        self._chain = chain

    def get(self, task_id: str) -> Tombstone | None:
        row = self._connection.execute(select(tombstones).where(tombstones.c.task_id == task_id)).one_or_none()
        return None if row is None else _tombstone(row)

    def all(self) -> list[Tombstone]:
        """All tombstones, oldest first."""
        rows = self._connection.execute(select(tombstones).order_by(tombstones.c.deleted_at, tombstones.c.task_id))
        return [_tombstone(row) for row in rows]

    def _revoke_operators(self, stone: Tombstone) -> None:
        """Revoke the tokens of operators of a deleted task. Their rows stay, without the task."""
        of_task = operator_tokens.c.task_id == stone.task_id
        found = self._connection.execute(select(operator_tokens.c.token_id).where(of_task)).scalars().all()
        still_valid = (of_task, operator_tokens.c.revoked_at.is_(None))
        revoked_at = as_micros(stone.deleted_at)
        self._connection.execute(update(operator_tokens).where(*still_valid).values(revoked_at=revoked_at))
        self._connection.execute(update(operator_tokens).where(of_task).values(task_id=None))
        for token_id in found:
            self._chain.mark("operator", token_id)

    def replace_task(self, stone: Tombstone) -> None:
        """Remove all rows of a task and leave its tombstone."""
        assert stone.chain is not None
        self._revoke_operators(stone)
        for table in _OF_TASK:
            self._connection.execute(delete(table).where(table.c.task_id == stone.task_id))
        self._chain.forget(stone.task_id)
        signature = stone.signature
        self._connection.execute(
            insert(tombstones).values(
                task_id=stone.task_id,
                name=stone.name,
                spec_digest=stone.spec_digest,
                state=stone.state,
                reason=stone.reason,
                clients=stone.clients,
                settled_rounds=stone.settled_rounds,
                paid_micro=stone.paid_micro,
                final_sequence=stone.chain.sequence,
                final_head=stone.chain.head,
                deleted_by=stone.deleted_by,
                deleted_at=as_micros(stone.deleted_at),
                key_id=None if signature is None else signature.key_id,
                signature=None if signature is None else signature.value,
            )
        )
        row = self._connection.execute(select(tombstones).where(tombstones.c.task_id == stone.task_id)).one()
        self._chain.append(STORE_CHAIN, [tombstone_fact(row)])


@rows_of(signing_keys)
def _key(row: Row[Any]) -> PublicKeyInfo:
    return PublicKeyInfo(
        key_id=row.key_id,
        public_key=row.public_key,
        created_at=as_datetime(row.created_at),
        endorsement=_signature(row.endorsed_by, row.endorsement),
    )


@rows_of(tombstones)
def _tombstone(row: Row[Any]) -> Tombstone:
    return Tombstone(
        task_id=row.task_id,
        name=row.name,
        spec_digest=row.spec_digest,
        state=TaskState(row.state),
        reason=row.reason,
        clients=row.clients,
        settled_rounds=row.settled_rounds,
        paid_micro=row.paid_micro,
        deleted_by=row.deleted_by,
        deleted_at=as_datetime(row.deleted_at),
        chain=ChainPosition(task_id=row.task_id, sequence=row.final_sequence, head=row.final_head),
        signature=_signature(row.key_id, row.signature),
    )


def _signature(key_id: str | None, value: str | None) -> MessageSignature | None:
    return None if key_id is None or value is None else MessageSignature(key_id=key_id, value=value)
