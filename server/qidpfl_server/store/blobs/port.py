"""What the server needs of a blob store. A folder and an object store implement it; one suite of tests checks both."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

from ...clock import Micros
from ...errors import UnreadableBlob
from ..blob_reader import BlobReader, MemorySource
from ..small_blobs import SMALL_BYTES, SmallBlobs
from .staged import StagedBlob


class RemovalClaims(Protocol):
    """How a sweep keeps other processes from using a blob that it removes."""

    def claim(self, digests: Collection[str], since: Micros) -> list[str]:
        """Claim those of these blobs that nothing has referred to since this moment; return what to remove.

        From the return on, `Transaction.publish` refuses these blobs. Claims that another process has left are added.
        """

    def finish(self, digests: Collection[str]) -> None:
        """Give up the claims: the blobs are gone."""


class Blobs(ABC):
    """A store of blobs; with `small`, small ones are rows of the database."""

    def __init__(self, *, small: SmallBlobs | None = None) -> None:
        self._small = small

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the blobs are, as the operator has named it."""

    @property
    @abstractmethod
    def remedy(self) -> str:
        """What the operator can do if this is not the right place."""

    @property
    def removes_by_claim(self) -> bool:
        """Whether a blob may only be used if no sweep has claimed it (see `RemovalClaims`)."""
        return False

    @property
    @abstractmethod
    def present(self) -> bool:
        """Whether the store was created; the mount point of a disk that is not mounted is empty."""

    @abstractmethod
    def create(self) -> None:
        """Create the store if it is missing."""

    @abstractmethod
    def check(self) -> None:
        """Raise `StoreBusy` if the store does not answer now. Readiness asks it."""

    @abstractmethod
    def folder_id(self) -> tuple[str, bool]:
        """The identity of this store, and whether this call has created it.

        All processes that share the store read the same identity.
        """

    @abstractmethod
    def set_folder_id(self, folder_id: str) -> None:
        """Give this store the identity that the database knows."""

    @abstractmethod
    def forget_folder_id(self) -> None:
        """Take back an identity that `folder_id` has just created."""

    def stage(self, *, read_again: bool = False) -> StagedBlob:
        """A new blob to write to. `Transaction.publish` stores it.

        With `read_again` the transaction that stores it may read it too, without waiting for a network.
        """
        return self._stage(0 if self._small is None else SMALL_BYTES, read_again=read_again)

    @abstractmethod
    def _stage(self, memory_bytes: int, *, read_again: bool = False) -> StagedBlob:
        """A new blob that stays in memory up to this length."""

    def remember(self, digest: str, data: bytes) -> None:
        """Keep the bytes of a small blob that is being stored in memory, for the next reads."""
        assert self._small is not None
        self._small.remember(digest, data)

    @abstractmethod
    def publish(self, blob: StagedBlob) -> None:
        """Give a synced blob its name. The name is durable only after `sync_names`."""

    @abstractmethod
    def sync_names(self) -> None:
        """Make the names of all published blobs durable."""

    def put(self, data: bytes) -> str:
        """Store bytes durably, never as a row, and return their digest."""
        with self._stage(0) as blob:
            blob.write(data)
            blob.sync()
            self.publish(blob)
        self.sync_names()
        return blob.digest

    def get(self, digest: str) -> bytes:
        """The bytes of this digest, after a check."""
        if (small := self._get_small(digest)) is not None:
            return small
        return self._get(digest)

    @abstractmethod
    def _get(self, digest: str) -> bytes:
        """The bytes of a blob that is no row, after a check."""

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

    def reader(self, digest: str, byte_length: int, *, together: int = 1) -> BlobReader:
        """Reads a blob of this length in pieces, from its start to its end.

        `together` is how many blobs are read at the same time: they share the memory and the open files.
        """
        if byte_length <= SMALL_BYTES and (small := self._get_small(digest)) is not None:
            return BlobReader(digest, byte_length, MemorySource(small), None)
        return self._reader(digest, byte_length, together)

    @abstractmethod
    def _reader(self, digest: str, byte_length: int, together: int) -> BlobReader:
        """The same for a blob that is no row."""

    def has(self, digest: str) -> bool:
        return self._has(digest) or (self._small is not None and self._small.has(digest))

    @abstractmethod
    def _has(self, digest: str) -> bool:
        """Whether there is such a blob, apart from the rows."""

    def copy_to(self, folder: Path, digest: str, *, link: bool) -> bool:
        """Copy this blob into the folder of a new `FolderBlobs`; False if it is missing.

        It becomes a hard link if `link` and the disk allow it. A blob is never changed in place, so a link is as good
        as a copy, unless the disk fails.
        """
        if self._small is not None and self._small.has(digest):
            # It is a row, and the database is copied as a whole.
            return True
        return self._copy_to(folder, digest, link=link)

    @abstractmethod
    def _copy_to(self, folder: Path, digest: str, *, link: bool) -> bool:
        """The same for a blob that is no row."""

    @abstractmethod
    def digests(self) -> list[str]:
        """The names of all blobs that are no rows."""

    @abstractmethod
    def remove(self, digest: str) -> None:
        """Remove a blob, if it is there."""

    @abstractmethod
    def sweep(self, referenced: Callable[[Micros], set[str]], claims: RemovalClaims, *, grace: Micros) -> int:
        """Remove the blobs that are older than the grace period and not referenced; return their number.

        `referenced` gets the start of the grace period and returns the digests that are needed since then. It is called
        after the blobs are listed: one that gets its row meanwhile is referenced, and one that comes later is not in
        the list. Ages are compared with the clock of the store, because clocks of processes differ from it.
        """

    @abstractmethod
    def sweep_staging(self) -> int:
        """Remove everything that is staged now; return the number of files. Only for a process that is alone here."""
