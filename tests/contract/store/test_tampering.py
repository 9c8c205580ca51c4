"""Random faults in the rows of either store are found by the audit.

`tests/unit/server/audit/test_chain.py` tries every column on copies of a SQLite file. Here each fault is made in the
store itself and taken back, because a PostgreSQL database has no cheap copy.
"""

import random
from typing import Any

import pytest
from sqlalchemy import Column, Row, Table, and_, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from qidpfl_server.audit import audit
from qidpfl_server.ops.signing import record_key
from qidpfl_server.store.guarded import UNGUARDED
from qidpfl_server.store.schema import metadata
from qidpfl_server.store.store import Store
from qidpfl_shared.protocol.signatures import SigningKey
from support.fakes import FakeClock
from support.use_cases import UseCases

KEY = SigningKey.new()
_NOT_GUARDED = {"pulse", "blob_folder"}
_FAULTS = 12


def _play(store: Store) -> None:
    """A task in its third round, with payments, a missed round and escrow."""
    store.key = KEY
    record_key(store, KEY)
    cases = UseCases(store, FakeClock())
    task, clients = cases.training(3, game={"horizon": 5}, rounds={"min_updates": 2}, defence={"escrow": 0.5})
    task.play(clients)
    for client in clients[:2]:
        client.play(2)
    cases.clock.advance(3600)
    task.settle()
    clients[0].play(3)


def _other(value: Any) -> Any:
    """Another value of the same type."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value * 1.0000001 if value else 0.25
        case _:
            return ("1" if value[:1] == "0" else "0") + value[1:]


def _is(table: Table, row: "Row[Any]") -> Any:
    """The condition that selects this row."""
    return and_(*(column == row._mapping[column.name] for column in table.primary_key.columns))


def _execute(store: Store, *statements: Any) -> bool:
    """Run the statements without the store's own writer, as an intruder would; False if a constraint forbids them."""
    try:
        with store.engine.begin() as connection:
            for statement in statements:
                connection.execute(statement)
    except IntegrityError:
        return False
    return True


def _fault(store: Store, rng: random.Random) -> tuple[Any, Any, str] | None:
    """A statement that changes or removes a row, the one that takes it back, and a description."""
    table = metadata.tables[rng.choice(sorted(set(metadata.tables) - _NOT_GUARDED))]
    with store.engine.connect() as connection:
        rows = connection.execute(select(table)).all()
    if not rows:
        return None
    row = rng.choice(rows)
    if rng.random() < 0.3:
        return delete(table).where(_is(table, row)), insert(table).values(**row._mapping), f"removed from {table}"
    columns: list[Column[Any]] = [
        column
        for column in table.columns
        if not column.primary_key
        and (table.name, column.name) not in UNGUARDED
        and row._mapping[column.name] not in (None, "")
    ]
    if not columns:
        return None
    column = rng.choice(columns)
    value = row._mapping[column.name]
    change = update(table).where(_is(table, row))
    return change.values({column.name: _other(value)}), change.values({column.name: value}), f"{table}.{column.name}"


@pytest.mark.parametrize("seed", range(2))
def test_random_faults_are_found(seed: int, store: Store) -> None:
    _play(store)

    def violations() -> list[str]:
        return list(audit(store, public_key=KEY.public_key).violations)

    assert violations() == []
    rng, made = random.Random(seed), 0
    while made < _FAULTS:
        fault = _fault(store, rng)
        if fault is None:
            continue
        change, back, what = fault
        if _execute(store, change):
            assert violations(), what
            assert _execute(store, back), what
            made += 1
    assert violations() == []
