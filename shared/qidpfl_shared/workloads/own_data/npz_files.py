"""Read `.npz` files of numpy: an array `features` (or `x`), and one of labels. Pickled objects are refused."""

import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..workload import DataMismatch, DataMissing
from .images import ImageReader
from .labels import record_place
from .tables import TableReader

_FEATURES = ("features", "x", "X", "images", "data")
_LABELS = ("labels", "y", "Y", "label", "targets")
_ROWS = 4096


def read_npz(
    path: Path, reader: TableReader | ImageReader, names: tuple[str, ...] | None, renamed: Mapping[str, str]
) -> list[str]:
    """Read all records of a file; return the arrays that are not used.

    `names` are the labels of the task: whole numbers in the file are their places, unless a label is such a number.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = {renamed.get(name, name): name for name in arrays.files}
            wanted = reader.wanted[-1] if isinstance(reader, TableReader) else reader.label_column
            features = _chosen(path, found, _FEATURES)
            labels = _chosen(path, found, (wanted, *_LABELS))
            values = _label_values(arrays[found[labels]], names)
            _read(path.name, arrays[found[features]], values, reader)
            return [name for name in found if name not in (features, labels)]
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        reason = "it has pickled objects, which could run code" if "pickle" in str(error) else "it is damaged"
        raise DataMissing(f"cannot read {path.name}: {reason}; save plain arrays with numpy.savez") from error


def _read(name: str, features: npt.NDArray[Any], labels: list[Any], reader: TableReader | ImageReader) -> None:
    if features.dtype.kind not in "iufb":
        raise DataMismatch(f"{name}: the features are of type {features.dtype}, not numbers")
    if features.ndim == 0 or len(features) != len(labels):
        raise DataMismatch(f"{name}: there are {len(labels)} labels for features of shape {list(features.shape)}")
    if isinstance(reader, ImageReader):
        pixels = reader.arranged(features, name)
        for index, label in enumerate(labels):
            reader.add(pixels[index], label, record_place(name, 0, index))
        return
    columns = reader.wanted[:-1]
    if features.ndim != 2 or features.shape[1] != len(columns):
        raise DataMismatch(
            f"{name}: the features have the shape {list(features.shape)}, but the task has {len(columns)} columns:"
            f" {', '.join(columns)[:200]}"
        )
    for start in range(0, len(labels), _ROWS):
        block = features[start : start + _ROWS]
        batch: dict[str, Any] = {column: block[:, place] for place, column in enumerate(columns)}
        batch[reader.wanted[-1]] = labels[start : start + _ROWS]
        reader.read(batch, partial(record_place, name, start))


def _chosen(path: Path, found: Mapping[str, str], choices: tuple[str, ...]) -> str:
    for name in choices:
        if name in found:
            return name
    raise DataMismatch(f"{path.name} has the arrays {', '.join(found) or '(none)'}, but none called {choices[0]}")


def _label_values(labels: npt.NDArray[Any], names: tuple[str, ...] | None) -> list[Any]:
    values: list[Any] = labels.tolist() if labels.ndim else [labels.item()]
    if names is None or labels.dtype.kind not in "iu" or any(name.lstrip("-").isdigit() for name in names):
        return values
    return [names[value] if 0 <= value < len(names) else value for value in values]
