"""Reads a blob in pieces, so that memory does not depend on its length."""

import os
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from ..errors import UnreadableBlob
from .blob_checks import ContentCheck


def damaged(digest: str) -> UnreadableBlob:
    """The error of a file whose bytes are not those of its name."""
    return UnreadableBlob(f"blob {digest} in the blob folder does not match its digest")


class BlobSource(Protocol):
    """Where a reader gets its bytes from."""

    def read(self, offset: int, buffer: memoryview) -> int:
        """Read bytes from this offset on; their number, 0 at the end."""

    def close(self) -> None:
        """Free what the source holds."""


class MemorySource:
    """Bytes in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, offset: int, buffer: memoryview) -> int:
        piece = self._data[offset : offset + len(buffer)]
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        pass


class FileSource:
    """A file that is read from its start to its end; it stays open in between only if `keep_open`."""

    def __init__(self, open_file: Callable[[], int], *, keep_open: bool) -> None:
        self._open_file = open_file
        self._keep_open = keep_open
        self._descriptor: int | None = None

    def read(self, offset: int, buffer: memoryview) -> int:
        if self._descriptor is None:
            self._descriptor = self._open_file()
            if offset:
                os.lseek(self._descriptor, offset, os.SEEK_SET)
        try:
            return os.readv(self._descriptor, [buffer])
        finally:
            if not self._keep_open:
                self.close()

    def close(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)


class BlobReader:
    """Reads a blob from its start to its end. What it has read counts only after `finish` has checked the bytes.

    `check` is None if the bytes were checked before. `wrong` makes the error of other bytes. Leaving its context closes
    the file.
    """

    def __init__(
        self,
        digest: str,
        byte_length: int,
        source: BlobSource,
        check: ContentCheck | None,
        *,
        wrong: Callable[[str], UnreadableBlob] = damaged,
    ) -> None:
        self._wrong = wrong
        self._digest = digest
        self._byte_length = byte_length
        self._source = source
        self._check = check
        self._offset = 0

    @property
    def is_slow(self) -> bool:
        """Whether a thread of its own pays for this reader, because it computes the SHA-256 of what it reads."""
        return self._check is not None and self._check.is_slow

    def read_into(self, buffer: memoryview) -> None:
        """Fill the buffer with the next bytes."""
        filled = 0
        while filled < len(buffer):
            count = self._source.read(self._offset + filled, buffer[filled:] if filled else buffer)
            if count == 0:
                raise self._wrong(self._digest)
            filled += count
        if self._check is not None:
            self._check.add(buffer)
        self._offset += filled

    def finish(self) -> None:
        """Check that all bytes were read, and that they are those of the blob."""
        rest = memoryview(bytearray(1))
        if self._offset != self._byte_length or self._source.read(self._offset, rest):
            raise self._wrong(self._digest)
        if self._check is not None and not self._check.passes():
            raise self._wrong(self._digest)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._source.close()
