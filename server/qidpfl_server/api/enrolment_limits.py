"""How often clients may enrol: a rate for each task, and a lower one for wrong codes of one address."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from qidpfl_shared.protocol.errors import ErrorCode

from ..errors import CoordinatorError

# Seconds of the rate that may be used at once, so that a fleet can enrol together.
_BURST_S = 10.0
_WRONG_CODES_PER_S = 2.0
_LONGEST_WAIT_S = 30.0
_MAX_KEYS = 10_000


class TooManyEnrolments(CoordinatorError):
    """The client must wait before it tries to enrol again."""

    code = ErrorCode.TOO_MANY_REQUESTS

    def __init__(self, wait_s: float) -> None:
        super().__init__("too many enrolments; wait before the next one")
        self.retry_after_s = math.ceil(wait_s)


@dataclass
class _Bucket:
    """Attempts that are allowed now, and attempts that were refused and will come back."""

    allowed: float
    refused: float
    at: float


class AttemptRate:
    """Allows `per_s` attempts a second for each key, after a burst of `_BURST_S` seconds."""

    def __init__(self, per_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._burst = max(1.0, per_s * _BURST_S)
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
        return max(1.0, bucket.refused / self._per_s)

    def _bucket(self, key: str) -> _Bucket:
        if key not in self._buckets:
            if len(self._buckets) >= _MAX_KEYS:
                del self._buckets[next(iter(self._buckets))]
            self._buckets[key] = _Bucket(self._burst, 0.0, self._clock())
        return self._buckets[key]


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
        self._require(self._addresses.take(address))

    def _require(self, wait_s: float) -> None:
        if wait_s:
            raise TooManyEnrolments(wait_s)
