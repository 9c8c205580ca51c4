"""Read Parquet files, and data sets that Hugging Face's `datasets` has saved on disk, with pyarrow."""

import io
import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..workload import DataMismatch, DataMissing
from .images import ImageReader
from .labels import record_place
from .tables import TableReader, check_columns

_ROWS = 4096
_INSTALL = "install the extra parquet: pip install 'qidpfl-client[parquet]'"


def read_parquet(path: Path, table: TableReader, renamed: Mapping[str, str]) -> list[str]:
    """Read all records of a Parquet file into the table; return the columns that are not used."""
    arrow = _arrow(path)
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            return _read_tables(path.name, file.schema_arrow.names, file.iter_batches(_ROWS), table, renamed, {})
    except (arrow.ArrowException, OSError) as error:
        raise DataMissing(f"cannot read {path.name}: {_first_line(error)}") from error


def is_saved_data_set(folder: Path) -> bool:
    """Whether `datasets` has saved a data set, or several parts of one, in this folder."""
    return (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file()


def read_saved_data_set(folder: Path, reader: TableReader | ImageReader, renamed: Mapping[str, str]) -> list[str]:
    """Read a data set of Hugging Face on disk: of several parts the one called train. Return the unused columns."""
    if (folder / "dataset_dict.json").is_file():
        parts = _json(folder / "dataset_dict.json").get("splits", [])
        if "train" not in parts:
            raise DataMissing(
                f"{folder.name} has the parts {', '.join(parts)}, but no train; name the folder of a part"
            )
        folder = folder / "train"
    features = _json(folder / "dataset_info.json").get("features") or {}
    state = _json(folder / "state.json")
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise DataMismatch(f"{folder.name} is a selection of another data set; save it with flatten_indices()")
    files = [folder / Path(part["filename"]).name for part in state.get("_data_files", [])]
    if not files:
        raise DataMissing(f"{folder.name} has no data files")
    arrow = _arrow(folder)
    try:
        batches = _stream_batches(files)
        names = list(features)
        if isinstance(reader, ImageReader):
            return _read_images(folder.name, names, batches, reader, features, renamed)
        return _read_tables(folder.name, names, batches, reader, renamed, features)
    except (arrow.ArrowException, OSError) as error:
        raise DataMissing(f"cannot read {folder.name}: {_first_line(error)}") from error


def _read_tables(
    name: str,
    found: list[str],
    batches: Iterator[Any],
    table: TableReader,
    renamed: Mapping[str, str],
    features: Mapping[str, Any],
) -> list[str]:
    shown = [renamed.get(column, column) for column in found]
    unused = check_columns(name, table.wanted, shown)
    start = 0
    for batch in batches:
        columns = {
            column: _values(batch.column(shown.index(column)), features.get(found[shown.index(column)]))
            for column in table.wanted
        }
        table.read(columns, partial(record_place, name, start))
        start += batch.num_rows
    return unused


def _read_images(
    name: str,
    found: list[str],
    batches: Iterator[Any],
    images: ImageReader,
    features: Mapping[str, Any],
    renamed: Mapping[str, str],
) -> list[str]:
    shown = [renamed.get(column, column) for column in found]
    pictures = [column for column, kind in features.items() if _type(kind) == "Image"]
    if len(pictures) != 1:
        raise DataMismatch(f"{name} has {len(pictures)} columns of images; it must have one")
    unused = check_columns(name, (renamed.get(pictures[0], pictures[0]), images.label_column), shown)
    picture, label = found.index(pictures[0]), shown.index(images.label_column)
    start = 0
    for batch in batches:
        labels = _values(batch.column(label), features.get(found[label]))
        for index, cell in enumerate(batch.column(picture).to_pylist()):
            place = record_place(name, start, index)
            if not cell or cell.get("bytes") is None:
                raise DataMismatch(f"{place} has no image inside; save the data set with its images embedded")
            images.read(io.BytesIO(cell["bytes"]), labels[index], place)
        start += batch.num_rows
    return unused


def _values(column: Any, feature: Any) -> Any:
    """The values of a column. The numbers of a ClassLabel become its names."""
    names = feature.get("names") if _type(feature) == "ClassLabel" else None
    if names is None:
        return column.to_pylist()
    return [names[number] if number is not None and 0 <= number < len(names) else None for number in column.to_pylist()]


def _type(feature: Any) -> Any:
    return feature.get("_type") if isinstance(feature, Mapping) else None


def _stream_batches(files: list[Path]) -> Iterator[Any]:
    import pyarrow

    for path in files:
        with pyarrow.memory_map(str(path)) as source, pyarrow.ipc.open_stream(source) as stream:
            for batch in stream:
                for start in range(0, batch.num_rows, _ROWS):
                    yield batch.slice(start, _ROWS)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataMissing(f"cannot read {path.name} of {path.parent.name}: {_first_line(error)}") from error
    if not isinstance(found, dict):
        raise DataMissing(f"{path.name} of {path.parent.name} is not that of a saved data set")
    return found


def _arrow(path: Path) -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise DataMissing(f"pyarrow is needed to read {path.name}: {_INSTALL}") from error
    return pyarrow


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
