"""How often clients may enrol: a rate for each task, and a lower one for wrong codes of one address."""

import math

from qidpfl_shared.protocol.errors import ErrorCode

from ..errors import CoordinatorError
from .rates import AttemptRate, network_of

_WRONG_CODES_PER_S = 2.0


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
