"""Content-addressed files: what has a digest here is complete, and is checked whenever it is read.

A file is written under a name of its own, synced, renamed to its digest, and the folder is synced: a name in `objects`
never points to half a file, and an acknowledged one survives a power cut.
"""

import errno
import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from ..clock import Micros
from ..errors import DamagedState, StorageFull, StoreBusy

_PIECE = 1 << 20
_AWAY = "the folder of models and updates is not there"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def translated_full_disk() -> Iterator[None]:
    """Turn the operating system's "no space" into our own error."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull("the blob folder has no space left") from error
        raise


class StagedBlob:
    """A blob that is being written. Leaving its context removes it unless it was published.

    The disk is first touched by `write`, so that a blob may be made, and left unwritten, where nothing may block.
    """

    def __init__(self, folder: Path) -> None:
        self._file: BinaryIO | None = None
        self._hash = hashlib.sha256()
        self.path = folder / uuid.uuid4().hex
        self.byte_length = 0
        self.published = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append some bytes."""
        with translated_full_disk():
            if self._file is None:
                descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                self._file = os.fdopen(descriptor, "wb")
            self._file.write(data)
        self._hash.update(data)
        self.byte_length += len(data)

    def sync(self) -> None:
        """Make the bytes durable; the name follows at publication."""
        assert self._file is not None
        with translated_full_disk():
            self._file.flush()
            os.fsync(self._file.fileno())
        self._file.close()

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def __enter__(self) -> "StagedBlob":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is None:
            return
        with suppress(OSError):
            self._file.close()
        if not self.published:
            self.path.unlink(missing_ok=True)


class Blobs:
    """A folder of blobs; one that is not there is made only if `create`."""

    def __init__(self, root: Path, *, create: bool = True) -> None:
        self.root = root
        self._objects = root / "objects"
        self._staging = root / "staging"
        if create:
            self.create()

    @property
    def present(self) -> bool:
        """Whether the folder is there; a disk that is not mounted leaves an empty one."""
        return self._objects.is_dir()

    def create(self) -> None:
        """Make the folder where it is not there."""
        for folder in (self._objects, self._staging):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def stage(self) -> StagedBlob:
        """A new blob to write to."""
        return StagedBlob(self._staging)

    def publish(self, blob: StagedBlob) -> None:
        """Give a synced blob its name. Durable only after `sync_names`."""
        with translated_full_disk():
            os.replace(blob.path, self._path(blob.digest))
        blob.published = True

    def sync_names(self) -> None:
        """Make the names of all published blobs durable."""
        with translated_full_disk():
            descriptor = os.open(self._objects, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def put(self, data: bytes) -> str:
        """Store bytes durably and return their digest."""
        with self.stage() as blob:
            blob.write(data)
            blob.sync()
            self.publish(blob)
        self.sync_names()
        return blob.digest

    def get(self, digest: str) -> bytes:
        """The bytes of this digest, checked."""
        try:
            data = self._path(digest).read_bytes()
        except FileNotFoundError:
            if not self.present:
                # Somebody has to mount it: no reason to end a task.
                raise StoreBusy(_AWAY) from None
            # Clients may read what is said here, so that it names no folder.
            raise DamagedState(f"blob {digest} is missing from the blob folder") from None
        if hashlib.sha256(data).hexdigest() != digest:
            raise DamagedState(f"blob {digest} in the blob folder does not have the bytes of its name")
        return data

    def has(self, digest: str) -> bool:
        return self._path(digest).exists()

    def copy_to(self, target: "Blobs", digest: str, *, link: bool) -> bool:
        """Give another folder this blob, as a hard link where `link` and the file system allow; False if it is gone.

        A blob is never changed in place, so that a link is as good as a copy until the disk fails.
        """
        source = self._path(digest)
        if link:
            with suppress(OSError):
                os.link(source, target._path(digest))
                return True
        try:
            with source.open("rb") as file, target.stage() as blob:
                while piece := file.read(_PIECE):
                    blob.write(piece)
                if blob.digest != digest:
                    raise DamagedState(f"blob {digest} in {self._objects} does not have the bytes of its name")
                blob.sync()
                target.publish(blob)
        except FileNotFoundError:
            return False
        return True

    def digests(self) -> list[str]:
        """All names in the folder."""
        return sorted(path.name for path in self._objects.iterdir())

    def remove(self, digest: str) -> None:
        self._path(digest).unlink(missing_ok=True)

    def sweep(self, referenced: set[str], *, before: Micros) -> int:
        """Remove the files that nothing refers to and that were written before this moment; how many they were."""
        files = [*self._staging.iterdir(), *self._objects.iterdir()]
        return sum(self._remove_old(path, before) for path in files if path.name not in referenced)

    def _remove_old(self, path: Path, before: Micros) -> bool:
        """Remove a file if it is old. Its name may get new bytes at any moment, so that it is looked at aside."""
        try:
            if not _is_older(path, before):
                return False
            aside = self._staging / f"{path.name}.{uuid.uuid4().hex}"
            os.rename(path, aside)
            if _is_older(aside, before):
                aside.unlink()
                return True
            os.rename(aside, path)
        except FileNotFoundError:
            pass
        return False

    def _path(self, digest: str) -> Path:
        return self._objects / digest


def _is_older(path: Path, moment: Micros) -> bool:
    return path.stat().st_mtime_ns // 1000 < moment
