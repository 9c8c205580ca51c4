"""Addresses, enrolment codes, headers and timeouts of requests."""

import json

import httpx
import pytest

from qidpfl_client.api import TaskApi, connect, split_code
from qidpfl_client.errors import InsecureTransport, Misconfigured
from qidpfl_shared.protocol.wire import content_digest
from support.peers.scripted_coordinator import (
    AT_ONCE,
    CODE,
    KEY,
    NOTHING,
    SPEC,
    TASK,
    TOKEN,
    UPDATE,
    Scripted,
    enrolled,
    task_view,
    update_receipt,
    verdict,
)

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
