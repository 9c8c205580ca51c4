"""In-memory caches of answers: model bytes, and the results of settled rounds."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from weakref import WeakValueDictionary

import anyio.to_thread
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from qidpfl_shared.protocol.messages import RoundResult, RoundState

_CHUNK_BYTES = 64 * 1024
# The largest download that is kept after its last request.
_KEPT_BYTES = 16 << 20
# Clients ask for the round that was just settled; a few tasks may settle at the same time.
_SETTLED_ROUNDS = 16


class Download:
    """Bytes that requests send."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def chunks(self) -> Iterator[memoryview]:
        """All bytes in chunks; a slow reader keeps one chunk in its buffer, not a copy of the model."""
        view = memoryview(self.data)
        for start in range(0, len(view), _CHUNK_BYTES):
            yield view[start : start + _CHUNK_BYTES]


class DownloadCache:
    """One copy of the bytes for all requests that send them at the same time.

    The latest one is kept unless it is large, because all clients ask for the same model, one after the other. All
    others are freed with the last request that sends them.
    """

    def __init__(self) -> None:
        self._by_key: WeakValueDictionary[Hashable, Download] = WeakValueDictionary()
        self._latest: Download | None = None
        self._loading = asyncio.Lock()

    async def get(self, key: Hashable, load: Callable[[], bytes]) -> Download:
        """The bytes of a key: shared with requests that send them now, else loaded in a thread."""
        if (found := self._by_key.get(key)) is not None:
            return found
        async with self._loading:
            found = self._by_key.get(key)
            if found is None:
                self._latest = None
                found = Download(await anyio.to_thread.run_sync(load))
                self._by_key[key] = found
                if len(found.data) <= _KEPT_BYTES:
                    self._latest = found
            return found


class DownloadResponse(Response):
    """The bytes of a download, sent as the client reads them."""

    media_type = "application/octet-stream"

    def __init__(self, download: Download, headers: dict[str, str]) -> None:
        super().__init__(headers=headers | {"Content-Length": str(len(download.data))})
        self._download = download

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        left = len(self._download.data)
        for chunk in self._download.chunks():
            left -= len(chunk)
            # It returns when the client has read enough of the chunks before; at once if the client has gone.
            await send({"type": "http.response.body", "body": chunk, "more_body": left > 0})
        if not self._download.data:
            await send({"type": "http.response.body", "body": b""})


def etag_matches(if_none_match: str, etag: str) -> bool:
    """Whether an If-None-Match header names this entity tag, or `*`."""
    named = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return "*" in named or etag in named


class SettledRoundCache:
    """Results of the latest settled rounds, with the parts of all clients.

    A settled round never changes, except that it may still get its scores. Such a result is kept too, because all
    clients ask for it with the next announcement; a request that wants the scores must not use it.
    """

    def __init__(self, size: int = _SETTLED_ROUNDS) -> None:
        self._size = size
        # Each result, and whether it has yet to get its scores.
        self._results: OrderedDict[tuple[str, int], tuple[RoundResult, bool]] = OrderedDict()

    def get(self, task_id: str, round_number: int, *, with_scores: bool = True) -> RoundResult | None:
        """The cached result, if there is one; without `with_scores` also one that has yet to get its scores."""
        result, awaits_evaluation = self._results.get((task_id, round_number), (None, False))
        return None if awaits_evaluation and with_scores else result

    def drop(self, task_id: str) -> None:
        """Forget the rounds of a task that was deleted."""
        for key in [key for key in self._results if key[0] == task_id]:
            del self._results[key]

    def add(self, task_id: str, result: RoundResult, *, awaits_evaluation: bool = False) -> None:
        """Cache a result unless its round may still change. A full cache drops its oldest entry."""
        if result.state is RoundState.SETTLED:
            self._results[task_id, result.round_number] = result, awaits_evaluation
            if len(self._results) > self._size:
                self._results.popitem(last=False)
