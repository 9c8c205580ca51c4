"""Content-addressed files: the name of a blob is the SHA-256 of its bytes, which are checked at every read.

A blob is written under a temporary name and fsynced, then renamed to its digest, then the folder is fsynced. So a name
in `objects` never belongs to a partial file, and an acknowledged blob survives a power cut.
"""

import errno
import hashlib
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NoReturn

from xxhash import xxh3_128

from qidpfl_shared.durable_files import create_folder, fsync_dir, write_durably, write_synced

from ..clock import Micros
from ..errors import DamagedState, StorageFull, StoreBusy, UnreadableBlob
from .blob_checks import Checksums
from .blob_reader import BlobReader, FileSource, MemorySource, damaged
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


class Blobs:
    """A folder of blobs; with `small`, small ones are rows of the database. A missing folder is created if `create`."""

    def __init__(self, root: Path, *, create: bool = True, small: SmallBlobs | None = None) -> None:
        self.root = root
        self._small = small
        self._checksums = Checksums()
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
        self._checksums.remember(blob.digest, blob.checksum)
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
        check = self._checksums.check(digest)
        check.add(data)
        if not check.passes():
            raise damaged(digest)
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

    def reader(self, digest: str, byte_length: int, *, keep_open: bool = True) -> BlobReader:
        """Reads a blob of this length in pieces, from its start to its end.

        Without `keep_open` its file is opened for each piece: a process may have only so many open files.
        """
        if byte_length <= SMALL_BYTES and (small := self._get_small(digest)) is not None:
            return BlobReader(digest, byte_length, MemorySource(small), None)
        source = FileSource(partial(self._open, digest), keep_open=keep_open)
        return BlobReader(digest, byte_length, source, self._checksums.check(digest))

    def _open(self, digest: str) -> int:
        try:
            return os.open(self._path(digest), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._refuse_missing(digest)

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
