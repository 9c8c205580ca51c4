"""Bodies of updates: streamed to disk in pieces, hashed and checked on the way, in bounded memory."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import anyio.to_thread
import numpy as np

from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.wire import BYTES_PER_PARAMETER

from ..errors import Refused
from ..failpoints import failpoint
from ..store.blobs import StagedBlob
from .context import Context

_PIECE = 1 << 20


@dataclass
class _Checker:
    """Checks a vector that arrives in pieces: all finite, and its squared norm in float64."""

    squared_norm: float = 0.0
    _rest: bytes = b""

    def feed(self, piece: bytes) -> None:
        data = self._rest + piece if self._rest else piece
        whole = len(data) - len(data) % BYTES_PER_PARAMETER
        self._rest = data[whole:]
        values = np.frombuffer(data[:whole], dtype="<f4").astype(np.float64)
        if not np.isfinite(values).all():
            raise Refused(ErrorCode.NOT_FINITE)
        self.squared_norm += float(values @ values)


async def receive(
    context: Context, blob: StagedBlob, body: AsyncIterator[bytes], *, byte_length: int, digest: str
) -> float:
    """Write a body to a staged blob and make it durable; the squared norm of the vector comes back."""
    checker = _Checker()
    pieces: list[bytes] = []
    waiting = received = 0
    async for chunk in body:
        received += len(chunk)
        if received > byte_length:
            raise Refused(ErrorCode.WRONG_LENGTH, f"more than the {byte_length} bytes of this model")
        pieces.append(chunk)
        waiting += len(chunk)
        if waiting >= _PIECE:
            await anyio.to_thread.run_sync(_store, blob, checker, b"".join(pieces), limiter=context.disk)
            pieces, waiting = [], 0
            failpoint("upload.mid_body")
    await anyio.to_thread.run_sync(_finish, blob, checker, b"".join(pieces), byte_length, digest, limiter=context.disk)
    return checker.squared_norm


def _store(blob: StagedBlob, checker: _Checker, piece: bytes) -> None:
    checker.feed(piece)
    blob.write(piece)


def _finish(blob: StagedBlob, checker: _Checker, piece: bytes, byte_length: int, digest: str) -> None:
    _store(blob, checker, piece)
    if blob.byte_length != byte_length:
        raise Refused(ErrorCode.WRONG_LENGTH, f"{blob.byte_length} bytes, expected {byte_length}")
    if blob.digest != digest:
        raise Refused(ErrorCode.DIGEST_MISMATCH)
    blob.sync()
    failpoint("upload.blob_staged")
