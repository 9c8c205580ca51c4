"""Which calls are retried, and when. Retries do not wait here."""

import json
import ssl
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest
import stamina.instrumentation
from stamina.instrumentation import RetryDetails

from qidpfl_client.api import AdminApi, Retries, TaskApi
from qidpfl_client.errors import ApiError, Unavailable, Unreachable, UntrustedCoordinator
from qidpfl_client.sdk.retries import retry_after_s
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import Declaration, Profile
from qidpfl_shared.protocol.wire import digest_of
from support.peers.scripted_coordinator import (
    AT_ONCE,
    CODE,
    KEY,
    NOTHING,
    TASK,
    UPDATE,
    Scripted,
    budget_receipt,
    enrolled,
    problem,
    task_view,
    update_receipt,
    verdict,
)

LOST = httpx.ReadError("connection reset")
PROFILE = Profile(label_counts=(1, 1), size=2, privacy_value=1.0)
HARMLESS: dict[str, tuple[Callable[[TaskApi], object], httpx.Response]] = {
    "task": (TaskApi.task, task_view()),
    "enrol": (lambda api: api.enrol(code=CODE, key=KEY), enrolled()),
    "profile": (lambda api: api.store_profile(PROFILE), NOTHING),
    "selection": (TaskApi.selection, verdict()),
    "announcement": (TaskApi.announcement, NOTHING),
    "budget": (lambda api: api.answer(1, Declaration(rho=0.05)), budget_receipt()),
    "model": (lambda api: api.model(0, digest=digest_of(UPDATE), dimension=650), httpx.Response(200, content=UPDATE)),
    "upload": (lambda api: api.upload(1, UPDATE), update_receipt()),
    "leave": (TaskApi.leave, NOTHING),
}


@pytest.mark.parametrize("name", list(HARMLESS))
@pytest.mark.parametrize(
    "failure",
    [
        LOST,
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("timed out"),
        httpx.PoolTimeout("timed out"),
        httpx.RemoteProtocolError("server disconnected"),
        *(httpx.Response(status, text="later") for status in (408, 429, 500, 502, 503, 504, 507)),
    ],
    ids=lambda failure: type(failure).__name__ if isinstance(failure, Exception) else str(failure.status_code),
)
def test_a_harmless_call_is_retried_unchanged_until_it_succeeds(name: str, failure: Exception | httpx.Response) -> None:
    call, answer = HARMLESS[name]
    coordinator = Scripted(failure, failure, answer)
    call(coordinator.task())
    assert len(coordinator.requests) == 3
    assert len({(request.method, request.url, request.content) for request in coordinator.requests}) == 1


@pytest.mark.parametrize("name", list(HARMLESS))
def test_a_call_fails_after_all_attempts(name: str) -> None:
    call, _ = HARMLESS[name]
    silent, busy = Scripted(httpx.ConnectError("[Errno 111]\nrefused")), Scripted(problem(ErrorCode.STORE_BUSY))
    with pytest.raises(Unreachable) as caught:
        call(silent.task())
    said = "https://coordinator.test does not answer: [Errno 111] refused"
    assert str(caught.value) == f"{said} (is the coordinator running, and is the address right?)"
    with pytest.raises(Unavailable):
        call(busy.task())
    assert len(silent.requests) == len(busy.requests) == AT_ONCE.attempts


def test_a_coordinator_that_has_answered_needs_no_hint() -> None:
    call, answer = HARMLESS[next(iter(HARMLESS))]
    coordinator = Scripted(answer, httpx.RemoteProtocolError("server disconnected"))
    task = coordinator.task()
    call(task)
    with pytest.raises(Unreachable, match=r"server disconnected$"):
        call(task)


@pytest.mark.parametrize("code", [code for code in ErrorCode if code.status not in (408, 429, 500, 503, 507)], ids=str)
def test_an_error_that_a_retry_cannot_fix_is_not_retried(code: ErrorCode) -> None:
    coordinator = Scripted(problem(code))
    with pytest.raises(ApiError):
        coordinator.task().upload(1, UPDATE)
    assert len(coordinator.requests) == 1


@pytest.mark.parametrize("failure", [LOST, problem(ErrorCode.STORE_BUSY)])
def test_creating_a_task_is_never_retried(failure: Exception | httpx.Response) -> None:
    coordinator = Scripted(failure)
    with pytest.raises((Unreachable, Unavailable)):
        coordinator.admin().create_task("digits-1", preset="digits")
    assert len(coordinator.requests) == 1


@pytest.mark.parametrize("call", [AdminApi.start, AdminApi.stop])
def test_starting_and_stopping_are_retried(call: Callable[[AdminApi, str], object]) -> None:
    summary = json.loads(task_view().content)
    del summary["spec"], summary["spec_digest"]
    coordinator = Scripted(LOST, httpx.Response(200, json=summary))
    call(coordinator.admin(), TASK)
    assert len(coordinator.requests) == 2


def test_giving_a_model_is_retried_and_another_receipt_is_not_trusted() -> None:
    info = {"version": 0, "digest": digest_of(UPDATE), "dimension": 650, "byte_length": 2600}
    coordinator = Scripted(LOST, httpx.Response(200, json=info))
    assert coordinator.admin().give_model(TASK, UPDATE).version == 0
    assert len(coordinator.requests) == 2
    with pytest.raises(UntrustedCoordinator):
        Scripted(httpx.Response(200, json=info | {"digest": "0" * 64})).admin().give_model(TASK, UPDATE)


def test_an_incomplete_body_is_requested_again() -> None:
    class Broken(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield UPDATE[:100]
            raise httpx.RemoteProtocolError("incomplete")

    coordinator = Scripted(httpx.Response(200, stream=Broken()), httpx.Response(200, content=UPDATE))
    coordinator.task().model(0, digest=digest_of(UPDATE), dimension=650)
    assert len(coordinator.requests) == 2


def test_a_bad_certificate_is_not_retried() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        try:
            raise ssl.SSLCertVerificationError("self-signed certificate")
        except ssl.SSLError as error:
            raise httpx.ConnectError(str(error)) from error

    coordinator = Scripted(refuse)
    with pytest.raises(Unreachable, match="self-signed"):
        coordinator.task().selection()
    assert len(coordinator.requests) == 1


NOW = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": " 0 "}, 0.0),
        ({"Retry-After": "9" * 5000}, 999_999_999_999.0),
        ({"Retry-After": format_datetime(NOW + timedelta(seconds=90), usegmt=True)}, 90.0),
        ({"Retry-After": format_datetime(NOW - timedelta(seconds=90), usegmt=True)}, 0.0),
        ({"Retry-After": "Mon, 04 May 2026 03:02:31 -0000"}, 30.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-3"}, None),
        ({"Retry-After": "1.5"}, None),
        ({"Retry-After": "²"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_as_seconds_or_as_a_date(headers: dict[str, str], seconds: float | None) -> None:
    date = {"Date": format_datetime(NOW, usegmt=True)}
    encoded = [(name.encode(), value.encode()) for name, value in (headers | date).items()]
    assert retry_after_s(httpx.Headers(encoded)) == seconds


def test_a_retry_after_date_without_a_date_header_uses_the_local_clock() -> None:
    found = retry_after_s(httpx.Headers({"Retry-After": "Mon, 04 May 2099 03:02:31 GMT"}))
    assert found is not None and found > 365 * 24 * 3600


def test_retry_after_sets_the_wait_up_to_a_limit_with_jitter() -> None:
    def wait(seconds: float | None, jitter_s: float = 0.0) -> bool | float:
        error = Unavailable(code=None, status=503, retry_after_s=seconds)
        return replace(Retries(), retry_after_max_s=60, jitter_s=jitter_s).wait_after(error)

    assert wait(None) is True
    assert wait(7.0) == 7.0
    assert wait(0.0) == 0.0 and wait(0.0) is not False
    assert wait(1e12) == 60.0
    spread = [wait(7.0, jitter_s=2.0) for _ in range(100)]
    assert 7 <= min(spread) < 8 < max(spread) <= 9


def test_the_client_waits_as_long_as_retry_after_says() -> None:
    waits: list[float] = []

    def remember(details: RetryDetails) -> None:
        waits.append(details.wait_for)

    stamina.instrumentation.set_on_retry_hooks([remember])
    later = problem(ErrorCode.TOO_MANY_REQUESTS, headers={"Retry-After": "3600"})
    retries = replace(AT_ONCE, retry_after_max_s=0.001)
    Scripted(later, LOST, verdict()).task(retries=retries).selection()
    assert waits == pytest.approx([0.001, 0.0])
