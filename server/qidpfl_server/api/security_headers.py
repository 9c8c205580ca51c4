"""Security headers of every answer, as raw bytes: also of errors outside the application."""

from collections.abc import Iterable

from starlette.types import Scope

from qidpfl_shared.web import PAGE_POLICY

Header = tuple[bytes, bytes]

_ALWAYS: tuple[Header, ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
_NO_CONTENT: Header = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
# The pages of the documentation load only files of this server, and have no inline script.
_CLOSED = b"frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_GUIDE: Header = (b"content-security-policy", b"default-src 'none'; style-src 'self'; " + _CLOSED)
_DOCS: Header = (
    b"content-security-policy",
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " + _CLOSED,
)
_DASHBOARD_PATH = "/dashboard"
_DASHBOARD: Header = (b"content-security-policy", PAGE_POLICY.encode())
# Answers hold tokens or data of one caller. A model never changes: a caller may keep it, and asks with its ETag.
_NO_STORE: Header = (b"cache-control", b"no-store")
_KEEP: Header = (b"cache-control", b"private, no-cache")
# A browser that has seen it uses https only, for a year. Over plain http it would have no effect.
_HTTPS: Header = (b"strict-transport-security", b"max-age=31536000")

_PLAIN = (*_ALWAYS, _NO_CONTENT, _NO_STORE)
_PLAIN_HTTPS = (*_PLAIN, _HTTPS)


def refusal_headers(*, https: bool) -> tuple[Header, ...]:
    """The headers of an answer that does not come from the application."""
    return _PLAIN_HTTPS if https else _PLAIN


def security_headers(scope: Scope, answer: Iterable[Header]) -> tuple[Header, ...]:
    """What is added to the headers of an answer of the application."""
    https = scope.get("scheme") == "https"
    policy = _page_policy(scope["path"])
    if policy is None and not any(name == b"etag" for name, _ in answer):
        return refusal_headers(https=https)
    return (*_ALWAYS, policy or _NO_CONTENT, _KEEP, *((_HTTPS,) if https else ()))


def _page_policy(path: str) -> Header | None:
    """The content policy of a page; None for other paths."""
    if path.startswith(_DASHBOARD_PATH):
        return _DASHBOARD
    if path == "/docs" or path.startswith("/docs/"):
        return _DOCS
    return _GUIDE if path in ("/", "/guide") or path.startswith("/guide/") else None
