"""How long a settlement takes, and how much of that is evaluation."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ...clock import Micros, seconds


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds of audit, aggregation and closing transaction; and of evaluation. None: not done, or done apart."""

    settlement_s: float | None
    evaluation_s: float | None


class Stopwatch:
    """Measures from the start of a settlement, with a monotonic clock."""

    def __init__(self, begun_at: Micros) -> None:
        self._begun_at = begun_at
        self._start = time.perf_counter()
        self._evaluation_s = 0.0

    def now(self) -> Micros:
        """The current time: the start plus the elapsed time."""
        return self._begun_at + seconds(self._elapsed_s())

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Count the time inside this context as evaluation."""
        begun = self._elapsed_s()
        yield
        self._evaluation_s += self._elapsed_s() - begun

    def timing(self, *, evaluated: bool) -> Timing:
        """The times so far."""
        return Timing(
            settlement_s=self._elapsed_s() - self._evaluation_s,
            evaluation_s=self._evaluation_s if evaluated else None,
        )

    def _elapsed_s(self) -> float:
        return time.perf_counter() - self._start
