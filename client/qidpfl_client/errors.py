"""Everything that can go wrong on the client's side. Every message is one readable line.

ClientError
  Unreachable             the coordinator does not answer, after all retries
  ApiError                it answered with a problem; `code`, `status` and `detail` say which
    Unauthenticated       401: the token or code is missing, wrong or revoked
    Forbidden             403
    NotFound              404
    Conflict              409: something else is already there, or it is not the client's turn
    RoundClosed           410
    Refused               422 and every other 4xx: the request itself is wrong; 3xx: no redirect is followed
    Unavailable           408, 429, 5xx: the same request may succeed later; `retry_after_s` says when
  UntrustedCoordinator    it asks for what the task does not allow; nothing was released
  InsecureTransport       plain http to another machine, without the owner's consent
  Misconfigured           the address, task, code or token that the owner has given cannot be one
  JournalError            the journal is damaged, in use, or belongs to another data set
  OwnerLimit              what the task asks for is beyond what the owner allows
"""

from qidpfl_shared.protocol.errors import ErrorCode


class ClientError(Exception):
    """The base of all errors of this side."""


class Unreachable(ClientError):
    """The coordinator does not answer."""


class ApiError(ClientError):
    """The coordinator answered with a problem."""

    def __init__(
        self, *, code: ErrorCode | None, status: int, detail: str = "", retry_after_s: float | None = None
    ) -> None:
        summary = code.summary if code is not None else f"status {status}"
        super().__init__(f"{summary}: {detail}" if detail else summary)
        self.code = code
        self.status = status
        self.detail = detail
        self.retry_after_s = retry_after_s


class Unauthenticated(ApiError):
    """The credentials are missing, wrong or revoked."""


class Forbidden(ApiError):
    """These credentials do not allow this."""


class NotFound(ApiError):
    """There is no such thing."""


class Conflict(ApiError):
    """Something else is already there, or it is not the client's turn."""


class RoundClosed(ApiError):
    """The round is over."""


class Refused(ApiError):
    """The request itself is wrong: repeating it is of no use."""


class Unavailable(ApiError):
    """The coordinator cannot serve now: the same request may succeed later."""


class UntrustedCoordinator(ClientError):
    """The coordinator contradicts the task or itself. Nothing was released."""


class InsecureTransport(ClientError):
    """Tokens and updates would travel in the clear to another machine."""


class Misconfigured(ClientError):
    """The address, task, code or token that the owner has given cannot be one. Nothing was sent."""


class JournalError(ClientError):
    """The journal is damaged, in use, or belongs to another data set."""


class OwnerLimit(ClientError):
    """What the task asks for is beyond what the owner allows."""
