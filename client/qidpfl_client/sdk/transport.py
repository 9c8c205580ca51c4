"""Requests to a coordinator: bounded in time and size, repeated where that is harmless, every failure a named error.

Nothing that comes back is trusted: an answer is read up to its limit, never decompressed, and validated.
"""

import ipaddress
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from qidpfl_shared.protocol.errors import ErrorCode, one_line

from ..errors import (
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
from .retries import NO_RETRIES, Retries, retry_after_s

SMALL = 64 << 10
# A ledger of fifty thousand rounds, a spec with a hundred thousand weights.
LARGE = 16 << 20
# An answer that comes in drops is given up: its limit, at this pace, is all the time it gets besides the timeout.
_SLOWEST_BYTES_PER_S = 16 << 10
_TIMEOUT_S = 30.0
_ERRORS: Mapping[int, type[ApiError]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    408: Unavailable,
    409: Conflict,
    410: RoundClosed,
    429: Unavailable,
}
Value = TypeVar("Value")


def connect(url: str, *, insecure: bool = False, timeout_s: float = _TIMEOUT_S, connections: int = 10) -> httpx.Client:
    """An HTTP client for one coordinator; certificates are verified, redirects not followed, cookies not kept.

    Plain http to another machine raises InsecureTransport, unless the owner allows it with `insecure`. Proxies and
    certificates named in the environment count for https only: over plain http a proxy would read the token.
    """
    address = _address(url)
    if address.scheme == "http" and not insecure and not _is_loopback(address.host):
        raise InsecureTransport(f"plain http to {address.host}: tokens and updates could be read on the way; use https")
    return httpx.Client(
        base_url=address,
        timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, 10.0)),
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        follow_redirects=False,
        trust_env=address.scheme == "https",
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        headers={"User-Agent": "qidpfl-client"},
    )


def _address(url: str) -> httpx.URL:
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise Misconfigured("the address of the coordinator is no URL") from error
    if address.scheme not in ("http", "https") or not address.host:
        raise Misconfigured("the address of the coordinator must be like https://host:port")
    if address.userinfo or address.query or address.fragment:
        # httpx would send a user name as credentials, in the place of the token.
        raise Misconfigured("the address of the coordinator takes no user name, query or fragment")
    return address


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Call:
    """One request, and how much may come back. `hidden` are secrets in its body, kept out of every message."""

    method: str
    path: str
    token: str | None = field(default=None, repr=False)
    content: bytes | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    limit: int = SMALL
    expected: tuple[int, ...] = (200,)
    wait_s: float = 0.0
    repeatable: bool = True
    hidden: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Answer:
    """What came back: a status that the call expects, and the whole body."""

    call: Call
    status: int
    body: bytes

    def read(self, kind: type[Value]) -> Value:
        """The body as a message of the protocol."""
        try:
            return TypeAdapter(kind).validate_json(self.body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = "/".join(map(str, first["loc"]))
            # Not chained: pydantic's text shows the values, and one of them may be a token.
            raise untrusted(self.call, f"/{where}: {first['msg']}") from None
        except (ValueError, ArithmeticError, RecursionError):
            raise untrusted(self.call, "impossible values") from None


class Channel:
    """Sends calls over an httpx client."""

    def __init__(self, http: httpx.Client, *, retries: Retries) -> None:
        self._http = http
        self.retries = retries
        self.where = str(http.base_url).rstrip("/")

    def send(self, call: Call) -> Answer:
        """The answer, after as many repeats as the call allows."""
        with self._unreachable():
            return (self.retries if call.repeatable else NO_RETRIES).run(lambda: self._once(call))

    def open(self, call: Call) -> httpx.Response:
        """The answer with its body still to come; the caller closes it."""
        with self._unreachable():
            return self.retries.run(lambda: self._opened(call))

    @contextmanager
    def _unreachable(self) -> Iterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            reason = one_line(str(error))[:200] or type(error).__name__
            raise Unreachable(f"{self.where} does not answer: {reason}") from error

    def _once(self, call: Call) -> Answer:
        response = self._opened(call)
        try:
            return Answer(call, response.status_code, self._body(response, call))
        finally:
            response.close()

    def _opened(self, call: Call) -> httpx.Response:
        response = self._http.send(self._request(call), stream=True, follow_redirects=False)
        try:
            if response.status_code not in call.expected:
                raise self._problem(response, call)
            if _is_compressed(response):
                raise untrusted(call, "compressed, which was not asked for")
        except BaseException:
            response.close()
            raise
        return response

    def _request(self, call: Call) -> httpx.Request:
        headers = {"Accept-Encoding": "identity", **call.headers}
        if call.token is not None:
            headers["Authorization"] = f"Bearer {call.token}"
        timeout = self._timeout(call.wait_s)
        return self._http.build_request(
            call.method, call.path, content=call.content, headers=headers, params=call.params, timeout=timeout
        )

    def _timeout(self, wait_s: float) -> httpx.Timeout:
        """The client's own, or ours where it has none; a call that waits gets that time on top."""
        own = self._http.timeout
        return httpx.Timeout(
            connect=own.connect or _TIMEOUT_S,
            read=(own.read or _TIMEOUT_S) + wait_s,
            write=own.write or _TIMEOUT_S,
            pool=own.pool or _TIMEOUT_S,
        )

    def _body(self, response: httpx.Response, call: Call) -> bytes:
        """All of the body, if it keeps to its limit in bytes and in time."""
        deadline = time.monotonic() + _TIMEOUT_S + call.limit / _SLOWEST_BYTES_PER_S
        body = bytearray()
        for piece in response.iter_bytes():
            body += piece
            if len(body) > call.limit:
                raise untrusted(call, f"longer than {call.limit} bytes")
            if time.monotonic() > deadline:
                raise httpx.ReadTimeout("the answer comes too slowly", request=response.request)
        return bytes(body)

    def _problem(self, response: httpx.Response, call: Call) -> Exception:
        """The error that an unexpected status stands for, whatever its body looks like."""
        status = response.status_code
        if status < 300:
            return untrusted(call, f"status {status}")
        try:
            said = {} if _is_compressed(response) else _problem_members(self._body(response, call))
        except (UntrustedCoordinator, httpx.TransportError):
            said = {}
        code = ErrorCode.named(str(said.get("code", "")))
        kind = _ERRORS.get(status, Unavailable if status >= 500 else Refused)
        return kind(
            code=code if code is not None and code.status == status else None,
            status=status,
            detail=_without(_detail(said, status), call),
            retry_after_s=retry_after_s(response.headers),
        )


def _is_compressed(response: httpx.Response) -> bool:
    """Whether httpx would unpack the body, into any number of bytes."""
    return bool(response.headers.get("Content-Encoding", "identity") != "identity")


def untrusted(call: Call, reason: str) -> UntrustedCoordinator:
    """The error for an answer that cannot be right."""
    shown = _without(one_line(reason)[:300], call)
    return UntrustedCoordinator(f"the answer to {call.method} {call.path} cannot be right: {shown}")


def _problem_members(body: bytes) -> dict[str, Any]:
    """The members of a problem; none where the body is something else, such as the page of a proxy."""
    try:
        found = from_json(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _detail(said: Mapping[str, Any], status: int) -> str:
    """What is wrong in one line: the detail, then the first fields that are named."""
    if 300 <= status < 400:
        return "redirects are not followed; is the address right?"
    parts = [said["detail"]] if isinstance(said.get("detail"), str) else []
    fields = said.get("errors")
    for item in fields[:3] if isinstance(fields, list) else []:
        if isinstance(item, dict) and isinstance(item.get("path"), str) and isinstance(item.get("message"), str):
            parts.append(f"{item['path']}: {item['message']}")
    return one_line("; ".join(parts))


def _without(text: str, call: Call) -> str:
    """The text without the secrets of the call: a hostile coordinator might send them back, for the logs."""
    for secret in (call.token, *call.hidden):
        if secret:
            text = re.sub(re.escape(secret), "[hidden]", text)
    return text
