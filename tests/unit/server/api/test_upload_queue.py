"""The upload queue: one upload per client at a time, and a limit on how many wait."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from qidpfl_server.api import uploads
from qidpfl_server.api.uploads import UploadQueue, UploadSuperseded


def test_the_queue_of_a_client_is_bounded_and_other_queues_are_free() -> None:
    asyncio.run(_a_line_has_an_end_and_other_places_are_free())


async def _a_line_has_an_end_and_other_places_are_free() -> None:
    queue = UploadQueue()

    async def wait() -> None:
        async with queue.turn("client"):
            pass

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(queue.turn("client"))
        waiting = [asyncio.create_task(wait()) for _ in range(15)]
        await asyncio.sleep(0)
        with pytest.raises(UploadSuperseded):
            await wait()
        async with queue.turn("another"):
            pass
    await asyncio.gather(*waiting)
    async with queue.turn("client") as turn:
        assert turn.members == 1


def test_a_newer_upload_supersedes_one_that_is_read_but_not_one_that_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(uploads, "_SUPERSEDE_AFTER_S", 0.01)
    asyncio.run(_supersede_reading_and_storing_uploads())


async def _supersede_reading_and_storing_uploads() -> None:
    queue, order = UploadQueue(), []

    async def hang() -> None:
        async with queue.turn("client") as turn:
            with turn.reading():
                await asyncio.Event().wait()

    async def store(done: asyncio.Event) -> None:
        async with queue.turn("client"):
            await done.wait()
            order.append("stored")

    async def come() -> None:
        async with queue.turn("client"):
            order.append("came")

    hanging = asyncio.create_task(hang())
    await asyncio.sleep(0)
    await come()
    with pytest.raises(UploadSuperseded):
        await hanging
    done = asyncio.Event()
    storing = asyncio.create_task(store(done))
    await asyncio.sleep(0)
    newcomer = asyncio.create_task(come())
    # The newer upload waits longer than the time after which it supersedes a reading one.
    await asyncio.sleep(0.05)
    done.set()
    await asyncio.gather(storing, newcomer)
    assert order == ["came", "stored", "came"]
