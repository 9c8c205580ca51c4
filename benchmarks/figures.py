"""Stored figures of the benchmarks, and the comparison of new ones with them.

A figure is the ratio of a cost here to that of a floor measured in the same repeat, so that it depends little on the
machine. All repeats are stored, not only their median: the comparison needs their spread.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

# By this part a median must have changed. Smaller changes are not worth a message, even if they are real.
LEAST_CHANGE = 0.10

Figures = Mapping[str, Sequence[float]]


def change(stored: Sequence[float], measured: Sequence[float]) -> str:
    """Return `slower`, `faster` or `same`.

    A figure has changed if its repeats do not overlap with the stored ones. Two times five repeats of the same program
    lie apart, slower or faster, in one of 126 comparisons: the spread of the repeats is the tolerance.

    >>> change([10.0, 11.0, 12.0], [13.5, 14.0, 15.0])
    'slower'
    >>> change([10.0, 11.0, 12.0], [11.5, 14.0, 15.0])
    'same'
    """
    ratio = statistics.median(measured) / statistics.median(stored)
    if min(measured) > max(stored) and ratio > 1 + LEAST_CHANGE:
        return "slower"
    if max(measured) < min(stored) and ratio < 1 / (1 + LEAST_CHANGE):
        return "faster"
    return "same"


def slower(stored: Figures, measured: Figures) -> list[str]:
    """The names of the figures that got slower. A figure that is not stored is new and has not changed."""
    return [name for name, values in measured.items() if name in stored and change(stored[name], values) == "slower"]


def report(stored: Figures, measured: Figures) -> list[str]:
    """One line for each measured figure, and one for all stored figures that were not measured."""
    width = max(map(len, measured), default=0)
    lines = []
    for name, values in measured.items():
        now = f"{name:{width}s}  {_spread(values)}"
        if name in stored:
            lines.append(f"{now}   stored {_spread(stored[name])}   {change(stored[name], values)}")
        else:
            lines.append(f"{now}   not stored")
    if missing := [name for name in stored if name not in measured]:
        lines.append(f"stored, but not measured: {', '.join(missing)}")
    return lines


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):7.2f} ({min(values):.2f}–{max(values):.2f})"


def load(path: Path) -> dict[str, list[float]]:
    """Read the stored figures; there are none before the first `save`."""
    if not path.exists():
        return {}
    content: dict[str, list[float]] = json.loads(path.read_text())
    return content


def save(path: Path, measured: Figures) -> None:
    """Write the figures, three significant digits each."""
    rounded = {name: [float(f"{value:.3g}") for value in values] for name, values in measured.items()}
    path.write_text(json.dumps(rounded, indent=2) + "\n")
