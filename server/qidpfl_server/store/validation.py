"""Validation of stored rows: SQLite accepts any value in any column, and an operator may have edited the file.

`rows_of` checks rows as they are read. `damaged_rows` and `lost_rows` find everything that is wrong without decoding
the rows: types, names, and references to rows that do not exist.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import wraps
from typing import Any, TypeVar

from sqlalchemy import Boolean, Column, Connection, Double, Integer, Row, Table, column, select

from qidpfl_shared.core.noise_audit import NoiseVerdict
from qidpfl_shared.core.planning import Standing
from qidpfl_shared.protocol.messages import RoundState, TaskState

from ..domain import BudgetState, ClientState
from ..errors import DamagedState
from .schema import budgets, clients, escrow_settlements, invitations, models, payments, rounds, tasks, updates

Read = TypeVar("Read")

_CHOICES: dict[tuple[str, str], type[StrEnum]] = {
    ("tasks", "state"): TaskState,
    ("clients", "state"): ClientState,
    ("rounds", "state"): RoundState,
    ("invitations", "standing"): Standing,
    ("budgets", "state"): BudgetState,
    ("updates", "verdict"): NoiseVerdict,
}
_DIGESTS = {("tasks", "spec_digest"), ("models", "digest"), ("models", "momentum_digest"), ("updates", "digest")}
_OF_ROUND_AND_CLIENT = (invitations, budgets, updates, payments)
_LONGEST_SHOWN = 60


def rows_of(table: Table) -> Callable[[Callable[[Row[Any]], Read]], Callable[[Row[Any]], Read]]:
    """Decorate a function that reads whole rows of a table: a row it cannot read is `DamagedState` with its key."""
    columns = list(table.columns)
    allowed = [_kinds(column) for column in columns]
    # Most rows have the same types, so that one lookup in this set checks almost all of them.
    sound: set[tuple[type, ...]] = set()

    def guard(read: Callable[[Row[Any]], Read]) -> Callable[[Row[Any]], Read]:
        @wraps(read)
        def guarded(row: Row[Any]) -> Read:
            kinds = tuple(map(type, row))
            if kinds not in sound:
                for column, kind, fitting in zip(columns, kinds, allowed, strict=True):
                    if kind not in fitting:
                        raise _damaged(table, row, f"{column.name} is of type {kind.__name__}")
                sound.add(kinds)
            try:
                return read(row)
            except (ValueError, TypeError, ArithmeticError) as error:
                raise _damaged(table, row, str(error).partition("\n")[0]) from error

        return guarded

    return guard


def _kinds(column: Column[Any]) -> set[type]:
    kinds: set[type] = {column.type.python_type}
    if float in kinds:
        kinds.add(int)
    return kinds | {type(None)} if column.nullable else kinds


def _damaged(table: Table, row: Row[Any], reason: str) -> DamagedState:
    key = ", ".join(f"{column.name} {getattr(row, column.name)}" for column in table.primary_key)
    return DamagedState(f"the row with {key} in table {table.name} cannot be read: {reason}")


def all_task_ids(connection: Connection) -> list[str]:
    """The ids of all tasks, the oldest first, even if their rows are damaged."""
    query: Any = select(column("task_id")).select_from(tasks).order_by(tasks.c.opened_at, tasks.c.task_id)
    return [str(task_id) for task_id in connection.execute(query).scalars()]


def damaged_rows(connection: Connection, task_id: str) -> Iterator[str]:
    """What is wrong with the rows of a task, each with its table and key."""
    for table in (tasks, clients, rounds, models, escrow_settlements):
        yield from _damaged_values(connection, table, task_id)
    numbers = set(connection.execute(_raw(rounds, task_id, "round_number")).scalars())
    known = set(connection.execute(_raw(clients, task_id, "client_id")).scalars())
    for table in _OF_ROUND_AND_CLIENT:
        yield from _damaged_values(connection, table, task_id)
        for number, client_id in connection.execute(_raw(table, task_id, "round_number", "client_id")):
            if number not in numbers or client_id not in known:
                yield f"table {table.name}, round {number}, client {client_id}: there is no such round or client"


def lost_rows(connection: Connection) -> Iterator[str]:
    """Rows of tasks that do not exist."""
    for table in (clients, rounds, models, escrow_settlements, *_OF_ROUND_AND_CLIENT):
        query: Any = select(column("task_id")).select_from(table).distinct()
        for task_id in connection.execute(query.where(table.c.task_id.not_in(select(tasks.c.task_id)))).scalars():
            yield f"table {table.name}: there is no task {task_id}"


def _raw(table: Table, task_id: str, *names: str) -> Any:
    """The columns as the driver returns them, without a conversion that could fail."""
    return select(*(column(name) for name in names)).select_from(table).where(table.c.task_id == task_id)


def _damaged_values(connection: Connection, table: Table, task_id: str) -> Iterator[str]:
    tests = {known.name: _test(table, known) for known in table.columns}
    for row in connection.execute(_raw(table, task_id, *tests)):
        values = dict(zip(tests, row, strict=True))
        key = ", ".join(f"{known.name} {values[known.name]}" for known in table.primary_key.columns)
        for name, is_sound in tests.items():
            if not is_sound(values[name]):
                yield f"table {table.name}, {key}: {name} is {_shown(values[name])}"


def _test(table: Table, known: Column[Any]) -> Callable[[Any], bool]:
    """A function that tells whether a value is valid in a column."""
    place = (table.name, known.name)
    if place in _CHOICES:
        choices = {choice.value for choice in _CHOICES[place]}
        is_sound: Callable[[Any], bool] = lambda value: value in choices  # noqa: E731
    elif place in _DIGESTS:
        is_sound = _is_digest
    elif place == ("clients", "label_counts"):
        is_sound = _is_counts
    elif isinstance(known.type, Boolean):
        is_sound = _is_boolean
    elif isinstance(known.type, Integer):
        is_sound = _is_count
    elif isinstance(known.type, Double):
        is_sound = _is_number
    else:
        is_sound = _is_text
    return lambda value: bool(known.nullable) if value is None else is_sound(value)


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def _is_counts(value: Any) -> bool:
    try:
        counts = json.loads(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return isinstance(counts, list) and all(map(_is_count, counts))


def _is_boolean(value: Any) -> bool:
    # SQLite stores booleans as integers.
    return type(value) in (bool, int) and value in (0, 1)


def _is_count(value: Any) -> bool:
    # Counts, times and amounts of money.
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}…"
