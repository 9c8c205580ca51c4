"""Batches of requests: requests that wait at the same time share one call, and each gets its own answer."""

import asyncio
from collections.abc import Sequence

import pytest

from qidpfl_server.api.batching import RequestBatcher

Groups = list[tuple[str, list[int]]]


def doubling(groups: Groups, gate: asyncio.Event) -> RequestBatcher[str, int, int]:
    """Doubles numbers, refuses negative ones, fails at 13; the first batch waits for an event."""

    async def work(key: str, items: Sequence[int]) -> list[int | Exception]:
        groups.append((key, list(items)))
        await gate.wait()
        if 13 in items:
            raise ZeroDivisionError("thirteen")
        return [2 * item if item >= 0 else ValueError(item) for item in items]

    return RequestBatcher(work)


def test_items_that_arrive_during_a_batch_form_the_next_and_each_gets_its_own_answer() -> None:
    async def scene() -> tuple[list[int | BaseException], Groups]:
        groups: Groups = []
        gate = asyncio.Event()
        batcher = doubling(groups, gate)
        first = asyncio.create_task(batcher.submit("a", 1))
        await asyncio.sleep(0.01)
        rest = [asyncio.create_task(batcher.submit("a", item)) for item in (2, -3, 4)]
        await asyncio.sleep(0.01)
        gate.set()
        return await asyncio.gather(first, *rest, return_exceptions=True), groups

    answers, groups = asyncio.run(scene())
    assert groups == [("a", [1]), ("a", [2, -3, 4])]
    assert [repr(answer) for answer in answers] == ["2", "4", "ValueError(-3)", "8"]


def test_keys_do_not_wait_for_each_other() -> None:
    async def scene() -> Groups:
        groups: Groups = []
        gate = asyncio.Event()
        batcher = doubling(groups, gate)
        asked = [asyncio.create_task(batcher.submit(key, 1)) for key in "ab"]
        await asyncio.sleep(0.01)
        begun = list(groups)
        gate.set()
        await asyncio.gather(*asked)
        return begun

    assert asyncio.run(scene()) == [("a", [1]), ("b", [1])]


def test_an_error_of_the_work_goes_to_all_its_items_and_the_next_batch_is_served() -> None:
    async def scene() -> tuple[list[int | BaseException], int]:
        gate = asyncio.Event()
        gate.set()
        batcher = doubling([], gate)
        failed = await asyncio.gather(*(batcher.submit("a", item) for item in (1, 13)), return_exceptions=True)
        return failed, await batcher.submit("a", 5)

    failed, answer = asyncio.run(scene())
    assert [type(outcome) for outcome in failed] == [ZeroDivisionError] * 2
    assert answer == 10


def test_a_request_cancelled_before_its_batch_is_left_out() -> None:
    async def scene() -> tuple[int, Groups]:
        groups: Groups = []
        gate = asyncio.Event()
        batcher = doubling(groups, gate)
        first, gone, last = (asyncio.create_task(batcher.submit("a", item)) for item in (1, 2, 3))
        await asyncio.sleep(0.01)
        late = asyncio.create_task(batcher.submit("a", 4))
        await asyncio.sleep(0.01)
        late.cancel()
        gone.cancel()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await gone
        return await first + await last, groups

    assert asyncio.run(scene()) == (8, [("a", [1, 2, 3])])


def test_a_batch_is_bounded() -> None:
    async def scene() -> Groups:
        groups: Groups = []
        gate = asyncio.Event()
        gate.set()
        batcher = doubling(groups, gate)
        await asyncio.gather(*(batcher.submit("a", 1) for _ in range(300)))
        return groups

    assert [len(items) for _, items in asyncio.run(scene())] == [128, 128, 44]
