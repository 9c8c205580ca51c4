"""Events of tasks, which the live feed sends."""

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select

from qidpfl_shared.protocol.fields import FieldValue
from qidpfl_shared.protocol.messages import Event

from ...clock import Micros, as_datetime
from ..prepared import Prepared
from ..schema import events
from ..validation import rows_of
from .chain import ChainRows

_INSERT = Prepared(insert(events).returning(events))


class EventRows:
    def __init__(self, connection: Connection, chain: ChainRows) -> None:
        self._connection = connection
        self._chain = chain

    def add(
        self,
        task_id: str,
        kind: str,
        *,
        at: Micros,
        round_number: int | None = None,
        detail: str | None = None,
        fields: Mapping[str, FieldValue] | None = None,
    ) -> None:
        """Add an event: `detail` is for people, `fields` has the same values for programs."""
        row = {
            "task_id": task_id,
            "at": at,
            "kind": kind,
            "round_number": round_number,
            "detail": detail,
            "fields": None if fields is None else json.dumps(fields, separators=(",", ":"), sort_keys=True),
        }
        added = _INSERT.run(self._connection, row).one_or_none()
        self._chain.mark("event", added.id, row=added._asdict())

    def after(self, task_id: str, event_id: int, *, limit: int = 500) -> list[Event]:
        query = (
            select(events).where(events.c.task_id == task_id, events.c.id > event_id).order_by(events.c.id).limit(limit)
        )
        return [_event(row) for row in self._connection.execute(query)]

    def first_at(self, task_id: str, *kinds: str) -> Micros | None:
        """When the first event of one of these kinds happened; None if there is none."""
        query = select(events.c.at).where(events.c.task_id == task_id, events.c.kind.in_(kinds))
        return self._connection.execute(query.order_by(events.c.id).limit(1)).scalar_one_or_none()

    def of_kind(self, task_id: str, kind: str) -> list[Event]:
        """All events of one kind, oldest first."""
        query = select(events).where(events.c.task_id == task_id, events.c.kind == kind).order_by(events.c.id)
        return [_event(row) for row in self._connection.execute(query)]

    def last_id(self, task_id: str) -> int:
        """The id of the newest event; 0 without one."""
        query = select(func.max(events.c.id)).where(events.c.task_id == task_id)
        return int(self._connection.execute(query).scalar() or 0)


@rows_of(events)
def _event(row: Row[Any]) -> Event:
    return Event(
        id=row.id,
        at=as_datetime(row.at),
        kind=row.kind,
        round_number=row.round_number,
        detail=row.detail,
        fields=None if row.fields is None else json.loads(row.fields),
    )
