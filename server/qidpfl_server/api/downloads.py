"""Models on their way out: one copy in memory for all who read it at the same time, sent in small pieces."""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from weakref import WeakValueDictionary

import anyio.to_thread
from fastapi.responses import Response, StreamingResponse

_PIECE = 64 * 1024


class Download:
    """Bytes that somebody reads."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    async def pieces(self) -> AsyncIterator[memoryview]:
        """All bytes; whoever reads slowly holds back one piece, not a copy."""
        view = memoryview(self.data)
        for start in range(0, len(view), _PIECE):
            yield view[start : start + _PIECE]


class Downloads:
    """Everything that is being read now. It is forgotten with its last reader."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[Hashable, Download] = WeakValueDictionary()
        self._loading = asyncio.Lock()

    async def get(self, key: Hashable, load: Callable[[], bytes]) -> Download:
        """The bytes of a key, from others who read them, or loaded in a thread."""
        async with self._loading:
            found = self._known.get(key)
            if found is None:
                found = Download(await anyio.to_thread.run_sync(load))
                self._known[key] = found
            return found


def download_response(download: Download, headers: dict[str, str]) -> Response:
    """The answer that carries a download."""
    headers = headers | {"Content-Length": str(len(download.data))}
    return StreamingResponse(download.pieces(), media_type="application/octet-stream", headers=headers)


def is_known(tags: str, etag: str) -> bool:
    """Whether an If-None-Match header names this entity tag, or any."""
    named = {tag.strip().removeprefix("W/") for tag in tags.split(",")}
    return "*" in named or etag in named
