"""Bodies that are vectors: checked by their heads, then streamed to disk in bounded memory, hashed on the way."""

import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
import numpy as np
from fastapi import Request

from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.wire import BYTES_PER_PARAMETER

from ..errors import RequestRefused
from ..store.blobs import StagedBlob
from .context import Context
from .json import media_type

# What an upload may hold in memory before it gets a slot.
_PIECE = 128 * 1024
# Small enough for the processor's cache, and for a product that does not start threads of its own.
_BLOCK = 8192
_BINARY = "application/octet-stream"

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
    """Refuse what cannot become a vector of the task before its body is read."""
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


@dataclass
class _Checker:
    """Checks a vector that arrives in pieces: all finite, and its squared norm in float64."""

    squared_norm: float = 0.0
    _rest: bytes = b""

    def feed(self, piece: bytes) -> None:
        data = self._rest + piece if self._rest else piece
        whole = len(data) // BYTES_PER_PARAMETER
        self._rest = data[whole * BYTES_PER_PARAMETER :]
        values = np.frombuffer(data, dtype="<f4", count=whole)
        for start in range(0, whole, _BLOCK):
            block = values[start : start + _BLOCK].astype(np.float64)
            self.squared_norm += float(block.dot(block))
        # No sum of squares of finite float32 comes near the largest float64.
        if not math.isfinite(self.squared_norm):
            raise RequestRefused(ErrorCode.NOT_FINITE)


async def receive(
    context: Context, blob: StagedBlob, body: AsyncIterator[bytes], *, byte_length: int, digest: str
) -> float:
    """Write a body to a staged blob and make it durable; the squared norm of the vector comes back.

    A slot is held only while there is something to store: one whose bytes do not come blocks nobody.
    """
    checker = _Checker()
    pieces: list[bytes] = []
    waiting = received = 0
    async for chunk in body:
        received += len(chunk)
        if received > byte_length:
            raise RequestRefused(ErrorCode.WRONG_LENGTH, f"more than the {byte_length} bytes of this model")
        pieces.append(chunk)
        waiting += len(chunk)
        if waiting >= _PIECE:
            async with context.upload_slots:
                await anyio.to_thread.run_sync(_store, blob, checker, pieces, limiter=context.disk)
            pieces, waiting = [], 0
            failpoint("upload.mid_body")
    async with context.upload_slots:
        await anyio.to_thread.run_sync(_finish, blob, checker, pieces, byte_length, digest, limiter=context.disk)
    return checker.squared_norm


def _store(blob: StagedBlob, checker: _Checker, pieces: list[bytes]) -> None:
    piece = b"".join(pieces)
    checker.feed(piece)
    blob.write(piece)


def _finish(blob: StagedBlob, checker: _Checker, pieces: list[bytes], byte_length: int, digest: str) -> None:
    _store(blob, checker, pieces)
    if blob.byte_length != byte_length:
        raise RequestRefused(ErrorCode.WRONG_LENGTH, f"{blob.byte_length} bytes, expected {byte_length}")
    if blob.digest != digest:
        raise RequestRefused(ErrorCode.DIGEST_MISMATCH)
    blob.sync()
    failpoint("upload.blob_staged")
