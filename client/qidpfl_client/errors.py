"""The errors of the client. Every message is one readable line.

ClientError
  Unreachable             the coordinator does not answer, after all retries
    NoTrustedConnection   its certificate does not verify, or it does not speak TLS
  ApiError                the coordinator answered with an error; see `code`, `status` and `detail`
    Unauthenticated       401: the token or code is missing, wrong or revoked
    Forbidden             403
    NotFound              404
    Conflict              409: it contradicts what the coordinator has, or it is too early
    RoundClosed           410
    Refused               422 and other 4xx: the request is wrong; 3xx: redirects are not followed
    Unavailable           408, 429, 5xx: the same request may succeed later; `retry_after_s` says when
  UntrustedCoordinator    the coordinator contradicts the task or itself; nothing was released
  UnsupportedTask         the task requires something that this version of the client does not know
  InsecureTransport       plain http to another machine, without the owner's consent
  Misconfigured           the given address, task, code, token or limit is impossible; nothing was sent
  JournalError            the journal is damaged, in use, or does not fit the records
  OwnerLimit              the task asks for more than the owner allows
"""

from qidpfl_shared.protocol.errors import ErrorCode


class ClientError(Exception):
    """The base of all errors of the client."""


class Unreachable(ClientError):
    """The coordinator does not answer."""


class NoTrustedConnection(Unreachable):
    """The certificate of the coordinator does not verify, or it does not speak TLS: a retry hardly helps."""


class ApiError(ClientError):
    """The coordinator answered with an error.

    `code` is None if the answer is not an error of this protocol, such as the page of a proxy.
    """

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
    """The coordinator does not have this resource."""


class Conflict(ApiError):
    """The request contradicts what the coordinator has, or comes too early."""


class RoundClosed(ApiError):
    """The round is over."""


class Refused(ApiError):
    """The request is wrong: a retry does not help."""


class Unavailable(ApiError):
    """The coordinator cannot answer now: the same request may succeed later."""


class UntrustedCoordinator(ClientError):
    """The coordinator contradicts the task or itself. Nothing was released."""


class UnsupportedTask(ClientError):
    """The task requires something that this version of the client does not know. The message names both versions."""


class InsecureTransport(ClientError):
    """Tokens and updates would go to another machine without encryption."""


class Misconfigured(ClientError):
    """The given address, task, code, token or limit is impossible. Nothing was sent."""


class JournalError(ClientError):
    """The journal is damaged, in use, or does not fit the records."""


class OwnerLimit(ClientError):
    """The task asks for more than the owner allows."""
