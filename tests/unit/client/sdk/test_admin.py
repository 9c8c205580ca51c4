"""The event feed of the administrator."""

import json
from collections.abc import Iterator

import httpx
import pytest

from qidpfl_client.errors import Forbidden, Unreachable, UntrustedCoordinator
from qidpfl_client.sdk.answers import SMALL
from qidpfl_shared.protocol.errors import ErrorCode
from support.peers.scripted_coordinator import AT_ONCE, MOMENT, TASK, Scripted, problem, task_view


def event(number: int) -> bytes:
    body = {"id": number, "at": MOMENT, "kind": "round.settled", "round_number": number, "detail": None}
    return f"id: {number}\nevent: round.settled\ndata: {json.dumps(body)}\n\n".encode()


class Feed(httpx.SyncByteStream):
    """Sends these pieces, then ends or breaks the connection."""

    def __init__(self, *pieces: bytes, breaks: bool = False) -> None:
        self._pieces, self._breaks = pieces, breaks

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces
        if self._breaks:
            raise httpx.ReadError("connection reset")


def feed(*pieces: bytes, breaks: bool = False) -> httpx.Response:
    return httpx.Response(200, stream=Feed(*pieces, breaks=breaks))


def resumed_after(coordinator: Scripted) -> list[str]:
    return [request.headers["Last-Event-ID"] for request in coordinator.requests if "events" in request.url.path]


def test_a_feed_resumes_after_the_last_event_and_ends_with_the_task() -> None:
    split = event(3)
    coordinator = Scripted(
        feed(b": still here\n\n", event(2), split[:20], breaks=True),
        problem(ErrorCode.STORE_BUSY),
        feed(split[:30], split[30:] + event(4).replace(b"\n", b"\r\n")),
        feed(),
        task_view(state="finished"),
    )
    assert [seen.id for seen in coordinator.admin().events(TASK, after=1)] == [2, 3, 4]
    assert resumed_after(coordinator) == ["1", "2", "2", "4"]


def test_a_feed_that_always_breaks_is_an_error() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return feed(b": still here\n\n", breaks=True) if "events" in request.url.path else task_view()

    coordinator = Scripted(answer)
    with pytest.raises(Unreachable, match="closes the event feed repeatedly"):
        list(coordinator.admin().events(TASK))
    assert len(resumed_after(coordinator)) == AT_ONCE.attempts


def test_an_event_resets_the_count_of_failed_connections() -> None:
    answers = []
    for number in (1, 2, 3):
        for _ in range(AT_ONCE.attempts - 1):
            answers += [feed(), task_view()]
        answers.append(feed(event(number)))
    coordinator = Scripted(*answers, feed(), task_view(state="failed"))
    assert [seen.id for seen in coordinator.admin().events(TASK)] == [1, 2, 3]


def test_a_quiet_feed_is_not_a_failure() -> None:
    quiet = [feed(b": still here\n\n" * 2) for _ in range(3 * AT_ONCE.attempts)]
    coordinator = Scripted(*quiet, feed(event(1)), feed(), task_view(state="stopped"))
    assert [seen.id for seen in coordinator.task().events()] == [1]


@pytest.mark.parametrize(
    "pieces",
    [
        [b"x" * (SMALL + 1)],
        [b"data: " + b"x" * 1000 + b"\n"] * 100,
        [b"data: {}\n\n"],
        [event(5), event(5)],
        [event(5), event(4)],
    ],
    ids=["endless line", "endless event", "no event", "an event twice", "back in time"],
)
def test_an_invalid_feed_is_not_trusted(pieces: list[bytes]) -> None:
    with pytest.raises(UntrustedCoordinator):
        list(Scripted(feed(*pieces)).admin().events(TASK))


def test_a_client_may_not_read_the_feed() -> None:
    with pytest.raises(Forbidden):
        next(Scripted(problem(ErrorCode.FORBIDDEN)).task().events())


def test_start_begins_the_window_only_if_asked() -> None:
    summary = task_view().json() | {}
    for name in ("spec", "spec_digest", "chain"):
        summary.pop(name, None)
    coordinator = Scripted(httpx.Response(200, json=summary), httpx.Response(200, json=summary))
    coordinator.admin().start(TASK)
    coordinator.admin().start(TASK, window=True)
    assert [request.url.query for request in coordinator.requests] == [b"", b"window=true"]
