"""`Spool`: an array that grows record by record. Beyond some size it lies in a temporary file instead of the memory."""

import tempfile
from contextlib import suppress
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ..workload import DataMissing

KEPT_BYTES = 64 << 20


class Spool:
    """Blocks of records of one shape and type.

    The file has no name: the operating system removes it when the process ends, also after a kill.
    """

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike, *, kept_bytes: int = KEPT_BYTES) -> None:
        self._shape = shape
        self._dtype = np.dtype(dtype)
        self._kept_bytes = kept_bytes
        self._blocks: list[npt.NDArray[Any]] = []
        self._in_memory = 0
        self._count = 0
        self._file: IO[bytes] | None = None

    def __len__(self) -> int:
        return self._count

    def append(self, block: npt.NDArray[Any]) -> None:
        """Add some records. Raises `DataMissing` if there is no room on the disk."""
        self._count += len(block)
        self._blocks.append(np.ascontiguousarray(block, dtype=self._dtype))
        self._in_memory += self._blocks[-1].nbytes
        if self._in_memory > self._kept_bytes:
            self._write()

    def array(self) -> npt.NDArray[Any]:
        """All records, at the end. An array in a file is read from there when it is used."""
        whole = (self._count, *self._shape)
        if self._file is None:
            return np.concatenate(self._blocks) if self._blocks else np.empty(whole, dtype=self._dtype)
        self._write()
        # The mapping keeps the file.
        with self._file:
            return np.memmap(self._file, dtype=self._dtype, mode="r", shape=whole)

    def _write(self) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="qidpfl-records-")  # noqa: SIM115 - it lives as long as the array
            for block in self._blocks:
                self._file.write(block.data)
            self._file.flush()
        except OSError as error:
            with suppress(OSError):
                if self._file is not None:
                    self._file.close()
            raise DataMissing(
                f"the records do not fit in the memory, and {tempfile.gettempdir()} has no room for them:"
                f" {error.strerror}; set TMPDIR to a folder on a larger disk"
            ) from error
        self._blocks, self._in_memory = [], 0
