"""Downloads: one copy for all readers at the same time; afterwards only the latest one, if it is small."""

import asyncio

import pytest

from qidpfl_server.api.caches import Download, DownloadCache, etag_matches


class _Loader:
    """Counts how often the bytes of a key are loaded."""

    def __init__(self, size: int) -> None:
        self.loads = 0
        self._size = size

    def __call__(self) -> bytes:
        self.loads += 1
        return bytes(self._size)


@pytest.mark.parametrize(("size", "loads"), [(200_000, 1), ((16 << 20) + 1, 2)])
def test_readers_at_the_same_time_share_one_copy_which_is_kept_if_it_is_small(size: int, loads: int) -> None:
    load = _Loader(size)

    async def read_twice() -> None:
        downloads = DownloadCache()
        found = await asyncio.gather(*(downloads.get("digest", load) for _ in range(5)))
        assert all(one is found[0] for one in found)
        assert load.loads == 1
        found.clear()
        # What has gathered them lets go of them a moment later.
        await asyncio.sleep(0)
        await downloads.get("digest", load)

    asyncio.run(read_twice())
    assert load.loads == loads


def test_only_the_latest_copy_is_kept() -> None:
    load = _Loader(1000)

    async def read_two() -> None:
        downloads = DownloadCache()
        for key in ("first", "second", "first"):
            await downloads.get(key, load)

    asyncio.run(read_two())
    assert load.loads == 3


def test_the_chunks_are_small_and_complete() -> None:
    data = bytes(range(256)) * 1000
    pieces = [bytes(piece) for piece in Download(data).chunks()]
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) <= 64 * 1024


@pytest.mark.parametrize(
    ("tags", "known"), [("", False), ('"b"', False), ('"a"', True), ('"b", W/"a"', True), ("*", True), ("a", False)]
)
def test_a_known_copy_is_found_by_its_etag(tags: str, known: bool) -> None:
    assert etag_matches(tags, '"a"') == known
