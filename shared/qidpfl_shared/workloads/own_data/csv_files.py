"""Read CSV files in batches: the text may be larger than the memory, and may come through a pipe."""

import csv
import gzip
import io
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ..workload import DataMismatch, DataMissing
from .labels import line_place
from .tables import TableReader, check_columns

if TYPE_CHECKING:
    import _csv

_ROWS = 4096
_DELIMITERS = (",", ";", "\t", "|")
STANDARD_INPUT = Path("-")


def read_csv(path: Path, table: TableReader, renamed: Mapping[str, str]) -> list[str]:
    """Read all records of a file into the table; return the columns that are not used.

    The first line has the names of the columns. Raises `DataMismatch` or `DataMissing`.
    """
    name = shown_name(path)
    try:
        with _opened(path) as file:
            return _read(name, file, table, renamed)
    except UnicodeDecodeError as error:
        raise DataMismatch(f"{name} is not a text in UTF-8 ({error.reason}); save it as CSV in UTF-8") from error
    except csv.Error as error:
        raise DataMismatch(f"{name} is not a CSV file: {error}") from error
    except (OSError, EOFError) as error:
        raise DataMissing(f"cannot read {name}: {getattr(error, 'strerror', None) or error}") from error


def shown_name(path: Path) -> str:
    """The name of a file in a message."""
    return "standard input" if path == STANDARD_INPUT else path.name


def _read(name: str, file: IO[str], table: TableReader, renamed: Mapping[str, str]) -> list[str]:
    first = file.readline()
    if not first.strip():
        raise DataMissing(f"{name} is empty; its first line must have the names of the columns")
    delimiter = max(_DELIMITERS, key=first.count)
    header = [column.strip() for column in next(csv.reader([first], delimiter=delimiter))]
    header = [renamed.get(column, column) for column in header]
    unused = check_columns(name, table.wanted, header)
    places = [header.index(column) for column in table.wanted]
    pick = itemgetter(*places)
    reader = csv.reader(file, delimiter=delimiter)
    for lines, rows in _batches(name, reader, len(header)):
        columns = dict(zip(table.wanted, zip(*map(pick, rows), strict=True), strict=True))
        table.read(columns, partial(line_place, name, lines))
    return unused


def _batches(name: str, reader: "_csv.Reader", width: int) -> Iterator[tuple[list[int], list[list[str]]]]:
    while True:
        lines: list[int] = []
        rows: list[list[str]] = []
        for row in islice(reader, _ROWS):
            # A line without any character is not a record.
            if row:
                if len(row) != width:
                    raise DataMismatch(
                        f"{name} line {reader.line_num + 1} has {len(row)} values, but there are {width} columns"
                    )
                lines.append(reader.line_num)
                rows.append(row)
        if rows:
            yield lines, rows
        elif not lines:
            return


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    if path == STANDARD_INPUT:
        # The caller keeps its standard input.
        with os.fdopen(os.dup(sys.stdin.fileno()), encoding="utf-8-sig", newline="") as file:
            yield file
    elif path.suffix == ".gz":
        with gzip.open(path) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as file:
            yield file
    else:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield file
