"""The clients of a task."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, insert, select, update

from ...clock import Micros
from ...domain import Client, ClientState
from ..guarded import UNGUARDED
from ..prepared import Prepared
from ..schema import clients
from ..validation import rows_of
from .chain import ChainRows

# Built once: building a statement costs several times as much as running it.
_OF_TASK = Prepared(select(clients).where(clients.c.task_id == bindparam("task_id")).order_by(clients.c.ordinal))
_REFUSED = Prepared(
    select(clients.c.client_id).where(clients.c.task_id == bindparam("task_id"), clients.c.state == ClientState.REFUSED)
)
# Thousands of clients ask while a task waits for the others: no row of them is read.
_COUNTS = Prepared(
    select(clients.c.state, func.count(), func.count(clients.c.size))
    .where(clients.c.task_id == bindparam("task_id"))
    .group_by(clients.c.state)
)
_SOME = select(clients).where(clients.c.client_id.in_(bindparam("client_ids", expanding=True)))


@dataclass(frozen=True)
class ClientCounts:
    """How many clients a task has in each state, and how many of all have stored a profile."""

    by_state: Mapping[ClientState, int]
    profiles: int

    def of(self, *states: ClientState) -> int:
        """The number of clients in these states."""
        return sum(self.by_state.get(state, 0) for state in states)


class ClientRows:
    def __init__(self, connection: Connection, chain: ChainRows) -> None:
        self._connection = connection
        self._chain = chain

    def insert(self, client: Client, *, key_hash: str, token_hash: str, at: Micros) -> None:
        self._connection.execute(
            insert(clients).values(
                client_id=client.client_id,
                task_id=client.task_id,
                ordinal=client.ordinal,
                state=client.state,
                key_hash=key_hash,
                token_hash=token_hash,
                enrolled_at=at,
            )
        )
        self._chain.mark("client", client.client_id)

    def get(self, client_id: str) -> Client | None:
        return self._one(clients.c.client_id == client_id)

    def some(self, client_ids: Collection[str]) -> dict[str, Client]:
        """The clients with these ids; unknown ids are left out."""
        rows = self._connection.execute(_SOME, {"client_ids": list(client_ids)})
        return {row.client_id: _client(row) for row in rows}

    def by_token(self, token_hash: str) -> Client | None:
        return self._one(clients.c.token_hash == token_hash)

    def by_key(self, task_id: str, key_hash: str) -> Client | None:
        return self._one(clients.c.task_id == task_id, clients.c.key_hash == key_hash)

    def of_task(self, task_id: str) -> list[Client]:
        """All clients in the order of their ordinals."""
        return [_client(row) for row in _OF_TASK.run(self._connection, {"task_id": task_id})]

    def in_state(self, task_id: str, *states: ClientState) -> list[Client]:
        return [client for client in self.of_task(task_id) if client.state in states]

    def counts(self, task_id: str) -> ClientCounts:
        """The numbers of clients by state."""
        rows = _COUNTS.run(self._connection, {"task_id": task_id}).all()
        return ClientCounts({ClientState(row[0]): row[1] for row in rows}, sum(row[2] for row in rows))

    def refused(self, task_id: str) -> frozenset[str]:
        """The ids of the clients that the selection has refused."""
        return frozenset(_REFUSED.run(self._connection, {"task_id": task_id}).scalars())

    def count(self, task_id: str) -> int:
        query = select(func.count()).select_from(clients).where(clients.c.task_id == task_id)
        return int(self._connection.execute(query).scalar_one())

    def ordinals(self, task_id: str) -> set[int]:
        return set(self._connection.execute(select(clients.c.ordinal).where(clients.c.task_id == task_id)).scalars())

    def set_token(self, client_id: str, token_hash: str) -> None:
        self._change(client_id, {"token_hash": token_hash})

    def replace_unused_token(self, client_id: str, token_hash: str) -> bool:
        """Replace the token of a client that has neither used it nor stored a profile; whether that was so.

        One statement, because another process may mark the token as used at the same time.
        """
        unused = (clients.c.token_used.is_(False), clients.c.state == ClientState.ENROLLED)
        return self._change(client_id, {"token_hash": token_hash}, *unused)

    def mark_token_used(self, client_id: str, token_hash: str) -> bool:
        """Note that a client has used this token; False if it is not its token any more."""
        return self._change(client_id, {"token_used": True}, clients.c.token_hash == token_hash)

    def set_profile(
        self,
        client_id: str,
        *,
        label_counts: Sequence[int] | None,
        size: int,
        privacy_value: float | None,
        histogram_rho: float | None,
        rho_cap: float | None,
        lifetime_rho: float | None,
    ) -> None:
        """Store the profile of a client, which is then `profiled`."""
        self._change(
            client_id,
            {
                "state": ClientState.PROFILED,
                "label_counts": None if label_counts is None else json.dumps(label_counts),
                "size": size,
                "privacy_value": privacy_value,
                "histogram_rho": histogram_rho,
                "rho_cap": rho_cap,
                "lifetime_rho": lifetime_rho,
            },
        )

    def set_selection(
        self, client_id: str, *, selected: bool, label_distance: float | None, filled_up: bool = False
    ) -> None:
        """Store the outcome of the selection for a client, which is then `selected` or `refused`."""
        state = ClientState.SELECTED if selected else ClientState.REFUSED
        self._change(client_id, {"state": state, "label_distance": label_distance, "filled_up": filled_up})

    def set_revoked(self, client_id: str, at: Micros) -> None:
        self._change(client_id, {"revoked_at": at}, clients.c.revoked_at.is_(None))

    def retire(self, client_id: str, ordinal: int) -> None:
        """Take the place of a client: it has left, and its ordinal is one that no client may ask for."""
        self._change(client_id, {"state": ClientState.LEFT, "ordinal": ordinal})

    def enrolled_before(self, task_id: str, at: Micros) -> set[str]:
        """The clients that enrolled at this time or earlier."""
        query = select(clients.c.client_id).where(clients.c.task_id == task_id, clients.c.enrolled_at <= at)
        return set(self._connection.execute(query).scalars())

    def set_left(self, client_id: str) -> None:
        self._change(client_id, {"state": ClientState.LEFT})

    def set_misses(self, client_id: str, misses: int, *, set_aside: bool) -> None:
        self._change(client_id, {"misses": misses, "set_aside": set_aside})

    def exclude(self, client_id: str, misses: int, *, exclusions: int, until: int) -> None:
        """Set a client aside until this round; it is its exclusion of this number."""
        self._change(
            client_id, {"misses": misses, "set_aside": True, "exclusions": exclusions, "excluded_until": until}
        )

    def set_coming_back(self, client_id: str) -> None:
        """Note that a client that was set aside takes part again from the next round."""
        self._change(client_id, {"coming_back": True})

    def bring_back(self, client_id: str, misses: int) -> None:
        """End the absence of a client that was set aside."""
        self._change(client_id, {"set_aside": False, "coming_back": False, "misses": misses})

    def _change(self, client_id: str, values: Mapping[str, object], *where: Any) -> bool:
        """Change a client for which all conditions hold; whether they did."""
        query = update(clients).where(clients.c.client_id == client_id, *where).values(values)
        changed = self._connection.execute(query).rowcount == 1
        if changed and any(("clients", name) not in UNGUARDED for name in values):
            self._chain.mark("client", client_id)
        return changed

    def _one(self, *where: Any) -> Client | None:
        row = self._connection.execute(select(clients).where(*where)).one_or_none()
        return None if row is None else _client(row)


@rows_of(clients)
def _client(row: Row[Any]) -> Client:
    return Client(
        client_id=row.client_id,
        task_id=row.task_id,
        ordinal=row.ordinal,
        state=ClientState(row.state),
        token_used=row.token_used,
        label_counts=None if row.label_counts is None else tuple(json.loads(row.label_counts)),
        size=row.size,
        privacy_value=row.privacy_value,
        histogram_rho=row.histogram_rho,
        rho_cap=row.rho_cap,
        lifetime_rho=row.lifetime_rho,
        label_distance=row.label_distance,
        filled_up=row.filled_up,
        misses=row.misses,
        set_aside=row.set_aside,
        coming_back=row.coming_back,
        revoked_at=row.revoked_at,
        exclusions=row.exclusions,
        excluded_until=row.excluded_until,
    )
