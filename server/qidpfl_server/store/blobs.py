"""Content-addressed files: what has a digest here is complete, and is checked whenever it is read.

A file is written under a name of its own, synced, renamed to its digest, and the folder is synced: a name in `objects`
never points to half a file, and an acknowledged one survives a power cut.
"""

import errno
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from ..errors import DamagedState, StorageFull

_PIECE = 1 << 20
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
    """A blob that is being written. Leaving its context removes it unless it was published."""

    def __init__(self, folder: Path) -> None:
        with translated_full_disk():
            descriptor, name = tempfile.mkstemp(dir=folder)
        self._file = os.fdopen(descriptor, "wb")
        self._hash = hashlib.sha256()
        self.path = Path(name)
        self.byte_length = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append some bytes."""
        with translated_full_disk():
            self._file.write(data)
        self._hash.update(data)
        self.byte_length += len(data)

    def sync(self) -> None:
        """Make the bytes durable; the name follows at publication."""
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
        with suppress(OSError):
            self._file.close()
        self.path.unlink(missing_ok=True)


class Blobs:
    """A folder of blobs."""

    def __init__(self, root: Path) -> None:
        self._objects = root / "objects"
        self._staging = root / "staging"
        for folder in (self._objects, self._staging):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def stage(self) -> StagedBlob:
        """A new blob to write to."""
        return StagedBlob(self._staging)

    def publish(self, blob: StagedBlob) -> None:
        """Give a synced blob its name. Durable only after `sync_names`."""
        with translated_full_disk():
            os.replace(blob.path, self._path(blob.digest))

    def sync_names(self) -> None:
        """Make the names of all published blobs durable."""
        descriptor = os.open(self._objects, os.O_RDONLY)
        try:
            with translated_full_disk():
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
            raise DamagedState(f"blob {digest} is missing from {self._objects}") from None
        if hashlib.sha256(data).hexdigest() != digest:
            raise DamagedState(f"blob {digest} in {self._objects} does not have the bytes of its name")
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

    def sweep(self, referenced: set[str], *, older_than_s: float) -> int:
        """Remove files that nothing refers to, unless they are so young that somebody may be about to."""
        horizon = time.time() - older_than_s
        removed = 0
        for path in [*self._staging.iterdir(), *self._objects.iterdir()]:
            with suppress(FileNotFoundError):
                if path.name not in referenced and path.stat().st_mtime < horizon:
                    path.unlink()
                    removed += 1
        return removed

    def _path(self, digest: str) -> Path:
        return self._objects / digest
