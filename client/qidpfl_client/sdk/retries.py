"""When and how often a request is retried."""

import itertools
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, NoReturn, TypeVar

import httpx
import stamina

from ..errors import Unavailable
from .tls import tls_problem

# The statuses for which the protocol, or a proxy in front of a coordinator, asks for a later retry.
REPEATED_STATUSES = frozenset({408, 429, 500, 502, 503, 504, 507})

Result = TypeVar("Result")


@dataclass(frozen=True)
class Retries:
    """How the SDK retries a request that may be repeated without harm.

    Args:
        attempts: how many times the request is sent at most.
        timeout_s: no retry starts after this time.
        wait_initial_s: the first wait; each next one is twice as long.
        wait_max_s: the longest wait.
        jitter_s: a random time up to this is added to each wait, so that many clients do not return together.
        retry_after_max_s: the longest Retry-After of a coordinator that is obeyed; it replaces the wait.

    >>> busy = Unavailable(code=None, status=503, retry_after_s=20.0)
    >>> Retries(jitter_s=0.0).wait_after(busy)
    20.0
    """

    attempts: int = 6
    timeout_s: float = 90.0
    wait_initial_s: float = 1.0
    wait_max_s: float = 15.0
    jitter_s: float = 1.0
    retry_after_max_s: float = 60.0

    def run(
        self, send: Callable[[], Result], *, waiting: Callable[[], AbstractContextManager[Any]] = nullcontext
    ) -> Result:
        """The result of `send`, after as many attempts as allowed. Raises the last error.

        `waiting` is the block of all attempts but the first, and of the times between them.
        """
        begun = time.monotonic()
        try:
            # The usual case: nothing fails, and a retrying caller would cost as much time as a small request.
            return send()
        except Exception as error:
            if self.attempts == 1 or self.wait_after(error) is False:
                raise
            first = error
        attempts: Iterator[Callable[[], Result]] = itertools.chain([partial(_fail, first)], itertools.repeat(send))
        caller = stamina.RetryingCaller(
            attempts=self.attempts,
            timeout=max(0.0, self.timeout_s - (time.monotonic() - begun)),
            wait_initial=self.wait_initial_s,
            wait_max=self.wait_max_s,
            wait_jitter=self.jitter_s,
        )
        with waiting():
            return caller(self.wait_after, lambda: next(attempts)())

    def wait_after(self, error: Exception) -> bool | float:
        """Whether to retry after this error, or the seconds to wait first if the coordinator has named them."""
        if isinstance(error, Unavailable) and error.status in REPEATED_STATUSES:
            if error.retry_after_s is None:
                return True
            return min(error.retry_after_s, self.retry_after_max_s) + random.uniform(0, self.jitter_s)
        return isinstance(error, httpx.TransportError) and _is_transient(error)


NO_RETRIES = Retries(attempts=1)


def _fail(error: Exception) -> NoReturn:
    raise error


def retry_after_s(headers: httpx.Headers) -> float | None:
    """The seconds of a Retry-After header, a number or a date; None if the header is missing or malformed.

    A date is compared with the Date header of the same answer, so that only the coordinator's clock counts.
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


def _is_transient(error: httpx.TransportError) -> bool:
    """Whether a retry can help. It cannot after an error of this side or a bad certificate."""
    if isinstance(error, httpx.LocalProtocolError | httpx.UnsupportedProtocol):
        return False
    return tls_problem(error) is None
