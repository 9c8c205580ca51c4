"""Rows are checked as they are read: SQLite takes any value in any column, and somebody may have edited the file."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from sqlalchemy import Column, Row, Table

from ..errors import DamagedState

Read = TypeVar("Read")


def rows_of(table: Table) -> Callable[[Callable[[Row[Any]], Read]], Callable[[Row[Any]], Read]]:
    """Guard a function that reads whole rows of a table: one it cannot read is `DamagedState` with table and key."""
    columns = list(table.columns)
    allowed = [_kinds(column) for column in columns]
    # Most rows look alike, so that almost all are checked by one look at this set.
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
    key = ", ".join(f"{column.name} {row._mapping[column]}" for column in table.primary_key)
    return DamagedState(f"the row with {key} in table {table.name} cannot be read: {reason}")
