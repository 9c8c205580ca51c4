"""Downloads: one copy for all readers at the same time, and none afterwards."""

import asyncio

import pytest

from qidpfl_server.api.caches import Download, DownloadCache, etag_matches


def test_readers_at_the_same_time_share_one_copy_until_the_last_is_done() -> None:
    asyncio.run(_those_who_read_at_the_same_time_share_one_copy_that_goes_with_the_last())


async def _those_who_read_at_the_same_time_share_one_copy_that_goes_with_the_last() -> None:
    downloads, loads = DownloadCache(), []

    def load() -> bytes:
        loads.append(1)
        return bytes(200_000)

    found = await asyncio.gather(*(downloads.get("digest", load) for _ in range(5)))
    assert all(one is found[0] for one in found)
    assert len(loads) == 1
    found.clear()
    # What has gathered them lets go of them a moment later.
    await asyncio.sleep(0)
    await downloads.get("digest", load)
    assert len(loads) == 2


def test_the_chunks_are_small_and_complete() -> None:
    asyncio.run(_the_pieces_are_small_and_add_up())


async def _the_pieces_are_small_and_add_up() -> None:
    data = bytes(range(256)) * 1000
    pieces = [bytes(piece) async for piece in Download(data).chunks()]
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) <= 64 * 1024


@pytest.mark.parametrize(
    ("tags", "known"), [("", False), ('"b"', False), ('"a"', True), ('"b", W/"a"', True), ("*", True), ("a", False)]
)
def test_a_known_copy_is_found_by_its_etag(tags: str, known: bool) -> None:
    assert etag_matches(tags, '"a"') == known
