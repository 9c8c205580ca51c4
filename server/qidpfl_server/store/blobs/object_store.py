"""Blobs as objects of a bucket, with the same names as in a folder: `objects/DIGEST`.

A blob is written to a local file first. `sync` uploads it when its digest is known, so an object is complete and
durable before a row refers to it, a slow client holds no connection to the bucket, and a refused upload never reaches
it. Readers fetch windows of an object: memory does not depend on its length.
"""

import hashlib
import io
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NoReturn

from qidpfl_shared.durable_files import create_folder

from ...clock import Micros
from ...errors import ObjectStoreFailure, StoreBusy, UnreliableBlob
from ..blob_checks import ContentCheck
from ..blob_reader import BlobReader
from ..small_blobs import SmallBlobs
from .folder import FolderBlobs
from .object_client import PART_BYTES, ObjectClient
from .port import Blobs, RemovalClaims
from .staged import StagedBlob, file_time, files_before, remove_old, translated_full_disk

# The windows of all blobs that are read at the same time.
_WINDOWS_BYTES = 64 << 20
# A read that finds wrong bytes is repeated: a proxy or a replica of the object store may be at fault.
_READS = 3
# A claim is good for much longer (see `repositories.removals`), so a process that was paused must not use it any more.
_CLAIM_S = 60.0
_CLAIMED_AT_ONCE = 500
# An object that was stored longer ago may have been swept since. Finished claims are kept for much longer.
_USABLE_S = 1800.0
_OBJECTS = "objects"
_IDENTITY = "folder.id"
# The object that marks the prefix of a bucket as ours.
LAYOUT = "layout.txt"
_LAYOUT_TEXT = b"Blobs of a QI-DPFL coordinator: objects/SHA-256. Do not change or expire them.\n"
# Written by each sweep, to ask the object store for its time.
_CLOCK = "clock"


class _UploadedBlob(StagedBlob):
    """A blob in a local file, which `sync` uploads. The file is removed then, or at the end with `read_again`."""

    def __init__(self, folder: Path, memory_bytes: int, store: "ObjectStoreBlobs", *, read_again: bool) -> None:
        super().__init__(folder, memory_bytes)
        self._store = store
        self._read_again = read_again
        self.stored_at = 0.0

    def _opened(self) -> BinaryIO:
        try:
            return super()._opened()
        except FileNotFoundError:
            # A command, unlike `serve`, has not created the folder.
            create_folder(self.path.parent, mode=0o700)
            return super()._opened()

    def sync(self) -> None:
        """Upload the bytes under their name. The commit makes a small blob durable."""
        if self.in_memory is not None:
            return
        with translated_full_disk():
            self._opened().close()
        self.stored_at = time.monotonic()
        self._store.upload(self, read_again=self._read_again)
        if not self._read_again:
            self.path.unlink()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if self._read_again:
            self._store.forget_local(self.path)
            self.path.unlink(missing_ok=True)


class _WindowSource:
    """An object that is read from its start to its end, through a window in memory."""

    def __init__(self, fetch: Callable[[int, int], memoryview], byte_length: int, window_bytes: int) -> None:
        self._fetch = fetch
        self._byte_length = byte_length
        self._window_bytes = window_bytes
        self._window = memoryview(b"")
        self._start = 0

    def read(self, offset: int, buffer: memoryview) -> int:
        if offset >= self._byte_length:
            return 0
        if not self._start <= offset < self._start + len(self._window):
            end = min(self._byte_length, offset + max(len(buffer), self._window_bytes))
            self._window, self._start = self._fetch(offset, end), offset
        found = self._window[offset - self._start :][: len(buffer)]
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        self._window = memoryview(b"")


class ObjectStoreBlobs(Blobs):
    """A bucket of blobs, and a local folder for those that are being written. Created if `create`."""

    def __init__(
        self, client: ObjectClient, staging: Path, *, create: bool = True, small: SmallBlobs | None = None
    ) -> None:
        super().__init__(small=small)
        self._client = client
        self._staging = staging
        # The files of models that were uploaded and are still here: the transaction that records one may read it.
        self._local: dict[str, Path] = {}
        if create:
            self.create()

    @property
    def place(self) -> str:
        return self._client.place

    @property
    def remedy(self) -> str:
        return "name the right bucket and prefix with QIDPFL_BLOBS"

    @property
    def removes_by_claim(self) -> bool:
        return True

    @property
    def present(self) -> bool:
        return self._client.length(LAYOUT) is not None or self._client.has_any(_OBJECTS)

    def create(self) -> None:
        create_folder(self._staging, mode=0o700)
        self._client.create(LAYOUT, _LAYOUT_TEXT)

    def check(self) -> None:
        if not self._client.check(LAYOUT):
            raise ObjectStoreFailure("the bucket of models and updates is missing")

    def folder_id(self) -> tuple[str, bool]:
        own = uuid.uuid4().hex
        if self._client.create(_IDENTITY, own.encode()):
            return own, True
        data, _ = self._client.read(_IDENTITY, 0, 64)
        return bytes(data).decode().strip(), False

    def set_folder_id(self, folder_id: str) -> None:
        self._client.put(_IDENTITY, folder_id.encode())

    def forget_folder_id(self) -> None:
        self._client.remove(_IDENTITY)

    def _stage(self, memory_bytes: int, *, read_again: bool = False) -> StagedBlob:
        return _UploadedBlob(self._staging, memory_bytes, self, read_again=read_again)

    def upload(self, blob: StagedBlob, *, read_again: bool) -> None:
        """Store an object unless it is there already. Large ones are uploaded in parts."""
        digest = blob.digest
        if blob.byte_length <= PART_BYTES:
            data = blob.path.read_bytes()
            if not self._client.create(_name(digest), data) and not self._is_sound(digest, blob.byte_length):
                self._client.put(_name(digest), data)
        elif not self._is_sound(digest, blob.byte_length):
            self._client.put_file(_name(digest), blob.path)
        if read_again:
            self._local[digest] = blob.path

    def _is_sound(self, digest: str, byte_length: int) -> bool:
        """Whether the bucket has the right bytes under this name. An acknowledgement must not rely on damaged ones."""
        if self._client.length(_name(digest)) != byte_length:
            return False
        try:
            for _ in self._pieces(digest, byte_length):
                pass
        except UnreliableBlob:
            return False
        return True

    def _pieces(self, digest: str, byte_length: int) -> Iterator[memoryview]:
        """All bytes of a blob in pieces, which count only when the last one was checked."""
        with self._reader(digest, byte_length, 1) as reader:
            for start in range(0, byte_length, PART_BYTES):
                piece = memoryview(bytearray(min(PART_BYTES, byte_length - start)))
                reader.read_into(piece)
                yield piece
            reader.finish()

    def forget_local(self, path: Path) -> None:
        """The file of a blob is about to be removed."""
        for digest in [digest for digest, known in list(self._local.items()) if known == path]:
            self._local.pop(digest, None)

    def publish(self, blob: StagedBlob) -> None:
        """The object has its name already. Refuses one that was stored so long ago that it may have been swept."""
        assert isinstance(blob, _UploadedBlob)
        if time.monotonic() - blob.stored_at > _USABLE_S:
            raise StoreBusy("the upload was stored too long ago; try again")
        blob.published = True

    def sync_names(self) -> None:
        """An object has its name as soon as it is stored."""

    def _get(self, digest: str) -> bytes:
        if (path := self._local.get(digest)) is not None:
            with suppress(FileNotFoundError):
                data = path.read_bytes()
                if hashlib.sha256(data).hexdigest() == digest:
                    return data
        return self._get_remote(digest)

    def _get_remote(self, digest: str) -> bytes:
        for _ in range(_READS):
            data = self._download(digest)
            if hashlib.sha256(data).hexdigest() == digest:
                return data
        raise _wrong(digest)

    def _download(self, digest: str) -> bytes:
        # `getvalue` does not copy the bytes.
        found, whole = io.BytesIO(), 1
        while found.tell() < whole:
            data, whole = self._read(digest, found.tell(), found.tell() + PART_BYTES)
            if not len(data):
                break
            found.write(data)
        return found.getvalue()

    def _reader(self, digest: str, byte_length: int, together: int) -> BlobReader:
        source = _WindowSource(
            partial(self._fetch, digest, byte_length), byte_length, min(PART_BYTES, _WINDOWS_BYTES // together)
        )
        check = ContentCheck(hashlib.sha256(), digest, is_slow=True)
        return BlobReader(digest, byte_length, source, check, wrong=_wrong)

    def _fetch(self, digest: str, byte_length: int, start: int, end: int) -> memoryview:
        """A piece of an object of this length."""
        data, whole = self._read(digest, start, end)
        if whole != byte_length:
            raise _wrong(digest)
        return memoryview(data)

    def _read(self, digest: str, start: int, end: int) -> tuple[Any, int]:
        try:
            return self._client.read(_name(digest), start, end)
        except FileNotFoundError:
            self._refuse_missing(digest)

    def _refuse_missing(self, digest: str) -> NoReturn:
        if not self.present:
            raise ObjectStoreFailure("the bucket of models and updates is missing") from None
        raise UnreliableBlob(f"blob {digest} is missing from the object store") from None

    def _has(self, digest: str) -> bool:
        return self._client.length(_name(digest)) is not None

    def _copy_to(self, folder: Path, digest: str, *, link: bool) -> bool:
        length = self._client.length(_name(digest))
        if length is None:
            return False
        target = FolderBlobs(folder, create=False)
        with target.stage() as blob:
            for piece in self._pieces(digest, length):
                blob.write(piece)
            blob.sync()
            target.publish(blob)
        return True

    def digests(self) -> list[str]:
        return sorted(name for name, _ in self._client.list(_OBJECTS))

    def remove(self, digest: str) -> None:
        self._client.remove(_name(digest))

    def sweep(self, referenced: Callable[[Micros], set[str]], claims: RemovalClaims, *, grace: Micros) -> int:
        """An object may be used again at any time, and cannot be removed on a condition: claims keep it unused."""
        moment = file_time(self._staging) - grace
        removed = sum(remove_old(path, self._staging, moment) for path in files_before((self._staging,), moment))
        self._client.put(_CLOCK, b"")
        moment = self._client.written_at(_CLOCK) - grace
        old = [digest for digest, written_at in self._client.list(_OBJECTS) if written_at <= moment]
        kept = referenced(moment)
        unused = [digest for digest in old if digest not in kept]
        # Also without any: another process may have left claims.
        for start in range(0, max(1, len(unused)), _CLAIMED_AT_ONCE):
            removed += self._remove_claimed(claims, unused[start : start + _CLAIMED_AT_ONCE], moment)
        return removed

    def _remove_claimed(self, claims: RemovalClaims, digests: list[str], since: Micros) -> int:
        claimed_at = time.monotonic()
        gone: list[str] = []
        try:
            for digest in claims.claim(digests, since):
                if time.monotonic() - claimed_at > _CLAIM_S:
                    # The rest is left to a later sweep, of this or of another process.
                    break
                self.remove(digest)
                gone.append(digest)
        finally:
            if gone:
                claims.finish(gone)
        return len(gone)

    def sweep_staging(self) -> int:
        moment = file_time(self._staging)
        return sum(remove_old(path, self._staging, moment) for path in self._staging.iterdir())


def _name(digest: str) -> str:
    return f"{_OBJECTS}/{digest}"


def _wrong(digest: str) -> UnreliableBlob:
    return UnreliableBlob(f"the object store has other bytes for blob {digest} than its digest says")
