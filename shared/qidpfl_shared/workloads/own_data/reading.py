"""`read_own_data`: find out the form of a file or folder, and read all of its records."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...protocol.task_spec import DataSpec
from ..records import Records
from ..workload import DataMismatch, DataMissing
from .arrow_files import is_saved_data_set, read_parquet, read_saved_data_set
from .csv_files import STANDARD_INPUT, read_csv, shown_name
from .images import SUFFIXES as IMAGES
from .images import ImageReader, read_image_folder
from .labels import LabelReader, listed
from .npz_files import read_npz
from .tables import TableReader

_CSV = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
_FORMS = (
    "a CSV, Parquet or .npz file, a folder with such files, a folder with one folder of images per label,"
    " or a data set saved by Hugging Face's datasets"
)


@dataclass(frozen=True, kw_only=True)
class OwnFiles:
    """Where the owner's data are, and which of its names are others in the task (own name: the task's name)."""

    path: Path
    columns: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class OwnRecords:
    """The records of an owner, and notes of what was left out or replaced."""

    records: Records
    notes: tuple[str, ...]


class _Renamed(Mapping[str, str]):
    """The task's names of the owner's columns, and which of them no file has had so far."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self.unmet = set(names)

    def __getitem__(self, own: str) -> str:
        name = self._names[own]
        self.unmet.discard(own)
        return name

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def read_own_data(files: OwnFiles, spec: DataSpec) -> OwnRecords:
    """Read and check all records. Raises `DataMissing` or `DataMismatch` with one line that says what to do."""
    try:
        return _read(files, spec)
    except MemoryError:
        raise DataMissing(
            f"{shown_name(files.path)} needs more memory than there is; divide it, or save it as CSV or Parquet,"
            " which are read in pieces"
        ) from None


def _read(files: OwnFiles, spec: DataSpec) -> OwnRecords:
    path, renamed = files.path, _Renamed(files.columns)
    labels = LabelReader(spec.label, files.labels)
    reader = TableReader(spec, labels) if spec.image is None else ImageReader(spec, labels)
    unused: list[str] = []
    if path.is_dir() and is_saved_data_set(path):
        unused = read_saved_data_set(path, reader, renamed)
    elif path.is_dir() and isinstance(reader, ImageReader) and _has_image_folders(path):
        unused = read_image_folder(path, reader)
    else:
        for file in _files_of(path):
            unused += _read_file(file, reader, spec, renamed)
    if renamed.unmet:
        own = min(renamed.unmet)
        raise DataMismatch(
            f"--column {own}={files.columns[own]}: {shown_name(path)} has no column {own!r};"
            " leave it out, or correct it"
        )
    records, notes = reader.finish(shown_name(path))
    if unused:
        kind = "columns" if isinstance(reader, TableReader) else "files or columns"
        notes = [f"not used: the {kind} {listed(list(dict.fromkeys(unused)))}", *notes]
    return OwnRecords(records=records, notes=tuple(notes))


def _read_file(path: Path, reader: TableReader | ImageReader, spec: DataSpec, renamed: Mapping[str, str]) -> list[str]:
    if path.suffix == ".npz":
        return read_npz(path, reader, spec.label.names, renamed)
    if isinstance(reader, ImageReader):
        raise DataMismatch(f"the task takes images, and {shown_name(path)} is a table; give {_FORMS}")
    if path.suffix == ".parquet":
        return read_parquet(path, reader, renamed)
    return read_csv(path, reader, renamed)


def _files_of(path: Path) -> list[Path]:
    """The files to read: one, or all of one form in a folder, by name."""
    if path == STANDARD_INPUT or (path.exists() and not path.is_dir() and not path.is_file()):
        # A pipe has no form in its name: it carries CSV.
        return [path]
    if not path.exists():
        raise DataMissing(f"there is no file or folder {path}")
    if path.is_file():
        if _form(path) is None:
            raise DataMismatch(f"{path.name} has a form that is not known; give {_FORMS}")
        return [path]
    found = sorted(file for file in path.iterdir() if file.is_file() and _form(file) is not None)
    if not found:
        if not any(path.iterdir()):
            raise DataMissing(f"the folder {path} is empty; give {_FORMS}")
        if _has_image_folders(path):
            raise DataMismatch(f"the task takes a table, and {path.name} has images")
        raise DataMissing(f"the folder {path} has no data in it; give {_FORMS}")
    forms = {_form(file) for file in found}
    if len(forms) > 1:
        raise DataMismatch(f"{path.name} has files of different forms ({', '.join(sorted(map(str, forms)))}); name one")
    return found


def _form(path: Path) -> str | None:
    name = path.name.lower()
    if name.endswith(_CSV):
        return "CSV"
    return {".parquet": "Parquet", ".npz": "npz"}.get(path.suffix)


def _has_image_folders(path: Path) -> bool:
    inside = (one for folder in path.iterdir() if folder.is_dir() for one in folder.rglob("*"))
    return any(one.suffix.lower() in IMAGES for one in inside) or (
        not any(file.is_file() for file in path.iterdir()) and any(folder.is_dir() for folder in path.iterdir())
    )
