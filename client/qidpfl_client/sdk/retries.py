"""How often and how patiently a harmless request is repeated."""

import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

import httpx
import stamina

from ..errors import Unavailable

# What the protocol calls "the same again, later", and what proxies in front of a coordinator say.
REPEATED_STATUSES = frozenset({408, 429, 500, 502, 503, 504, 507})

Result = TypeVar("Result")


@dataclass(frozen=True)
class Retries:
    """Waits double from `wait_initial_s` to `wait_max_s`, each with a random part, so that many clients spread out.

    A request is given up after `attempts`, or once `timeout_s` have passed. Where the coordinator names a time with
    Retry-After, that counts instead, up to `retry_after_max_s`.
    """

    attempts: int = 6
    timeout_s: float = 90.0
    wait_initial_s: float = 1.0
    wait_max_s: float = 15.0
    jitter_s: float = 1.0
    retry_after_max_s: float = 60.0

    def run(self, send: Callable[[], Result]) -> Result:
        """What `send` returns, in the first attempt that is not worth a repeat; the last error is let through."""
        caller = stamina.RetryingCaller(
            attempts=self.attempts,
            timeout=self.timeout_s,
            wait_initial=self.wait_initial_s,
            wait_max=self.wait_max_s,
            wait_jitter=self.jitter_s,
        )
        return caller(self.wait_after, send)

    def wait_after(self, error: Exception) -> bool | float:
        """Whether to repeat after this error; where the coordinator has named a time, how many seconds later."""
        if isinstance(error, Unavailable) and error.status in REPEATED_STATUSES:
            if error.retry_after_s is None:
                return True
            return min(error.retry_after_s, self.retry_after_max_s) + random.uniform(0, self.jitter_s)
        return isinstance(error, httpx.TransportError) and _may_pass(error)


NO_RETRIES = Retries(attempts=1)


def retry_after_s(headers: httpx.Headers) -> float | None:
    """The seconds in a Retry-After header, given as such or as a date; None where there is none to understand.

    A date is compared with the answer's own Date: nobody's clock but the coordinator's counts.
    """
    value = headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdigit():
        return float(value[:12])
    until, now = _moment(value), _moment(headers.get("Date", "")) or datetime.now(UTC)
    return None if until is None else max(0.0, (until - now).total_seconds())


def _moment(value: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _may_pass(error: httpx.TransportError) -> bool:
    """Whether a failure of the transport may be gone the next time: neither our own mistake nor a bad certificate."""
    if isinstance(error, httpx.LocalProtocolError | httpx.UnsupportedProtocol):
        return False
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return False
        cause = cause.__cause__ or cause.__context__
    return True
