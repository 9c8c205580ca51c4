"""Rows as DataFrames, with the library that is installed: pandas, else polars.

This is a separate module, because only it knows that either library may be missing.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from .errors import MissingExtra

Library = Literal["pandas", "polars"]
LIBRARIES: tuple[Library, ...] = ("pandas", "polars")
# A row by the names of its columns.
TableRow = dict[str, Any]


def frame(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], library: Library | None = None) -> Any:
    """A DataFrame with these columns, also if there are no rows. Its type depends on the library.

    Raises:
        MissingExtra: the library, or without a choice both, are not installed.
    """
    chosen = library or next((name for name in LIBRARIES if find_spec(name) is not None), None)
    if chosen is None or find_spec(chosen) is None:
        raise MissingExtra("a DataFrame", *((chosen,) if chosen else LIBRARIES))
    by_column = {column: [row[column] for row in rows] for column in columns}
    # Both libraries build a frame from a mapping of columns.
    return import_module(chosen).DataFrame(by_column)
