"""Blobs as files of one folder.

A blob is written under a temporary name and fsynced, then renamed to its digest, then the folder is fsynced. So a name
in `objects` never belongs to a partial file, and an acknowledged blob survives a power cut.
"""

import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from qidpfl_shared.durable_files import create_folder, fsync_dir, write_durably, write_synced

from ...clock import Micros
from ...errors import DamagedState, StoreBusy, UnreadableBlob
from ..blob_checks import Checksums
from ..blob_reader import BlobReader, FileSource, damaged
from ..small_blobs import SmallBlobs
from .port import Blobs, RemovalClaims
from .staged import StagedBlob, file_time, files_before, remove_old, translated_full_disk

_CHUNK_BYTES = 1 << 20
# More files than this are opened for each piece that is read: a process may have only so many open files.
_OPEN_FILES = 64
_MISSING = "the folder of models and updates is missing"


class FolderBlobs(Blobs):
    """A folder of blobs. A missing folder is created if `create`."""

    def __init__(self, root: Path, *, create: bool = True, small: SmallBlobs | None = None) -> None:
        super().__init__(small=small)
        self.root = root
        self._checksums = Checksums()
        self._objects = root / "objects"
        self._staging = root / "staging"
        self._identity = root / "folder.id"
        if create:
            self.create()

    @property
    def place(self) -> str:
        return str(self.root)

    @property
    def remedy(self) -> str:
        return "mount the right folder, or name it with --blob-dir"

    @property
    def present(self) -> bool:
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

    def check(self) -> None:
        """A folder is ready with the machine: readiness does not wait for a disk."""

    def folder_id(self) -> tuple[str, bool]:
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
        write_durably(self._identity, folder_id)

    def forget_folder_id(self) -> None:
        self._identity.unlink(missing_ok=True)

    def _stage(self, memory_bytes: int, *, read_again: bool = False) -> StagedBlob:
        return StagedBlob(self._staging, memory_bytes)

    def publish(self, blob: StagedBlob) -> None:
        """Rename a fsynced blob to its digest. The name is durable only after `sync_names`."""
        with translated_full_disk():
            os.replace(blob.path, self._path(blob.digest))
        self._checksums.remember(blob.digest, blob.checksum)
        blob.published = True

    def sync_names(self) -> None:
        with translated_full_disk():
            fsync_dir(self._objects)

    def _get(self, digest: str) -> bytes:
        try:
            data = self._path(digest).read_bytes()
        except FileNotFoundError:
            self._refuse_missing(digest)
        check = self._checksums.check(digest)
        check.add(data)
        if not check.passes():
            raise damaged(digest)
        return data

    def _reader(self, digest: str, byte_length: int, together: int) -> BlobReader:
        source = FileSource(partial(self._open, digest), keep_open=together <= _OPEN_FILES)
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

    def _has(self, digest: str) -> bool:
        return self._path(digest).exists()

    def _copy_to(self, folder: Path, digest: str, *, link: bool) -> bool:
        source, target = self._path(digest), FolderBlobs(folder, create=False)
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
        return sorted(path.name for path in self._objects.iterdir())

    def remove(self, digest: str) -> None:
        self._path(digest).unlink(missing_ok=True)

    def sweep(self, referenced: Callable[[Micros], set[str]], claims: RemovalClaims, *, grace: Micros) -> int:
        """A renamed file has a new age, so a blob that is written again meanwhile stays: this needs no claims."""
        moment = file_time(self._staging) - grace
        old = files_before((self._staging, self._objects), moment)
        kept = referenced(moment)
        return sum(remove_old(path, self._staging, moment) for path in old if path.name not in kept)

    def sweep_staging(self) -> int:
        moment = file_time(self._staging)
        return sum(remove_old(path, self._staging, moment) for path in self._staging.iterdir())

    def _path(self, digest: str) -> Path:
        return self._objects / digest
