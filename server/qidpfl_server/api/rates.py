"""How many requests a caller may send in a second: one rate for each client, one for each address, one for health.

A request above the rate costs no more than its header: it reaches neither the routes nor the store. Its answer also
comes late, and the later the more of them there are, so that a caller who ignores the answers gets few of them.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from qidpfl_shared.protocol.errors import ErrorCode

from ..errors import CoordinatorError

# Seconds of the rate that may be used at once.
_BURST_S = 10.0
_LONGEST_WAIT_S = 30.0
_MAX_KEYS = 10_000
_MAX_KNOWN_TOKENS = 100_000
# A request whose credentials are wrong costs an address as much as this many others: the store had to look them up.
_WRONG_CREDENTIALS_COST = 4
# Health, readiness and metrics for each address: a prober asks every few seconds.
_HEALTH_PER_S = 50.0
# Enrolments with a wrong code, for each address.
_WRONG_CODES_PER_S = 2.0


@dataclass
class _Bucket:
    """Attempts that are allowed now, and attempts that were refused and will come back."""

    allowed: float
    refused: float
    at: float


class AttemptRate:
    """Allows `per_s` attempts a second for each key, after a burst of `_BURST_S` seconds."""

    def __init__(self, per_s: float, *, max_keys: int = _MAX_KEYS, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._burst = max(1.0, per_s * _BURST_S)
        self._max_keys = max_keys
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}

    def take(self, key: str) -> float:
        """Count an attempt: 0 if it is allowed, else the seconds after which to try again.

        The wait grows with the number of refused attempts, so that those do not come back all at once.
        """
        bucket, now = self._bucket(key), self._clock()
        gained, bucket.at = (now - bucket.at) * self._per_s, now
        bucket.allowed = min(self._burst, bucket.allowed + gained)
        bucket.refused = max(0.0, bucket.refused - gained)
        if bucket.allowed >= 1:
            bucket.allowed -= 1
            return 0.0
        bucket.refused = min(bucket.refused + 1, _LONGEST_WAIT_S * self._per_s)
        return bucket.refused / self._per_s

    def adjust(self, key: str, attempts: int) -> None:
        """Add attempts to those that are allowed now, or take some away, also below zero."""
        bucket = self._bucket(key)
        bucket.allowed = max(-self._burst, min(self._burst, bucket.allowed + attempts))

    def _bucket(self, key: str) -> _Bucket:
        if key not in self._buckets:
            if len(self._buckets) >= self._max_keys:
                del self._buckets[next(iter(self._buckets))]
            self._buckets[key] = _Bucket(self._burst, 0.0, self._clock())
        return self._buckets[key]


@dataclass(frozen=True)
class Ticket:
    """The outcome of counting a request: the seconds to wait (0: go on), and the address that it was counted for."""

    wait_s: float
    address: str | None = None


class CallerRates:
    """The rates of all callers.

    A client that has shown a valid token has a rate of its own, so that many clients may share an address. All other
    requests count for their address, also those with unknown tokens: a caller can invent any number of them.
    """

    def __init__(
        self,
        *,
        per_client_s: float,
        per_address_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clients = AttemptRate(per_client_s, max_keys=_MAX_KNOWN_TOKENS, clock=clock)
        self._addresses = AttemptRate(per_address_s, clock=clock)
        self._health = AttemptRate(_HEALTH_PER_S, clock=clock)
        self._known: dict[str, None] = {}

    def count(self, token_hash: str | None, host: str) -> Ticket:
        """Count a request of a client or of an outsider."""
        if token_hash is not None and token_hash in self._known:
            return Ticket(self._clients.take(token_hash))
        address = network_of(host)
        return Ticket(self._addresses.take(address), address)

    def count_health(self, host: str) -> float:
        """Count a request for health, readiness or metrics; returns the seconds to wait before it is answered."""
        return self._health.take(network_of(host))

    def know(self, token_hash: str) -> None:
        """Record that this is the token of a client. It gives no access: a revoked token stays known."""
        if token_hash in self._known:
            return
        if len(self._known) >= _MAX_KNOWN_TOKENS:
            del self._known[next(iter(self._known))]
        self._known[token_hash] = None

    def settle(self, ticket: Ticket, token_hash: str | None, status: int) -> None:
        """Correct the count of an answered request, now that it is known whose token it has."""
        if ticket.address is None:
            return
        if token_hash in self._known:
            self._addresses.adjust(ticket.address, 1)
        elif status in (401, 429):
            self._addresses.adjust(ticket.address, 1 - _WRONG_CREDENTIALS_COST)


class TooManyEnrolments(CoordinatorError):
    """The client must wait before it tries to enrol again."""

    code = ErrorCode.TOO_MANY_REQUESTS

    def __init__(self, wait_s: float) -> None:
        super().__init__("too many enrolments; wait before the next one")
        self.retry_after_s = math.ceil(wait_s)


class EnrolmentLimits:
    """Limits enrolments per task, and wrong codes per address.

    The code is checked first. So outsiders who guess codes cannot keep out clients of the same address that have one,
    and no guess reaches a writing transaction.
    """

    def __init__(self, per_s: float) -> None:
        self._tasks = AttemptRate(per_s)
        self._addresses = AttemptRate(_WRONG_CODES_PER_S)

    def count(self, task_id: str) -> None:
        """Count an attempt with a code of this task. Raises `TooManyEnrolments`."""
        self._require(self._tasks.take(task_id))

    def count_wrong_code(self, address: str) -> None:
        """Count an attempt with a wrong code from this address. Raises `TooManyEnrolments`."""
        self._require(self._addresses.take(network_of(address)))

    def _require(self, wait_s: float) -> None:
        if wait_s:
            raise TooManyEnrolments(wait_s)


def network_of(host: str) -> str:
    """An IPv4 address, or the network of an IPv6 address: one machine may have 2^64 of those."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return host
    return str(address.ipv4_mapped or address.packed[:8].hex())
