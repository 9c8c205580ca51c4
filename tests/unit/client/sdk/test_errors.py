"""Errors of the coordinator: their classes, and messages without secrets."""

import gzip
import json

import httpx
import pytest

from qidpfl_client.api import AdminApi, TaskApi
from qidpfl_client.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Misconfigured,
    NotFound,
    Refused,
    RoundClosed,
    Unauthenticated,
    Unavailable,
    UntrustedCoordinator,
)
from qidpfl_client.sdk.answers import SMALL
from qidpfl_shared.protocol.errors import ErrorCode, Problem
from support.peers.scripted_coordinator import AT_ONCE, CODE, KEY, TASK, TOKEN, Pieces, Scripted, problem, verdict

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
        Scripted(httpx.Response(200, json={"profiles": TOKEN})).task().selection()
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
