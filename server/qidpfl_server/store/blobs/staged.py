"""A blob that is being written, in a local file, and the folder of such files."""

import errno
import hashlib
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from xxhash import xxh3_128

from ...clock import Micros
from ...errors import StorageFull

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def translated_full_disk() -> Iterator[None]:
    """Raise `StorageFull` for the errors of the operating system that mean "no space"."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull("the blob folder has no space left") from error
        raise


class StagedBlob:
    """A blob that is being written. Leaving its context removes the file unless the blob was published.

    At most `memory_bytes` stay in memory; a larger blob is written to a file. Only `write`, `release` and `sync` use
    the disk, so that the event loop may create a blob.
    """

    def __init__(self, folder: Path, memory_bytes: int = 0) -> None:
        # None before the first write to the file, and after `release`.
        self._file: BinaryIO | None = None
        self._has_file = False
        self._memory_bytes = memory_bytes
        self._held: list[bytes] = []
        self._hash = hashlib.sha256()
        self._checksum = xxh3_128()
        self.path = folder / uuid.uuid4().hex
        self.byte_length = 0
        self.published = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append some bytes."""
        if not self._has_file and self.byte_length + len(data) <= self._memory_bytes:
            self._held.append(bytes(data))
        else:
            self._write_to_file(data)
        self._hash.update(data)
        self.byte_length += len(data)

    def _write_to_file(self, data: bytes | bytearray | memoryview) -> None:
        with translated_full_disk():
            file = self._opened()
            for held in self._held:
                file.write(held)
                self._checksum.update(held)
            self._held = []
            file.write(data)
        self._checksum.update(data)

    def _opened(self) -> BinaryIO:
        """The open file, which the first call creates."""
        if self._file is None:
            new = os.O_APPEND if self._has_file else os.O_CREAT | os.O_EXCL
            self._file = os.fdopen(os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | new, 0o600), "wb")
            self._has_file = True
        return self._file

    def release(self) -> None:
        """Close the file until the next write, so that uploads that wait for bytes do not hold all file handles."""
        if self._file is not None:
            file, self._file = self._file, None
            with translated_full_disk():
                file.close()

    def stays_in_memory(self, byte_length: int) -> bool:
        """Whether a blob of this length needs no file."""
        return byte_length <= self._memory_bytes

    @property
    def in_memory(self) -> bytes | None:
        """The bytes of a small blob, which is a row and not a file; None if there is a file."""
        return None if self._has_file or not self._memory_bytes else b"".join(self._held)

    def sync(self) -> None:
        """Fsync the bytes. `publish` gives them their name. The commit makes a small blob durable."""
        if not self._has_file and self._memory_bytes:
            return
        with translated_full_disk():
            file = self._opened()
            file.flush()
            os.fsync(file.fileno())
        file.close()

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    @property
    def checksum(self) -> str:
        """A fast checksum of the bytes of the file."""
        return self._checksum.hexdigest()

    def __enter__(self) -> "StagedBlob":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._has_file:
            return
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        if not self.published:
            self.path.unlink(missing_ok=True)


def file_time(staging: Path) -> Micros:
    """The present time of the file system: that of a file which is written now."""
    with StagedBlob(staging) as probe:
        probe.write(b"x")
        probe.sync()
        return _modified_at(probe.path)


def files_before(folders: Iterable[Path], moment: Micros) -> list[Path]:
    """The files of these folders that were written at this moment or before."""
    return [path for folder in folders for path in folder.iterdir() if is_older(path, moment)]


def remove_old(path: Path, staging: Path, before: Micros) -> bool:
    """Remove an old file. It is renamed first, because an upload may write new bytes under its name meanwhile."""
    try:
        if not is_older(path, before):
            return False
        aside = staging / f"{path.name}.{uuid.uuid4().hex}"
        os.rename(path, aside)
        if is_older(aside, before):
            aside.unlink()
            return True
        os.rename(aside, path)
    except FileNotFoundError:
        pass
    return False


def is_older(path: Path, moment: Micros) -> bool:
    """Whether a file was written at this moment or before; False if it is gone."""
    try:
        return _modified_at(path) <= moment
    except FileNotFoundError:
        return False


def _modified_at(path: Path) -> Micros:
    return path.stat().st_mtime_ns // 1000
