"""The SDK against coordinators that fail, lie or send too much. Retries do not wait here."""

import gzip
import json
import re
import ssl
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import stamina.instrumentation
from stamina.instrumentation import RetryDetails

from qidpfl_client import errors
from qidpfl_client.api import AdminApi, Retries, TaskApi, connect, split_code
from qidpfl_client.errors import (
    ApiError,
    Conflict,
    Forbidden,
    InsecureTransport,
    Misconfigured,
    NotFound,
    Refused,
    RoundClosed,
    Unauthenticated,
    Unavailable,
    Unreachable,
    UntrustedCoordinator,
)
from qidpfl_client.sdk.retries import REPEATED_STATUSES, retry_after_s
from qidpfl_client.sdk.transport import LARGE, SMALL
from qidpfl_shared.protocol.errors import PROBLEM_MEDIA_TYPE, ErrorCode, Problem
from qidpfl_shared.protocol.messages import Declaration, Decline, Profile
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.wire import content_digest, digest_of, encode

AT_ONCE = Retries(attempts=4, wait_initial_s=0.0, wait_max_s=0.0, jitter_s=0.0, retry_after_max_s=0.0)
TASK, TOKEN, KEY = "0123abcd", "a-token-that-must-stay-secret", "a-key-of-the-client"
CODE = f"{TASK}.the-secret-of-this-task"
SPEC = preset("digits")
UPDATE = bytes(4 * 650)
MOMENT = "2026-01-02T03:04:05Z"
Handler = Callable[[httpx.Request], httpx.Response]


@pytest.fixture(autouse=True)
def no_log_lines() -> Iterator[None]:
    stamina.instrumentation.set_on_retry_hooks([])
    yield
    stamina.instrumentation.set_on_retry_hooks(None)


class Scripted:
    """A coordinator that gives these answers in order, then repeats the last one."""

    def __init__(self, *answers: httpx.Response | Exception | Handler) -> None:
        self._answers = list(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else answer(request)

    def http(self) -> httpx.Client:
        return httpx.Client(base_url="https://coordinator.test", transport=httpx.MockTransport(self))

    def task(self, *, retries: Retries = AT_ONCE) -> TaskApi:
        return TaskApi(self.http(), task_id=TASK, token=TOKEN, retries=retries)

    def admin(self) -> AdminApi:
        return AdminApi(self.http(), token=TOKEN, retries=AT_ONCE)


class Pieces(httpx.SyncByteStream):
    """A body in pieces that counts how many were read."""

    def __init__(self, piece: bytes, count: int) -> None:
        self._piece, self._count = piece, count
        self.taken = 0
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        while self.taken < self._count:
            self.taken += 1
            yield self._piece

    def close(self) -> None:
        self.closed = True


def problem(code: ErrorCode, detail: str | None = None, headers: dict[str, str] | None = None) -> httpx.Response:
    body = Problem.of(code, detail).model_dump_json()
    return httpx.Response(code.status, text=body, headers={"Content-Type": PROBLEM_MEDIA_TYPE, **(headers or {})})


def verdict() -> httpx.Response:
    return httpx.Response(200, json={"selected": None, "profiles": 2})


def task_view(**changes: Any) -> httpx.Response:
    view = {
        "task_id": TASK,
        "name": "digits-1",
        "preset": "digits",
        "state": "enrolling",
        "settled_rounds": 0,
        "horizon": 20,
        "clients": 0,
        "paid_micro": 0,
        "spec": SPEC.model_dump(mode="json"),
        "spec_digest": SPEC.digest,
    }
    return httpx.Response(200, json=view | changes)


def enrolled(**changes: Any) -> httpx.Response:
    answer = {"client_id": "c1", "token": "another-token-of-the-client", "ordinal": 0, "spec_digest": SPEC.digest}
    return httpx.Response(201, json=answer | changes)


def update_receipt(data: bytes = UPDATE, round_number: int = 1) -> httpx.Response:
    receipt = {
        "round_number": round_number,
        "client_id": "c1",
        "digest": digest_of(data),
        "byte_length": len(data),
        "received_at": MOMENT,
    }
    return httpx.Response(200, json=receipt)


def budget_receipt(**changes: Any) -> httpx.Response:
    receipt = {"round_number": 1, "state": "declared", "rho": 0.05, "recorded_at": MOMENT}
    return httpx.Response(200, json=receipt | changes)


# --- the address -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "http://coordinator.example",
        "http://127.0.0.1.evil.com",
        "http://localhost.evil.com:8000",
        "http://evil.com/127.0.0.1",
        "http://0.0.0.0:8000",
        "http://10.0.0.1",
        "http://[2001:db8::1]",
        "http://2130706433",
        "http://0x7f.1",
        "HTTP://Coordinator.Example",
    ],
)
def test_plain_http_to_another_machine_needs_consent(url: str) -> None:
    with pytest.raises(InsecureTransport):
        connect(url)
    with connect(url, insecure=True) as http:
        assert http.base_url.scheme == "http"


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:8000", "http://127.8.9.10", "http://localhost:8000", "http://LOCALHOST", "http://[::1]:80"],
)
def test_plain_http_on_this_machine_is_allowed(url: str) -> None:
    connect(url).close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "coordinator.example",
        "localhost:8000",
        "ftp://127.0.0.1",
        "http://",
        "https:///v1",
        "http://127.0.0.1:port",
        "http://127.0.0.1@evil.com",
        "https://user:secret@coordinator.example",
        "https://coordinator.example/?x=1",
        "https://coordinator.example/#x",
    ],
)
def test_an_invalid_address_is_refused_even_with_consent(url: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        connect(url, insecure=True)
    assert "secret" not in str(caught.value)


def test_a_connection_follows_no_redirect_keeps_no_cookie_and_has_timeouts() -> None:
    with connect("https://coordinator.example") as http:
        assert not http.follow_redirects
        assert None not in http.timeout.as_dict().values()
        request = httpx.Request("GET", "https://coordinator.example/")
        http.cookies.extract_cookies(httpx.Response(200, headers={"Set-Cookie": "a=b"}, request=request))
        assert not list(http.cookies.jar)


@pytest.mark.parametrize(("url", "trusted"), [("https://coordinator.example", True), ("http://127.0.0.1", False)])
def test_proxies_of_the_environment_are_used_for_https_only(
    url: str, trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with connect(url) as http:
        assert http.trust_env == trusted
        through_proxy = http._transport_for_url(httpx.URL(url)) is not http._transport
        assert through_proxy == trusted


@pytest.mark.parametrize("code", ["", "task", "task.", ".secret", "a.b.c", "../x.secret", "a/b.secret", "a.b\n"])
def test_an_invalid_enrolment_code_is_refused(code: str) -> None:
    with pytest.raises(Misconfigured):
        split_code(code)


def test_an_enrolment_code_has_a_task_and_a_secret() -> None:
    assert split_code(CODE) == (TASK, "the-secret-of-this-task")


@pytest.mark.parametrize("task_id", ["", "..", "a/b", "a?b", "a" * 65])
def test_an_id_that_would_change_the_path_is_refused(task_id: str) -> None:
    with pytest.raises(Misconfigured):
        TaskApi(Scripted(verdict()).http(), task_id=task_id)
    with pytest.raises(Misconfigured):
        Scripted(NOTHING).admin().task(task_id)
    with pytest.raises(Misconfigured):
        Scripted(NOTHING).admin().put_out(TASK, task_id)


# --- requests --------------------------------------------------------------------------------------------------------


def test_every_request_carries_the_token_asks_for_no_compression_and_has_timeouts() -> None:
    coordinator = Scripted(verdict())
    http = coordinator.http()
    http.timeout = httpx.Timeout(None)
    TaskApi(http, task_id=TASK, token=TOKEN, retries=AT_ONCE).selection()
    (request,) = coordinator.requests
    assert request.url == f"https://coordinator.test/v1/tasks/{TASK}/clients/me/selection"
    assert request.headers["Authorization"] == f"Bearer {TOKEN}"
    assert request.headers["Accept-Encoding"] == "identity"
    assert None not in request.extensions["timeout"].values()


def test_the_timeout_of_a_long_poll_is_its_wait_plus_the_usual_timeout() -> None:
    coordinator = Scripted(httpx.Response(204))
    http = coordinator.http()
    http.timeout = httpx.Timeout(7.0)
    api = TaskApi(http, task_id=TASK, token=TOKEN, retries=AT_ONCE)
    assert api.announcement(after=(3, 2), wait_s=500) is None
    (request,) = coordinator.requests
    assert dict(request.url.params) == {"after": "3.2", "wait": "60"}
    assert request.extensions["timeout"] == {"connect": 7.0, "read": 67.0, "write": 7.0, "pool": 7.0}


def test_an_upload_carries_the_digest_of_its_bytes() -> None:
    coordinator = Scripted(update_receipt())
    coordinator.task().upload(1, UPDATE)
    (request,) = coordinator.requests
    assert request.headers["Content-Digest"] == content_digest(UPDATE)
    assert request.headers["Content-Type"] == "application/octet-stream"
    assert request.headers["Content-Length"] == str(len(UPDATE))
    assert request.content == UPDATE


def test_enrolling_sends_no_token_and_later_calls_send_the_new_one() -> None:
    coordinator = Scripted(enrolled(), verdict())
    api = TaskApi(coordinator.http(), task_id=TASK, retries=AT_ONCE)
    api.enrol(code=CODE, key=KEY, ordinal=3)
    api.selection()
    first, second = coordinator.requests
    assert "Authorization" not in first.headers
    assert json.loads(first.content) == {"enrolment_code": CODE, "enrolment_key": KEY, "ordinal": 3}
    assert second.headers["Authorization"] == "Bearer another-token-of-the-client"


def test_the_task_can_be_read_with_the_code_alone() -> None:
    coordinator = Scripted(task_view())
    view = TaskApi(coordinator.http(), task_id=TASK, retries=AT_ONCE).task(code=CODE)
    assert view.spec == SPEC
    assert coordinator.requests[0].headers["Authorization"] == f"Bearer {CODE}"


@pytest.mark.parametrize(
    ("code", "key"),
    [("other.the-secret-of-this-task", KEY), ("no-code", KEY), (CODE, "short"), (CODE, "no spaces " * 3)],
)
def test_an_enrolment_that_cannot_succeed_is_not_sent_and_its_error_shows_no_secret(code: str, key: str) -> None:
    coordinator = Scripted(enrolled())
    with pytest.raises(Misconfigured) as caught:
        TaskApi(coordinator.http(), task_id=TASK).enrol(code=code, key=key)
    assert not coordinator.requests
    assert code not in str(caught.value) and key not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


# --- errors ----------------------------------------------------------------------------------------------------------

CLASSES = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    408: Unavailable,
    409: Conflict,
    410: RoundClosed,
    429: Unavailable,
}


@pytest.mark.parametrize("code", list(ErrorCode), ids=str)
def test_every_problem_becomes_the_error_of_its_status_with_its_code(code: ErrorCode) -> None:
    with pytest.raises(ApiError) as caught:
        Scripted(problem(code, "because")).task().selection()
    assert type(caught.value) is CLASSES.get(code.status, Unavailable if code.status >= 500 else Refused)
    assert (caught.value.code, caught.value.status, caught.value.detail) == (code, code.status, "because")
    assert str(caught.value) == f"{code.summary}: because"


@pytest.mark.parametrize(
    ("status", "kind"),
    [(404, NotFound), (413, Refused), (418, Refused), (301, Refused), (502, Unavailable), (599, Unavailable)],
)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html><h1>Bad gateway</h1></html>",
        b"[1, 2]",
        b'"text"',
        b"[" * 50_000,
        b'{"code": 7, "detail": {"a": 1}, "errors": [7, {"path": 1}]}',
        b'{"code": "not_a_code"}',
        b"\xff\xfe",
        b"x" * (SMALL + 1),
    ],
    ids=["empty", "html", "list", "text", "nested", "wrong types", "unknown code", "not utf-8", "too long"],
)
def test_an_error_without_a_problem_document_keeps_its_status(status: int, kind: type[ApiError], body: bytes) -> None:
    with pytest.raises(kind) as caught:
        Scripted(httpx.Response(status, content=body)).task().selection()
    assert (caught.value.code, caught.value.status) == (None, status)
    assert str(caught.value).startswith(f"status {status}")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1100


def test_an_error_code_of_another_status_is_ignored() -> None:
    body = Problem.of(ErrorCode.ROUND_CLOSED).model_dump_json()
    with pytest.raises(Unavailable) as caught:
        Scripted(httpx.Response(503, text=body)).task().selection()
    assert caught.value.code is None


def test_the_message_names_the_wrong_fields_in_one_line() -> None:
    fields = [{"path": f"/field{number}", "message": "too\nlarge"} for number in range(9)]
    body = json.dumps({"code": "invalid_request", "detail": "look:", "errors": fields})
    with pytest.raises(Refused) as caught:
        Scripted(httpx.Response(422, text=body)).task().selection()
    assert caught.value.detail == "look:; /field0: too large; /field1: too large; /field2: too large"


def test_an_error_body_is_read_up_to_its_limit_only() -> None:
    body = Pieces(b"x" * 1024, 1_000_000)
    with pytest.raises(NotFound):
        Scripted(httpx.Response(404, stream=body)).task().selection()
    assert body.taken == SMALL // 1024 + 1
    assert body.closed


def test_a_compressed_error_is_not_decompressed() -> None:
    body = Pieces(gzip.compress(bytes(10_000_000)), 1)
    with pytest.raises(NotFound):
        Scripted(httpx.Response(404, headers={"Content-Encoding": "gzip"}, stream=body)).task().selection()
    assert body.taken == 0 and body.closed


def test_a_redirect_is_not_followed_and_the_token_is_not_sent_to_its_target() -> None:
    coordinator = Scripted(httpx.Response(307, headers={"Location": "https://evil.example/"}))
    http = coordinator.http()
    http.follow_redirects = True
    with pytest.raises(Refused, match="redirects are not followed"):
        TaskApi(http, task_id=TASK, token=TOKEN, retries=AT_ONCE).selection()
    assert [request.url.host for request in coordinator.requests] == ["coordinator.test"]


def test_no_message_and_no_repr_shows_a_secret_that_a_hostile_coordinator_sends_back() -> None:
    echo = problem(ErrorCode.UNAUTHENTICATED, f"{TOKEN} {CODE} {KEY}")
    shown = [repr(Scripted(echo).task()), repr(Scripted(echo).admin())]
    with pytest.raises(Unauthenticated) as caught:
        Scripted(echo).task().enrol(code=CODE, key=KEY)
    shown.append(repr(caught.value).replace(TOKEN, ""))  # not sent with this request, so not known to the coordinator
    with pytest.raises(Unauthenticated) as caught:
        Scripted(echo).task().task(code=CODE)
    shown.append(repr(caught.value).replace(TOKEN, "").replace(KEY, ""))
    with pytest.raises(Unauthenticated) as caught:
        Scripted(echo).task().selection()
    shown.append(repr(caught.value).replace(CODE, "").replace(KEY, ""))
    with pytest.raises(UntrustedCoordinator) as untrusted:
        Scripted(httpx.Response(200, json={TOKEN: 1, "profiles": 1})).task().selection()
    shown.append(repr(untrusted.value))
    assert not [text for text in shown for secret in (TOKEN, CODE, KEY) if secret in text]


@pytest.mark.parametrize("token", ["", "with space", "with\nline", "a-token\n", "über", "x" * 500])
def test_an_impossible_token_is_refused_and_not_shown(token: str) -> None:
    for make in (lambda: TaskApi(Scripted(verdict()).http(), task_id=TASK, token=token), lambda: _admin(token)):
        with pytest.raises(Misconfigured) as caught:
            make()
        assert not token or token not in str(caught.value)


def _admin(token: str) -> AdminApi:
    return AdminApi(Scripted(verdict()).http(), token=token)


# --- answers that are not valid --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, content=b""),
        httpx.Response(200, content=b"<html></html>"),
        httpx.Response(200, content=b"[" * 50_000),
        httpx.Response(200, json={}),
        httpx.Response(200, json={"selected": "yes", "profiles": 2}),
        httpx.Response(200, json={"profiles": 2, "more": 1}),
        httpx.Response(200, content=b'{"profiles": 2, "label_distance": NaN}'),
        httpx.Response(200, content=b'{"profiles": ' + b"9" * 5000 + b"}"),
        httpx.Response(200, content=b"\xff"),
        httpx.Response(204),
        httpx.Response(201, json={"profiles": 2}),
        httpx.Response(200, content=b" " * (SMALL + 1)),
        httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=Pieces(b"x", 1)),
    ],
)
def test_a_malformed_answer_is_one_readable_line(answer: httpx.Response) -> None:
    coordinator = Scripted(answer)
    with pytest.raises(UntrustedCoordinator) as caught:
        coordinator.task().selection()
    assert "GET" in str(caught.value) and "\n" not in str(caught.value)
    assert caught.value.__cause__ is None and (caught.value.__suppress_context__ or not caught.value.__context__)
    assert len(coordinator.requests) == 1


@pytest.mark.parametrize(
    ("call", "limit"),
    [(TaskApi.selection, SMALL), (TaskApi.ledger, LARGE), (TaskApi.task, LARGE), (TaskApi.announcement, SMALL)],
)
def test_an_endless_answer_is_cut_off_at_its_limit(call: Callable[[TaskApi], object], limit: int) -> None:
    body = Pieces(b" " * 65536, 1_000_000)
    with pytest.raises(UntrustedCoordinator, match="longer than"):
        call(Scripted(httpx.Response(200, stream=body)).task())
    assert body.taken == limit // 65536 + 1
    assert body.closed


def test_an_answer_that_arrives_too_slowly_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 10**9, 20))
    monkeypatch.setattr("qidpfl_client.sdk.transport.time.monotonic", lambda: float(next(now)))
    body = Pieces(b" ", 60_000)
    with pytest.raises(Unreachable, match="too slowly"):
        Scripted(httpx.Response(200, stream=body)).task(retries=replace(AT_ONCE, attempts=1)).selection()
    assert body.taken < 10


def test_a_task_that_shows_another_id_or_digest_is_not_trusted() -> None:
    with pytest.raises(UntrustedCoordinator, match="another"):
        Scripted(task_view(task_id="another")).task().task()
    with pytest.raises(UntrustedCoordinator, match="digest"):
        Scripted(task_view(spec_digest="0" * 64)).task().task()


def test_a_task_whose_spec_changes_is_not_trusted() -> None:
    changed = preset("digits", {"game": {"horizon": 3}})
    other = task_view(spec=changed.model_dump(mode="json"), spec_digest=changed.digest)
    api = Scripted(task_view(), task_view(), other).task()
    assert api.task().spec_digest == api.task().spec_digest
    with pytest.raises(UntrustedCoordinator, match="another spec"):
        api.task()


def test_an_enrolment_with_another_spec_than_shown_before_is_not_trusted() -> None:
    api = Scripted(task_view(), enrolled(spec_digest="1" * 64)).task()
    api.task()
    with pytest.raises(UntrustedCoordinator, match="another spec"):
        api.enrol(code=CODE, key=KEY)
    assert api.token == TOKEN


def test_the_result_of_another_round_is_not_trusted() -> None:
    result = {
        "round_number": 2,
        "attempt": 1,
        "state": "open",
        "reward_micro": 1,
        "paid_micro": 0,
        "kept_micro": 0,
        "total": 0.1,
        "updates": 0,
        "model_version": 1,
    }
    answer = httpx.Response(200, json=result)
    assert Scripted(answer).task().round(2).round_number == 2
    with pytest.raises(UntrustedCoordinator):
        Scripted(answer).task().round(1)


@pytest.mark.parametrize("receipt", [update_receipt(b"other"), update_receipt(round_number=2)])
def test_a_receipt_for_another_update_is_not_trusted(receipt: httpx.Response) -> None:
    with pytest.raises(UntrustedCoordinator):
        Scripted(receipt).task().upload(1, UPDATE)


@pytest.mark.parametrize("changes", [{"rho": 0.06}, {"rho": None}, {"round_number": 2}, {"state": "declined"}])
def test_a_receipt_for_another_budget_is_not_trusted(changes: dict[str, Any]) -> None:
    assert Scripted(budget_receipt()).task().answer(1, Declaration(rho=0.05)).rho == 0.05
    with pytest.raises(UntrustedCoordinator):
        Scripted(budget_receipt(**changes)).task().answer(1, Declaration(rho=0.05))


def test_the_receipt_of_a_decline_may_show_the_withdrawn_budget() -> None:
    receipt = Scripted(budget_receipt(state="declined")).task().answer(1, Decline(decline=True, reason="no"))
    assert (receipt.state, receipt.rho) == ("declined", 0.05)


# --- models ----------------------------------------------------------------------------------------------------------


def test_a_model_with_the_right_digest_is_returned_unchanged() -> None:
    vector = np.arange(650, dtype=np.float32)
    data = encode(vector)
    got = Scripted(httpx.Response(200, content=data)).task().model(3, digest=digest_of(data), dimension=650)
    np.testing.assert_array_equal(got, vector)


def test_the_dimension_of_a_model_is_read_once() -> None:
    data = encode(np.zeros(650))
    coordinator = Scripted(task_view(), httpx.Response(200, content=data))
    api = coordinator.task()
    for _ in range(2):
        api.model(3, digest=digest_of(data))
    assert [request.url.path.rpartition("/")[2] for request in coordinator.requests] == [TASK, "3", "3"]


@pytest.mark.parametrize(
    ("data", "digest"),
    [
        (bytes(2600), digest_of(b"another model")),
        (bytes(2596), digest_of(bytes(2600))),
        (bytes(2596), digest_of(bytes(2596))),
        (b"", digest_of(b"")),
        (np.full(650, np.nan, dtype="<f4").tobytes(), digest_of(np.full(650, np.nan, dtype="<f4").tobytes())),
    ],
    ids=["other digest", "truncated", "too short with its digest", "empty", "not finite"],
)
def test_a_wrong_model_is_refused(data: bytes, digest: str) -> None:
    with pytest.raises(UntrustedCoordinator):
        Scripted(httpx.Response(200, content=data)).task().model(3, digest=digest, dimension=650)


def test_a_model_is_read_only_up_to_its_length() -> None:
    body = Pieces(bytes(100), 1_000_000)
    with pytest.raises(UntrustedCoordinator, match="longer than 2600 bytes"):
        Scripted(httpx.Response(200, stream=body)).task().model(3, digest="0" * 64, dimension=650)
    assert body.taken == 27


# --- retries ---------------------------------------------------------------------------------------------------------

LOST = httpx.ReadError("connection reset")
PROFILE = Profile(label_counts=(1, 1), size=2, privacy_value=1.0)
NOTHING = httpx.Response(204)
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
    assert str(caught.value) == "https://coordinator.test does not answer: [Errno 111] refused"
    with pytest.raises(Unavailable):
        call(busy.task())
    assert len(silent.requests) == len(busy.requests) == AT_ONCE.attempts


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


# --- events ----------------------------------------------------------------------------------------------------------


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
    with pytest.raises(Unreachable, match="again and again"):
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


def test_a_quiet_feed_is_no_failure() -> None:
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


# --- documentation ---------------------------------------------------------------------------------------------------

DOCUMENT = (Path(__file__).parents[3] / "docs" / "clients.md").read_text()


def tree(text: str) -> list[str]:
    """The lines of a tree of errors, without those that no call raises."""
    lines = [line for line in text.splitlines() if re.match(r" *[A-Z]\w+( {2,}\S|$)", line)]
    return [line for line in lines if not re.match(r" *(JournalError|OwnerLimit)", line)]


def test_the_document_shows_the_same_tree_of_errors_as_the_module() -> None:
    (drawn,) = re.findall(r"^```\n(ClientError\n.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert errors.__doc__ is not None
    assert set(tree(drawn)) <= set(tree(errors.__doc__))
    names = {line.split()[0] for line in tree(drawn)}
    assert names >= {kind.__name__ for kind in ApiError.__subclasses__()}


def test_the_tree_of_errors_is_that_of_the_classes() -> None:
    assert errors.__doc__ is not None
    above: list[str] = []
    drawn = {}
    for line in re.findall(r"^ *[A-Z]\w+(?=  |$)", errors.__doc__, re.MULTILINE):
        depth, name = (len(line) - len(line.lstrip())) // 2, line.strip()
        drawn[name] = above[depth - 1] if depth else "Exception"
        above[depth:] = [name]
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert drawn == {kind.__name__: kind.__base__.__name__ for kind in kinds if kind.__base__ is not None}


@pytest.mark.parametrize("api", [TaskApi, AdminApi])
def test_every_call_is_documented(api: type) -> None:
    calls = [name for name, member in vars(api).items() if callable(member) and not name.startswith("_")]
    assert [name for name in calls if not re.search(rf"`{name}[`(]", DOCUMENT)] == []


def test_the_document_says_how_often_and_when_calls_are_retried() -> None:
    text = " ".join(DOCUMENT.split())
    statuses = [str(status) for status in sorted(REPEATED_STATUSES)]
    assert f"the statuses {', '.join(statuses[:-1])} and {statuses[-1]}" in text
    default = Retries()
    assert default.attempts == 6 and "up to six attempts" in text
    assert f"within about {default.timeout_s:g} seconds" in text
    assert f"1, 2, 4 … {default.wait_max_s:g} seconds" in text and default.wait_initial_s == 1
    assert f"up to {default.retry_after_max_s:g} seconds" in text
    assert (SMALL, LARGE) == (64 * 1024, 16 * 1024**2)
