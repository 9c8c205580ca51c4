"""Content-addressed files: the name of a blob is the SHA-256 of its bytes, which is checked at every read.

A blob is written under a temporary name and fsynced, then renamed to its digest, then the folder is fsynced. So a name
in `objects` never belongs to a partial file, and an acknowledged blob survives a power cut.
"""

import errno
import hashlib
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NoReturn

from qidpfl_shared.durable_files import create_folder, fsync_dir, write_durably, write_synced

from ..clock import Micros
from ..errors import DamagedState, StorageFull, StoreBusy, UnreadableBlob
from .small_blobs import SMALL_BYTES, SmallBlobs

_CHUNK_BYTES = 1 << 20
_MISSING = "the folder of models and updates is missing"
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

    At most `memory_bytes` stay in memory; a larger blob is written to a file. Only `write` and `sync` use the disk, so
    that the event loop may create a blob.
    """

    def __init__(self, folder: Path, memory_bytes: int = 0) -> None:
        self._file: BinaryIO | None = None
        self._memory_bytes = memory_bytes
        self._held: list[bytes] = []
        self._hash = hashlib.sha256()
        self.path = folder / uuid.uuid4().hex
        self.byte_length = 0
        self.published = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append some bytes."""
        if self._file is None and self.byte_length + len(data) <= self._memory_bytes:
            self._held.append(bytes(data))
        else:
            self._write_to_file(data)
        self._hash.update(data)
        self.byte_length += len(data)

    def _write_to_file(self, data: bytes | bytearray | memoryview) -> None:
        with translated_full_disk():
            if self._file is None:
                descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                self._file = os.fdopen(descriptor, "wb")
                self._file.writelines(self._held)
                self._held = []
            self._file.write(data)

    def stays_in_memory(self, byte_length: int) -> bool:
        """Whether a blob of this length needs no file."""
        return byte_length <= self._memory_bytes

    @property
    def in_memory(self) -> bytes | None:
        """The bytes of a small blob, which is a row and not a file; None if there is a file."""
        return None if self._file is not None or not self._memory_bytes else b"".join(self._held)

    def sync(self) -> None:
        """Fsync the bytes. `publish` gives them their name. The commit makes a small blob durable."""
        if self._file is None and self._memory_bytes:
            return
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


class BlobReader:
    """Reads a blob in pieces. What it has read counts only after `finish` has checked the digest."""

    def __init__(self, blobs: "Blobs", digest: str, byte_length: int, small: bytes | None = None) -> None:
        self._blobs = blobs
        # The bytes of a row, which are checked already.
        self._small = small
        self._digest = digest
        self._byte_length = byte_length
        self._hash = hashlib.sha256()
        self._offset = 0

    def read_into(self, buffer: memoryview) -> None:
        """Fill the buffer with the next bytes."""
        filled = 0
        while filled < len(buffer):
            count = self._read(self._offset + filled, buffer[filled:])
            if count == 0:
                raise self._damaged()
            filled += count
        if self._small is None:
            self._hash.update(buffer)
        self._offset += filled

    def _read(self, offset: int, buffer: memoryview) -> int:
        if self._small is None:
            return self._blobs.read_piece(self._digest, offset, buffer)
        piece = self._small[offset : offset + len(buffer)]
        buffer[: len(piece)] = piece
        return len(piece)

    def finish(self) -> None:
        """Check that all bytes were read and have the digest of the blob."""
        rest = memoryview(bytearray(1))
        if self._offset != self._byte_length or self._read(self._offset, rest):
            raise self._damaged()
        if self._small is None and self._hash.hexdigest() != self._digest:
            raise self._damaged()

    def _damaged(self) -> UnreadableBlob:
        return UnreadableBlob(f"blob {self._digest} in the blob folder does not match its digest")


class Blobs:
    """A folder of blobs; with `small`, small ones are rows of the database. A missing folder is created if `create`."""

    def __init__(self, root: Path, *, create: bool = True, small: SmallBlobs | None = None) -> None:
        self.root = root
        self._small = small
        self._objects = root / "objects"
        self._staging = root / "staging"
        self._identity = root / "folder.id"
        if create:
            self.create()

    @property
    def present(self) -> bool:
        """Whether the folder exists; the mount point of a disk that is not mounted is empty."""
        return self._objects.is_dir()

    def create(self) -> None:
        """Create the folder if it is missing. Its name is fsynced also if it exists.

        A process may have been killed after it created the folder: a power cut must not lose the blobs in it.
        """
        for folder in (self._objects, self._staging):
            create_folder(folder, mode=0o700)
        fsync_dir(self.root)
        # The operator may have made a folder in one that this process cannot read.
        with suppress(PermissionError):
            fsync_dir(self.root.absolute().parent)

    def folder_id(self) -> tuple[str, bool]:
        """The identity of this folder, and whether this call has created it.

        All processes that share the folder read the same identity.
        """
        with suppress(FileNotFoundError):
            return self._identity.read_text().strip(), False
        own = uuid.uuid4().hex
        unfinished = self._staging / own
        write_synced(unfinished, own.encode(), mode=0o600)
        try:
            # Unlike a rename, a link does not replace the file of a process that was faster.
            os.link(unfinished, self._identity)
        except FileExistsError:
            return self._identity.read_text().strip(), False
        except OSError:
            # Some network file systems have no links.
            self.set_folder_id(own)
        finally:
            unfinished.unlink()
        fsync_dir(self.root)
        return own, True

    def set_folder_id(self, folder_id: str) -> None:
        """Give this folder the identity that the store knows."""
        write_durably(self._identity, folder_id)

    def forget_folder_id(self) -> None:
        """Take back an identity that `folder_id` has just created."""
        self._identity.unlink(missing_ok=True)

    def stage(self) -> StagedBlob:
        """A new blob to write to. `Transaction.publish` stores it."""
        return StagedBlob(self._staging, 0 if self._small is None else SMALL_BYTES)

    def remember(self, digest: str, data: bytes) -> None:
        """Keep the bytes of a small blob that is being stored in memory, for the next reads."""
        assert self._small is not None
        self._small.remember(digest, data)

    def publish(self, blob: StagedBlob) -> None:
        """Rename a fsynced blob to its digest. The name is durable only after `sync_names`."""
        with translated_full_disk():
            os.replace(blob.path, self._path(blob.digest))
        blob.published = True

    def sync_names(self) -> None:
        """Make the names of all published blobs durable."""
        with translated_full_disk():
            fsync_dir(self._objects)

    def put(self, data: bytes) -> str:
        """Store bytes durably, in a file, and return their digest."""
        with StagedBlob(self._staging) as blob:
            blob.write(data)
            blob.sync()
            self.publish(blob)
        self.sync_names()
        return blob.digest

    def get(self, digest: str) -> bytes:
        """The bytes of this digest, after a check."""
        if (small := self._get_small(digest)) is not None:
            return small
        try:
            data = self._path(digest).read_bytes()
        except FileNotFoundError:
            self._refuse_missing(digest)
        if hashlib.sha256(data).hexdigest() != digest:
            raise UnreadableBlob(f"blob {digest} in the blob folder does not match its digest")
        return data

    def _get_small(self, digest: str) -> bytes | None:
        """The bytes of a row, after a check; None if there is no such row."""
        if self._small is None:
            return None
        if (recent := self._small.recent(digest)) is not None:
            return recent
        stored = self._small.stored(digest)
        if stored is None:
            return None
        if not isinstance(stored, bytes) or hashlib.sha256(stored).hexdigest() != digest:
            raise UnreadableBlob(f"blob {digest} in table small_blobs does not match its digest")
        return stored

    def reader(self, digest: str, byte_length: int) -> "BlobReader":
        """Reads a blob of this length in pieces, from its start to its end."""
        small = self._get_small(digest) if byte_length <= SMALL_BYTES else None
        return BlobReader(self, digest, byte_length, small)

    def read_piece(self, digest: str, offset: int, buffer: memoryview) -> int:
        """Read a piece of a blob without a check; the number of bytes. `BlobReader` checks the whole."""
        try:
            # Opened for each piece: a round may have more updates than a process may have open files.
            descriptor = os.open(self._path(digest), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._refuse_missing(digest)
        try:
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.readv(descriptor, [buffer])
        finally:
            os.close(descriptor)

    def _refuse_missing(self, digest: str) -> NoReturn:
        if not self.present:
            # The operator must mount it. This is no reason to fail a task.
            raise StoreBusy(_MISSING) from None
        # Clients may read this message, so it does not name the folder.
        raise UnreadableBlob(f"blob {digest} is missing from the blob folder") from None

    def has(self, digest: str) -> bool:
        return self._path(digest).exists() or (self._small is not None and self._small.has(digest))

    def copy_to(self, target: "Blobs", digest: str, *, link: bool) -> bool:
        """Copy this blob to another folder, as a hard link if `link` and the disk allow it; False if it is missing.

        A blob is never changed in place, so a link is as good as a copy, unless the disk fails.
        """
        if self._small is not None and self._small.has(digest):
            # It is a row, and the database is copied as a whole.
            return True
        source = self._path(digest)
        if link:
            with suppress(OSError):
                os.link(source, target._path(digest))
                return True
        try:
            with source.open("rb") as file, target.stage() as blob:
                while chunk := file.read(_CHUNK_BYTES):
                    blob.write(chunk)
                if blob.digest != digest:
                    raise DamagedState(f"blob {digest} in {self._objects} does not match its digest")
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

    def sweep(self, referenced: Callable[[Micros], set[str]], *, grace: Micros) -> int:
        """Remove the files that are older than the grace period and not referenced; return their number.

        `referenced` gets the start of the grace period and returns the digests that are needed since then. It is called
        after the files are listed: a file that gets its row meanwhile is referenced, and one that comes later is not in
        the list. Ages are compared with the clock of the file system, because clocks of processes differ from it.
        """
        moment = self._file_time() - grace
        files = [path for folder in (self._staging, self._objects) for path in folder.iterdir()]
        old = [path for path in files if _is_older(path, moment)]
        kept = referenced(moment)
        return sum(self._remove_old(path, moment) for path in old if path.name not in kept)

    def sweep_staging(self) -> int:
        """Remove everything that is staged now; return the number of files. Only for a process that is alone here."""
        moment = self._file_time()
        return sum(self._remove_old(path, moment) for path in self._staging.iterdir())

    def _file_time(self) -> Micros:
        """The present time of the file system: that of a file which is written now."""
        with StagedBlob(self._staging) as probe:
            probe.write(b"x")
            probe.sync()
            return _modified_at(probe.path)

    def _remove_old(self, path: Path, before: Micros) -> bool:
        """Remove an old file. It is renamed first, because an upload may write new bytes under its name meanwhile."""
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
    """Whether a file was written at this moment or before; False if it is gone."""
    try:
        return _modified_at(path) <= moment
    except FileNotFoundError:
        return False


def _modified_at(path: Path) -> Micros:
    return path.stat().st_mtime_ns // 1000
