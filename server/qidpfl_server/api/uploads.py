"""Vectors in request bodies: checked by their headers, queued per client, streamed to disk in bounded memory."""

import asyncio
import math
from collections.abc import AsyncIterator, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
import numpy.typing as npt
from fastapi import Request

from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.wire import BYTES_PER_PARAMETER

from ..errors import CoordinatorError, RequestRefused
from ..store.blobs import StagedBlob
from .json import media_type

# A body is written in pieces of this size, each with one hop to a thread. Larger pieces are not faster.
_PIECE_BYTES = 1 << 19
_SMALLEST_PIECE_BYTES = 128 * 1024
# What all bodies together may keep in memory before they get a slot. With many uploads the pieces become smaller.
_WAITING_BYTES = 64 << 20
# Further uploads close their files while they wait for bytes. `cli.http.connections` leaves so many file handles.
OPEN_UPLOADS = 1024
# Small enough for the processor's cache. Each block hands the interpreter lock over, so small ones are slower.
_BLOCK = 1 << 16
_BINARY = "application/octet-stream"
_MAX_QUEUED = 16
# Accepted uploads of more tasks than this are forgotten.
_MAX_TASKS = 256
# A client that sends the same upload again has most likely lost its first connection, which may take minutes to end.
_SUPERSEDE_AFTER_S = 1.0

VECTOR_BODY: dict[str, Any] = {
    "required": True,
    "description": "exactly 4·d bytes: little-endian float32 in the order of the task's layout",
    "content": {_BINARY: {"schema": {"type": "string", "format": "binary"}}},
}
CONTENT_DIGEST: dict[str, Any] = {
    "in": "header",
    "name": "content-digest",
    "required": True,
    "schema": {"type": "string", "description": "sha-256=:base64: (RFC 9530)"},
}


def check_headers(request: Request, byte_length: int) -> None:
    """Refuse a body that cannot be a vector of the task, before the server reads it."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise RequestRefused(ErrorCode.UNSUPPORTED_MEDIA_TYPE, "no content encoding is accepted")
    if media_type(request.headers.get("content-type", _BINARY)) != _BINARY:
        raise RequestRefused(ErrorCode.UNSUPPORTED_MEDIA_TYPE, f"send {_BINARY}")
    length = request.headers.get("content-length", "")
    if not length.isascii() or not length.isdigit():
        raise RequestRefused(ErrorCode.LENGTH_REQUIRED)
    if int(length) > byte_length:
        raise RequestRefused(ErrorCode.BODY_TOO_LARGE, f"{length} bytes, expected {byte_length}")
    if int(length) != byte_length:
        raise RequestRefused(ErrorCode.WRONG_LENGTH, f"{length} bytes, expected {byte_length}")


class UploadSuperseded(CoordinatorError):
    """The same client has a newer upload, or too many uploads, in progress."""

    code = ErrorCode.TOO_MANY_REQUESTS
    retry_after_s = 1


class UploadLine:
    """The uploads of one client for one round. They are read one at a time."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.members = 0
        self._reading: anyio.CancelScope | None = None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read a body, until a newer upload supersedes this one."""
        with anyio.CancelScope() as scope:
            self._reading = scope
            try:
                yield
            finally:
                self._reading = None
        if scope.cancelled_caught:
            raise UploadSuperseded("a newer upload of this client has replaced this one")

    def supersede(self) -> None:
        """Cancel the reading. An upload that is already being recorded is not cancelled."""
        if self._reading is not None:
            self._reading.cancel()


class UploadQueue:
    """One line per client and round, so that a client with many connections has only one of them read."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, UploadLine] = {}

    @asynccontextmanager
    async def turn(self, key: Hashable) -> AsyncIterator[UploadLine]:
        """Wait until the uploads before this one are done; one that is read for too long is superseded."""
        line = self._lines.setdefault(key, UploadLine())
        if line.members >= _MAX_QUEUED:
            raise UploadSuperseded("too many uploads of this client at once")
        line.members += 1
        try:
            await _acquire(line)
            try:
                yield line
            finally:
                line.lock.release()
        finally:
            line.members -= 1
            if not line.members:
                del self._lines[key]


class AcceptedUploads:
    """Whose uploads to the latest round of each task this process has accepted."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[int, set[str]]] = {}

    def add(self, task_id: str, round_number: int, client_id: str) -> None:
        """Note an upload. A new round of the task replaces the one before."""
        known = self._latest.get(task_id)
        if known is None or known[0] != round_number:
            self._latest.pop(task_id, None)
            if len(self._latest) >= _MAX_TASKS:
                del self._latest[next(iter(self._latest))]
            known = self._latest[task_id] = round_number, set()
        known[1].add(client_id)

    def has(self, task_id: str, round_number: int, client_id: str) -> bool:
        """Whether an upload of this client to this round was accepted; False if that is not known."""
        known = self._latest.get(task_id)
        return known is not None and known[0] == round_number and client_id in known[1]


async def _acquire(line: UploadLine) -> None:
    while True:
        try:
            async with asyncio.timeout(_SUPERSEDE_AFTER_S):
                await line.lock.acquire()
                return
        except TimeoutError:
            line.supersede()


@dataclass
class _VectorCheck:
    """Checks a vector that arrives in chunks: all values are finite. Sums its squared norm in float64."""

    squared_norm: float = 0.0
    _rest: bytes = b""

    def feed(self, chunk: bytes) -> None:
        """Check a chunk. Its first bytes may be the end of a number whose start came with the chunk before."""
        used = 0
        if self._rest:
            used = BYTES_PER_PARAMETER - len(self._rest)
            self._rest += chunk[:used]
            if len(self._rest) < BYTES_PER_PARAMETER:
                return
            self._add(np.frombuffer(self._rest, dtype="<f4"))
        whole = (len(chunk) - used) // BYTES_PER_PARAMETER
        self._add(np.frombuffer(chunk, dtype="<f4", count=whole, offset=used) if whole else np.empty(0, "<f4"))
        self._rest = chunk[used + whole * BYTES_PER_PARAMETER :]

    def _add(self, values: npt.NDArray[np.float32]) -> None:
        for start in range(0, values.size, _BLOCK):
            block = values[start : start + _BLOCK].astype(np.float64)
            self.squared_norm += float(block.dot(block))
        # A sum of squares of finite float32 values is far below the largest float64.
        if not math.isfinite(self.squared_norm):
            raise RequestRefused(ErrorCode.NOT_FINITE)


class UploadReceiver:
    """Streams bodies to disk: at most `max_uploads` write at once."""

    def __init__(self, max_uploads: int) -> None:
        self.queue = UploadQueue()
        self.accepted = AcceptedUploads()
        self._slots = asyncio.Semaphore(max_uploads)
        # fsyncs that run at the same time share the commits of the file system.
        self._disk = anyio.CapacityLimiter(16)
        self._active = 0

    async def receive(self, blob: StagedBlob, body: AsyncIterator[bytes], *, byte_length: int, digest: str) -> float:
        """Write a body to a staged blob and fsync it; return the squared norm of the vector.

        An upload holds a slot only while it writes, so that a slow connection does not block the others.
        """
        check = _VectorCheck()
        chunks: list[bytes] = []
        waiting = received = 0
        self._active += 1
        try:
            async for chunk in body:
                received += len(chunk)
                if received > byte_length:
                    raise RequestRefused(ErrorCode.WRONG_LENGTH, f"more than the {byte_length} bytes of this model")
                chunks.append(chunk)
                waiting += len(chunk)
                if waiting >= self._piece_bytes and received < byte_length:
                    async with self._slots:
                        released = self._active > OPEN_UPLOADS
                        await anyio.to_thread.run_sync(_write, blob, check, chunks, released, limiter=self._disk)
                    chunks, waiting = [], 0
                    failpoint("upload.mid_body")
            if blob.stays_in_memory(byte_length):
                # Checking a small vector takes less time than a hop to a thread.
                _finish(blob, check, chunks, byte_length, digest)
            else:
                async with self._slots:
                    await anyio.to_thread.run_sync(
                        _finish, blob, check, chunks, byte_length, digest, limiter=self._disk
                    )
        finally:
            self._active -= 1
        return check.squared_norm

    @property
    def _piece_bytes(self) -> int:
        return max(_SMALLEST_PIECE_BYTES, min(_PIECE_BYTES, _WAITING_BYTES // self._active))


def _write(blob: StagedBlob, check: _VectorCheck, chunks: list[bytes], released: bool = False) -> None:
    """Check, hash and write the chunks as they came: they are not copied into one. `released`: close the file then."""
    for chunk in chunks:
        check.feed(chunk)
        blob.write(chunk)
    if released:
        blob.release()


def _finish(blob: StagedBlob, check: _VectorCheck, chunks: list[bytes], byte_length: int, digest: str) -> None:
    _write(blob, check, chunks)
    if blob.byte_length != byte_length:
        raise RequestRefused(ErrorCode.WRONG_LENGTH, f"{blob.byte_length} bytes, expected {byte_length}")
    if blob.digest != digest:
        raise RequestRefused(ErrorCode.DIGEST_MISMATCH)
    blob.sync()
    failpoint("upload.blob_staged")
