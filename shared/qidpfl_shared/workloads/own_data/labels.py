"""`LabelReader`: what a file has as the label of a record becomes the number of a label of the task."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ...protocol.task_spec import LabelKind, LabelSpec
from ...protocol.task_spec.data import SET_SEPARATOR, canonical_set
from ..workload import LabelMismatch

# Says where the record of this index is, for a message.
Place = Callable[[int], str]


class LabelReader:
    """Reads labels, and counts what it does not know: one message then names all of it.

    `renamed` maps names of the owner to names of the task. Without it, a name may differ in capitals only.
    """

    def __init__(self, spec: LabelSpec, renamed: Mapping[str, str] | None = None) -> None:
        self._spec = spec
        self._unknown: Counter[str] = Counter()
        self._first = ""
        self._numbers = _numbers_of(spec)
        for own, name in (renamed or {}).items():
            if name not in self._numbers:
                raise LabelMismatch(f"the task has no label {name!r}; its labels are {listed(spec.shown)}")
            self._numbers[own] = self._numbers[name]

    def read(self, values: Sequence[object], place: Place) -> npt.NDArray[np.int64]:
        """The numbers of some labels; `place` says where each one is. Unknown labels are -1."""
        cache: dict[str, int] = {}
        numbers = np.empty(len(values), dtype=np.int64)
        for index, value in enumerate(values):
            key = value if isinstance(value, str) else repr(value)
            number = cache.get(key)
            if number is None:
                number = cache[key] = self._number(value)
            if number < 0:
                self._unknown[shortened(text_of(value))] += 1
                self._first = self._first or place(index)
            numbers[index] = number
        return numbers

    def check(self) -> None:
        """Raise `LabelMismatch` if a label was unknown or missing."""
        if not self._unknown:
            return
        found = listed([f"{name or 'no label'} ({count})" for name, count in self._unknown.most_common(5)])
        more = f" and {len(self._unknown) - 5} others" if len(self._unknown) > 5 else ""
        raise LabelMismatch(f"{self._first}: {self._what}: {found}{more}; {self._remedy}")

    @cached_property
    def _what(self) -> str:
        if self._spec.kind is LabelKind.BINS:
            return "a label that is not a number"
        kind = "sets of labels" if self._spec.kind is LabelKind.SETS else "labels"
        return f"{kind} that the task does not have (it has {listed(self._spec.shown)})"

    @property
    def _remedy(self) -> str:
        if self._spec.kind is LabelKind.BINS:
            return "remove these records, or correct them"
        return "correct the data, or map a name with --label-name YOURS=THE_TASKS"

    def _number(self, value: object) -> int:
        if self._spec.edges is not None:
            try:
                number = float(str(value))
            except ValueError:
                return -1
            return bisect_right(self._spec.edges, number) if math.isfinite(number) else -1
        name = self._name(value)
        known = self._numbers.get(name)
        return self._folded.get(name.casefold(), -1) if known is None else known

    def _name(self, value: object) -> str:
        if self._spec.kind is LabelKind.SETS:
            parts = value if isinstance(value, list) else str("" if value is None else value).split(SET_SEPARATOR)
            return canonical_set([str(part) for part in parts])
        return text_of(value)

    @cached_property
    def _folded(self) -> dict[str, int]:
        """The numbers by names in small letters, of those that are still different then."""
        counts = Counter(name.casefold() for name in self._numbers)
        return {name.casefold(): number for name, number in self._numbers.items() if counts[name.casefold()] == 1}


def _numbers_of(spec: LabelSpec) -> dict[str, int]:
    return {} if spec.edges is not None else {name: number for number, name in enumerate(spec.shown)}


def text_of(value: object) -> str:
    """A value as the text that a file would have.

    >>> text_of(1.0), text_of(True), text_of(None), text_of(" benign ")
    ('1', 'true', '', 'benign')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else str(value).strip()


def shortened(text: str) -> str:
    """A text for a message."""
    return text if len(text) <= 60 else f"{text[:57]}..."


def record_place(name: str, start: int, index: int) -> str:
    """Where the record of this index is, in a file without lines."""
    return f"{name} record {start + index + 1}"


def line_place(name: str, lines: Sequence[int], index: int) -> str:
    """Where the record of this index is, in a file whose first line is a header."""
    return f"{name} line {lines[index] + 1}"


def listed(names: Sequence[str]) -> str:
    shown = [name or "(none)" for name in names[:10]]
    return ", ".join(shown) + (f", ... ({len(names)} in all)" if len(names) > 10 else "")
