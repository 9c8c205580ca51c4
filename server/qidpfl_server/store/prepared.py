"""Runs the statements that every round repeats without the work that SQLAlchemy repeats at each execution.

SQLAlchemy writes each statement in the dialect of the database. To execute a small one costs it several times as much
as the database needs. `Prepared` keeps the text and the conversions of the columns, and runs them on the driver's own
cursor: in the transaction of SQLAlchemy's connection, with its events and its translation of errors.
"""

from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import Connection, Executable, Insert
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ClauseElement
from sqlalchemy.types import TypeEngine

Parameters = Mapping[str, Any]
Convert = Callable[[Any], Any]


class FoundRows:
    """What a statement has returned: named tuples, or only their number."""

    def __init__(self, rows: list[Any], rowcount: int) -> None:
        self._rows = rows
        self.rowcount = rowcount

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def all(self) -> list[Any]:
        """All rows."""
        return self._rows

    def scalars(self) -> list[Any]:
        """The first column of all rows."""
        return [row[0] for row in self._rows]

    def scalar(self) -> Any:
        """The first column of the first row; None if there is no row."""
        return self._rows[0][0] if self._rows else None

    def one_or_none(self) -> Any:
        """The only row; None if there is no row. Raises ValueError if there are several."""
        if len(self._rows) > 1:
            raise ValueError(f"{len(self._rows)} rows where at most one was expected")
        return self._rows[0] if self._rows else None


class Prepared:
    """A statement that is compiled once for each dialect. It must have no `IN` with a list of values."""

    def __init__(self, statement: Executable) -> None:
        # Without this an INSERT would return its primary key, which SQLAlchemy expects to read.
        plain = statement.inline() if isinstance(statement, Insert) and not statement._returning else statement
        self._statement = cast(ClauseElement, plain)
        # By dialect and the names of the parameters: an INSERT without values has the columns that it is given.
        self._compiled: dict[tuple[str, ...], _Compiled] = {}

    def run(self, connection: Connection, parameters: Parameters | Sequence[Parameters]) -> FoundRows:
        """Execute the statement, once for each set of parameters."""
        many = not isinstance(parameters, Mapping)
        sets: Sequence[Parameters] = cast(Sequence[Parameters], parameters) if many else [cast(Parameters, parameters)]
        key = (connection.dialect.name, *sets[0])
        if (compiled := self._compiled.get(key)) is None:
            compiled = self._compiled[key] = _Compiled.of(self._statement, connection, sets[0])
        bound = [compiled.bound(one) for one in sets]
        driver = connection.connection.driver_connection
        assert driver is not None
        cursor = driver.cursor()
        for listener in connection.dispatch.before_cursor_execute:
            listener(connection, cursor, compiled.text, bound, None, many)
        try:
            if len(bound) == 1:
                cursor.execute(compiled.text, bound[0])
            else:
                cursor.executemany(compiled.text, bound)
            rows = [] if compiled.row is None else compiled.rows(cursor.fetchall(), cursor.description, connection)
            return FoundRows(rows, cursor.rowcount)
        except BaseException as error:
            # The only way to SQLAlchemy's own errors, events of errors, and check for a lost connection.
            connection._handle_dbapi_exception(error, compiled.text, cast(Any, bound), cursor, None)
        finally:
            cursor.close()


@dataclass
class _Compiled:
    """The text of a statement in one dialect, and how its parameters and rows are converted."""

    text: str
    # The names of the parameters in their order, for a driver that wants a tuple.
    names: Sequence[str] | None
    # The parameters that the statement itself has.
    constants: Parameters
    converted: Mapping[str, Convert]
    row: Callable[..., Any] | None
    types: Sequence[TypeEngine[Any]]
    # Known after the first rows: it depends on what the driver says of its columns. Empty if all stay as they are.
    columns: Sequence[Convert] | None = None

    @classmethod
    def of(cls, statement: ClauseElement, connection: Connection, example: Parameters) -> "_Compiled":
        dialect = connection.dialect
        keys = list(example) if statement.is_dml else None
        compiled = cast(SQLCompiler, statement.compile(dialect=dialect, column_keys=keys))
        assert not compiled.post_compile_params, "use an ordinary statement for a list of values"
        columns = [entry.keyname for entry in compiled._result_columns]
        return cls(
            text=str(compiled),
            names=compiled.positiontup if compiled.positional else None,
            constants={name: value for name, value in compiled.params.items() if name not in example},
            converted=cast(Mapping[str, Convert], compiled._bind_processors),
            # The columns of aggregates have names that no attribute can have.
            row=_row_type(columns) if columns else None,
            types=[entry.type for entry in compiled._result_columns],
        )

    def bound(self, parameters: Parameters) -> tuple[Any, ...] | Parameters:
        """The parameters as the driver wants them."""
        values = {**self.constants, **parameters}
        for name, convert in self.converted.items():
            values[name] = convert(values[name])
        return values if self.names is None else tuple([values[name] for name in self.names])

    def rows(self, found: Sequence[Any], description: Sequence[Any], connection: Connection) -> list[Any]:
        """The rows as named tuples, with the values that SQLAlchemy's types have."""
        assert self.row is not None
        if self.columns is None:
            dialect = connection.dialect
            known = [
                type_.dialect_impl(dialect).result_processor(dialect, column[1])
                for type_, column in zip(self.types, description, strict=True)
            ]
            self.columns = [convert or _unchanged for convert in known] if any(known) else ()
        if not self.columns:
            return list(map(self.row, found))
        return [self.row(map(_applied, self.columns, values)) for values in found]


def _row_type(columns: Sequence[str]) -> Callable[..., Any]:
    """Makes a named tuple of the values of a row."""
    kind = namedtuple("Row", columns, rename=True)  # type: ignore[misc]
    return cast(Callable[..., Any], kind._make)


def _unchanged(value: Any) -> Any:
    return value


def _applied(convert: Convert, value: Any) -> Any:
    return convert(value)
