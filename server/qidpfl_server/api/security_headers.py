"""Security headers of every answer, as raw bytes: also of errors outside the application."""

from collections.abc import Iterable

from starlette.types import Scope

Header = tuple[bytes, bytes]

_ALWAYS: tuple[Header, ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
_NO_CONTENT: Header = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
# The pages of the documentation load Swagger UI from the host that FastAPI names, and start it with an inline script.
_DOCS_PATHS = ("/docs", "/docs/oauth2-redirect")
_DOCS: Header = (
    b"content-security-policy",
    b"default-src 'none'; script-src 'unsafe-inline' https://cdn.jsdelivr.net; style-src 'unsafe-inline'"
    b" https://cdn.jsdelivr.net; img-src data: https://fastapi.tiangolo.com; connect-src 'self';"
    b" frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
)
# The dashboard loads everything from this server and has neither inline scripts nor inline styles.
_DASHBOARD_PATH = "/dashboard"
_DASHBOARD: Header = (
    b"content-security-policy",
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    b" frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
)
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
    if scope["path"] not in _DOCS_PATHS and not any(name == b"etag" for name, _ in answer):
        return refusal_headers(https=https)
    policy = _DOCS if scope["path"] in _DOCS_PATHS else _NO_CONTENT
    if scope["path"].startswith(_DASHBOARD_PATH):
        policy = _DASHBOARD
    return (*_ALWAYS, policy, _KEEP, *((_HTTPS,) if https else ()))
