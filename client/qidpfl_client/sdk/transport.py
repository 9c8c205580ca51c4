"""Requests to a coordinator: bounded in time and size, retried if harmless, with one error class per failure.

The client does not trust an answer: it reads at most the limit, never decompresses, and validates the content.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypedDict, TypeVar

import httpx

from qidpfl_shared.protocol.errors import ErrorCode, one_line
from qidpfl_shared.tracing import client_span, trace_headers

from ..errors import (
    ApiError,
    Conflict,
    Forbidden,
    NotFound,
    NoTrustedConnection,
    Refused,
    RoundClosed,
    Unauthenticated,
    Unavailable,
    Unreachable,
    UntrustedCoordinator,
)
from .answers import SMALL, NotValid, member_of, parse, parse_list, problem_members
from .connection import TIMEOUT_S, CoordinatorClient
from .deadlines import TOO_SLOW, call_deadline, deadline_is_over
from .direct import DirectTransport, Timeouts, TooLong, Waiting
from .retries import NO_RETRIES, Retries, retry_after_s
from .tls import next_step, tls_problem

# The slowest accepted transfer: a call must end within the timeout plus its bytes, sent and received, at this rate.
_SLOWEST_BYTES_PER_S = 16 << 10
_COMPRESSED = "it is compressed, although the client did not accept that"
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


@dataclass(frozen=True)
class Call:
    """One request, and the limit of its answer. `hidden` are secrets of the body that no message may show."""

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


class CallOptions(TypedDict, total=False):
    """The optional fields of a `Call`."""

    token: str | None
    content: bytes
    headers: Mapping[str, str]
    params: Mapping[str, str]
    limit: int
    expected: tuple[int, ...]
    wait_s: float
    repeatable: bool
    hidden: tuple[str, ...]


@dataclass(frozen=True)
class ApiResponse:
    """An answer with a status that the call expects, and its whole body."""

    call: Call
    status: int
    body: bytes

    def read(self, kind: type[Value]) -> Value:
        """The body as a message of the protocol; raises `UntrustedCoordinator` if it is none."""
        try:
            return parse(self.body, kind, limit=self.call.limit)
        except NotValid as error:
            raise untrusted(self.call, str(error)) from None

    def member(self, name: str) -> object:
        """A member of the JSON object before it is validated; raises `UntrustedCoordinator` if there is no object."""
        try:
            return member_of(self.body, name, limit=self.call.limit)
        except NotValid as error:
            raise untrusted(self.call, str(error)) from None

    def read_list(self, kind: type[Value]) -> list[Value]:
        """The body as a list of messages; raises `UntrustedCoordinator` if it is none."""
        try:
            return parse_list(self.body, kind, limit=self.call.limit)
        except NotValid as error:
            raise untrusted(self.call, str(error)) from None


class Channel:
    """Sends calls over an httpx client."""

    def __init__(self, http: httpx.Client, *, retries: Retries) -> None:
        self._http = http
        self.retries = retries
        self.where = str(http.base_url).rstrip("/")
        self._headers = [*http.headers.items()]
        usual = {**http.headers, "accept-encoding": "identity"}
        self._usual_lines = [(name.lower(), f"{name}: {value}") for name, value in usual.items()]
        self._has_answered = False
        self._waiting: Waiting = http.waiting if isinstance(http, CoordinatorClient) else nullcontext

    def send(self, call: Call) -> ApiResponse:
        """The answer, after the retries that the call allows."""
        with self._unreachable(), client_span(call.method, call.path, self.where):
            retries = self.retries if call.repeatable else NO_RETRIES
            answer = retries.run(lambda: self._once(call), waiting=self._waiting)
            self._has_answered = True
            return answer

    def open(self, call: Call) -> httpx.Response:
        """The answer before its body is read. The caller closes it. The deadline covers only the headers."""

        def opened() -> httpx.Response:
            with call_deadline(self._longest_s(call)):
                return self._opened(call)

        with self._unreachable():
            return self.retries.run(opened)

    @contextmanager
    def _unreachable(self) -> Iterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            if (problem := tls_problem(error)) is not None:
                raise NoTrustedConnection(f"{self.where}: {problem}") from error
            reason = one_line(str(error))[:200] or type(error).__name__
            # Later the address and the certificates are known to be right.
            hint = "" if self._has_answered else next_step(error, self.where)
            raise Unreachable(f"{self.where} does not answer: {reason}{hint}") from error

    def _once(self, call: Call) -> ApiResponse:
        # Looked up for each call: tests and testbeds replace the transport.
        transport = self._http._transport
        with call_deadline(self._longest_s(call)):
            if type(transport) is DirectTransport and not self._http.is_closed:
                return self._exchanged(call, transport)
            with self._waiting():
                response = self._opened(call)
                try:
                    return ApiResponse(call, response.status_code, _body(response, call, call.limit))
                finally:
                    response.close()

    def _exchanged(self, call: Call, transport: DirectTransport) -> ApiResponse:
        """The answer over a direct connection, with the same checks."""
        given = self._http.timeout
        timeouts = Timeouts(
            connect=given.connect or TIMEOUT_S,
            read=(given.read or TIMEOUT_S) + call.wait_s,
            write=given.write or TIMEOUT_S,
        )
        try:
            answer = transport.exchange(
                self._head(call, transport.netloc),
                call.content or b"",
                limits=dict.fromkeys(call.expected, call.limit),
                otherwise=SMALL,
                timeouts=timeouts,
            )
        except TooLong:
            raise untrusted(call, f"longer than {call.limit} bytes") from None
        compressed = answer.headers.get("content-encoding", "identity") != "identity"
        if answer.status not in call.expected:
            body = b"" if compressed else answer.body
            headers = {name: value for name, value in answer.headers.items() if name in ("retry-after", "date")}
            request = httpx.Request(call.method, self.where)
            raise self._problem(httpx.Response(answer.status, headers=headers, content=body, request=request), call)
        if compressed:
            raise untrusted(call, _COMPRESSED)
        return ApiResponse(call, answer.status, answer.body)

    def _head(self, call: Call, host: str) -> bytes:
        """Request line and headers."""
        own = {**call.headers, **trace_headers()}
        if call.token is not None:
            own["Authorization"] = f"Bearer {call.token}"
        if call.content is not None or call.method in ("POST", "PUT"):
            own["Content-Length"] = str(len(call.content or b""))
        replaced = {name.lower() for name in own}
        target = _url(self.where, call.path, tuple(call.params.items())).raw_path.decode("ascii")
        lines = [f"{call.method} {target} HTTP/1.1", f"Host: {host}"]
        lines += [line for name, line in self._usual_lines if name not in replaced]
        lines += [f"{name}: {value}" for name, value in own.items()]
        head = "\r\n".join([*lines, "\r\n"])
        if "\0" in head or not head.count("\r") == head.count("\n") == len(lines) + 1:
            raise httpx.LocalProtocolError("a header has a line end")
        return head.encode("latin-1")

    def _longest_s(self, call: Call) -> float:
        """The longest time of one attempt, from the connection to the last byte of the answer."""
        transferred = call.limit + len(call.content or b"")
        return (self._http.timeout.read or TIMEOUT_S) + call.wait_s + transferred / _SLOWEST_BYTES_PER_S

    def _opened(self, call: Call) -> httpx.Response:
        response = self._http.send(self._request(call), stream=True, follow_redirects=False)
        try:
            if response.status_code not in call.expected:
                raise self._problem(response, call)
            if _is_compressed(response):
                raise untrusted(call, _COMPRESSED)
        except BaseException:
            response.close()
            raise
        return response

    def _request(self, call: Call) -> httpx.Request:
        own = {"Accept-Encoding": "identity", **call.headers, **trace_headers()}
        if call.token is not None:
            own["Authorization"] = f"Bearer {call.token}"
        replaced = {name.lower() for name in own}
        return httpx.Request(
            call.method,
            _url(self.where, call.path, tuple(call.params.items())),
            content=call.content,
            headers=[*((name, value) for name, value in self._headers if name not in replaced), *own.items()],
            extensions={"timeout": self._timeout(call.wait_s).as_dict()},
        )

    def _timeout(self, wait_s: float) -> httpx.Timeout:
        """The timeout of the HTTP client, or the default, plus the time that a long poll waits."""
        given = self._http.timeout
        return httpx.Timeout(
            connect=given.connect or TIMEOUT_S,
            read=(given.read or TIMEOUT_S) + wait_s,
            write=given.write or TIMEOUT_S,
            pool=given.pool or TIMEOUT_S,
        )

    def _problem(self, response: httpx.Response, call: Call) -> Exception:
        """The error for an unexpected status. The body may be anything."""
        status = response.status_code
        if status < 300:
            return untrusted(call, f"status {status}")
        try:
            said = {} if _is_compressed(response) else problem_members(_body(response, call, SMALL))
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


@lru_cache(maxsize=256)
def _url(where: str, path: str, params: tuple[tuple[str, str], ...]) -> httpx.URL:
    """The address of a call. The members of a fleet make the same calls."""
    return httpx.URL(f"{where}{path}", params=dict(params)) if params else httpx.URL(f"{where}{path}")


def _body(response: httpx.Response, call: Call, limit: int) -> bytes:
    """The whole body, within its limits of bytes and time."""
    body = bytearray()
    for piece in response.iter_bytes():
        body += piece
        if len(body) > limit:
            raise untrusted(call, f"longer than {limit} bytes")
        if deadline_is_over():
            raise httpx.ReadTimeout(TOO_SLOW, request=response.request)
    return bytes(body)


def _is_compressed(response: httpx.Response) -> bool:
    """Whether httpx would decompress the body, possibly to a huge size."""
    return bool(response.headers.get("Content-Encoding", "identity") != "identity")


def untrusted(call: Call, reason: str) -> UntrustedCoordinator:
    """The error for an answer that is malformed or contradicts the call."""
    shown = _without(one_line(reason)[:300], call)
    return UntrustedCoordinator(f"the answer to {call.method} {call.path} is not valid: {shown}")


def _detail(said: Mapping[str, object], status: int) -> str:
    """The detail of a problem in one line, then the first three fields that it names."""
    if 300 <= status < 400:
        return "redirects are not followed; check the address"
    detail = said.get("detail")
    parts = [detail] if isinstance(detail, str) else []
    fields = said.get("errors")
    for item in fields[:3] if isinstance(fields, list) else []:
        if isinstance(item, dict) and isinstance(item.get("path"), str) and isinstance(item.get("message"), str):
            parts.append(f"{item['path']}: {item['message']}")
    return one_line("; ".join(parts))


def _without(text: str, call: Call) -> str:
    """The text without the secrets of the call: a hostile coordinator could send them back to reach the logs."""
    for secret in (call.token, *call.hidden):
        if secret:
            text = re.sub(re.escape(secret), "[hidden]", text)
    return text
