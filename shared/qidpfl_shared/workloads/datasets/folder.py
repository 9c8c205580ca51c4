"""The folder with the files of data sets. Its owner names it; its structure is the one of torchvision."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..workload import DataMissing


def default_folder() -> Path:
    """Return the folder for downloads if the owner names none."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qidpfl"


@dataclass(frozen=True, kw_only=True)
class DataFolder:
    """A folder of data sets, and whether missing files may be downloaded."""

    path: Path
    download: bool

    def files(self, dataset: str, names: Sequence[str]) -> list[Path]:
        """Return the paths of files, given relative to the folder. A file may also have `.gz` at its end.

        Raises `DataMissing` if a file is not there, or if its download fails.
        """
        missing = [name for name in names if self._find(name) is None]
        if missing and self.download:
            from ..download import download

            download(dataset, into=self.path)
            missing = [name for name in names if self._find(name) is None]
        if missing:
            hint = "" if self.download else "; put the files there, or allow their download"
            raise DataMissing(f"{dataset}: no {missing[0]} in {self.path}{hint}")
        return [found for name in names if (found := self._find(name)) is not None]

    def _find(self, name: str) -> Path | None:
        plain = self.path / name
        packed = plain.with_name(f"{plain.name}.gz")
        return next((path for path in (plain, packed) if path.is_file()), None)
