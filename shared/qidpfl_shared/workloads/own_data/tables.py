"""`TableReader`: the columns of a table become the inputs of a network, as the task's spec states them."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...protocol.task_spec import ColumnSpec, DataSpec
from ..records import Records
from ..workload import DataMismatch, DataMissing
from .labels import LabelReader, Place, listed, shortened, text_of
from .spool import Spool

Block = npt.NDArray[np.float32]

# What files have where a value is missing.
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "-"})
# If more values than this part lie outside the public range, the unit is probably another one.
_MOST_OUTSIDE = 0.5


class NumberColumn:
    """Scales numbers to -1 to 1, and counts those that are missing or outside the range."""

    def __init__(self, spec: ColumnSpec) -> None:
        assert spec.low is not None and spec.high is not None
        self._spec, self._low, self._high = spec, spec.low, spec.high
        self._missing, self._first_missing = 0, ""
        self._outside = self._count = 0

    def read(self, values: Sequence[object] | npt.NDArray[Any], place: Place) -> Block:
        """The inputs of some records."""
        numbers = self._numbers(values, place)
        gaps = np.isnan(numbers)
        if gaps.any():
            self._missing += int(np.count_nonzero(gaps))
            self._first_missing = self._first_missing or place(int(np.argmax(gaps)))
            numbers[gaps] = self._low if self._spec.missing is None else float(self._spec.missing)
        if np.isinf(numbers).any():
            index = int(np.argmax(np.isinf(numbers)))
            raise DataMismatch(f"{place(index)}: column {self._spec.name!r} is infinite")
        self._count += len(numbers)
        self._outside += int(np.count_nonzero((numbers < self._low) | (numbers > self._high)))
        middle, half = (self._low + self._high) / 2, (self._high - self._low) / 2
        inputs: Block = ((np.clip(numbers, self._low, self._high) - middle) / half).astype(np.float32)
        return inputs[:, None]

    def check(self) -> list[str]:
        """Raise `DataMismatch` if values are missing, or most are outside the range; else say what was replaced."""
        name, spec = self._spec.name, self._spec
        if self._missing and spec.missing is None:
            raise DataMismatch(_missing_line(self._first_missing, name, self._missing))
        outside = f"{self._outside} of {self._count} values are outside the task's range {spec.low:g} to {spec.high:g}"
        if self._outside > _MOST_OUTSIDE * self._count:
            raise DataMismatch(f"column {name!r}: {outside}; does your file use the task's unit?")
        notes = [f"column {name!r}: {outside} and count as its nearer end"] if self._outside else []
        if self._missing:
            notes.append(f"column {name!r}: {self._missing} missing values count as {spec.missing}")
        return notes

    def _numbers(self, values: Sequence[object] | npt.NDArray[Any], place: Place) -> npt.NDArray[np.float64]:
        try:
            return np.array(values, dtype=np.float64)
        except (TypeError, ValueError):
            return np.array([self._number(value, place, index) for index, value in enumerate(values)])

    def _number(self, value: object, place: Place, index: int) -> float:
        text = text_of(value)
        if text.casefold() in MISSING:
            return math.nan
        try:
            return float(text)
        except ValueError:
            shown = shortened(text)
            raise DataMismatch(f"{place(index)}: column {self._spec.name!r} is {shown!r}, not a number") from None


class CategoryColumn:
    """Turns categories into inputs of 0 and 1, and counts those that the task does not have."""

    def __init__(self, spec: ColumnSpec) -> None:
        assert spec.categories is not None
        self._spec = spec
        self._places = {name: place for place, name in enumerate(spec.categories)}
        self._unknown: Counter[str] = Counter()
        self._first_unknown = self._first_missing = ""
        self._missing = 0

    def read(self, values: Sequence[object] | npt.NDArray[Any], place: Place) -> Block:
        """The inputs of some records."""
        inputs: Block = np.zeros((len(values), len(self._places)), dtype=np.float32)
        for index, value in enumerate(values):
            found = self._place_of(text_of(value), place, index)
            if found is not None:
                inputs[index, found] = 1.0
        return inputs

    def check(self) -> list[str]:
        """Raise `DataMismatch` if a category is unknown or missing; else say what was replaced."""
        name = self._spec.name
        if self._unknown:
            found = listed([f"{value} ({count})" for value, count in self._unknown.most_common(5)])
            has = listed(list(self._places))
            raise DataMismatch(f"{self._first_unknown}: column {name!r} has {found}; the task's categories are {has}")
        if self._missing and self._spec.missing is None:
            raise DataMismatch(_missing_line(self._first_missing, name, self._missing))
        filled = f"column {name!r}: {self._missing} missing values count as {self._spec.missing}"
        return [filled] if self._missing else []

    def _place_of(self, text: str, place: Place, index: int) -> int | None:
        found = self._places.get(text)
        if found is not None:
            return found
        if text.casefold() in MISSING:
            self._missing += 1
            self._first_missing = self._first_missing or place(index)
            return None if self._spec.missing is None else self._places[str(self._spec.missing)]
        self._unknown[shortened(text)] += 1
        self._first_unknown = self._first_unknown or place(index)
        return None


class TableReader:
    """Reads batches of columns. The records lie in memory, or in a file if they are many."""

    def __init__(self, spec: DataSpec, labels: LabelReader) -> None:
        assert spec.columns is not None
        self._spec = spec
        self._labels = labels
        self._columns = {
            column.name: NumberColumn(column) if column.categories is None else CategoryColumn(column)
            for column in spec.columns
        }
        self._features = Spool(spec.record_shape, np.float32)
        self._numbers = Spool((), np.int64)

    @property
    def wanted(self) -> tuple[str, ...]:
        """The columns that a batch must have."""
        return (*self._columns, self._spec.label.column)

    def read(self, columns: Mapping[str, Sequence[object] | npt.NDArray[Any]], place: Place) -> None:
        """Read a batch. Raises `DataMismatch` for a value that is no number."""
        blocks = [column.read(columns[name], place) for name, column in self._columns.items()]
        self._features.append(np.concatenate(blocks, axis=1))
        self._numbers.append(self._labels.read(list(columns[self._spec.label.column]), place))

    def finish(self, name: str) -> tuple[Records, list[str]]:
        """All records, and what the owner should know. Raises `DataMismatch` or `DataMissing` if they do not fit."""
        if not len(self._numbers):
            raise DataMissing(f"{name} has no records")
        self._labels.check()
        notes = [note for column in self._columns.values() for note in column.check()]
        return Records(features=self._features.array(), labels=self._numbers.array()), notes


def check_columns(name: str, wanted: Sequence[str], found: Sequence[str]) -> list[str]:
    """Raise `DataMismatch` if a wanted column is not there, or twice; return those that are not used."""
    lacking = [column for column in wanted if column not in found]
    if lacking:
        raise DataMismatch(
            f"{name} lacks the column{'s' if len(lacking) > 1 else ''} {listed(lacking)}; it has {listed(found)}."
            " Rename a column in the file, or with --column YOURS=THE_TASKS"
        )
    twice = [column for column in wanted if list(found).count(column) > 1]
    if twice:
        raise DataMismatch(f"{name} has the column {twice[0]!r} twice")
    return [column for column in found if column not in wanted]


def _missing_line(first: str, name: str, count: int) -> str:
    values = "1 value is missing" if count == 1 else f"{count} values are missing"
    return (
        f"{first}: column {name!r}: {values}; fill in or remove these records,"
        " or ask the operator for a task that says what a missing value counts as (missing = ...)"
    )
