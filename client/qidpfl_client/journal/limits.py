"""The lifetime limits of a journal. The first one holds until the owner raises it; all of them are recorded."""

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ..errors import Misconfigured
from ..owner import LIFETIME_RHO
from .sqlite_file import JournalFile


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A lifetime limit of the journal, from its time on; infinite if there was none."""

    recorded_at: str
    lifetime_rho: float


@dataclass
class LifetimeLimits:
    """The limits in one file. A run may stay below the latest one; only `raise_to` goes above it."""

    file: JournalFile
    # Read once: no other process changes a journal that this one may write.
    _known: list[Limit] | None = field(default=None, init=False)

    def history(self) -> list[Limit]:
        """All limits, oldest first. The last one holds."""
        if not self.file.has_limits:
            return []
        if self._known is not None:
            return self._known
        rows = self.file.all("SELECT recorded_at, lifetime_rho FROM limits ORDER BY position")
        limits = [Limit(recorded_at=row["recorded_at"], lifetime_rho=or_infinite(row["lifetime_rho"])) for row in rows]
        if not self.file.read_only:
            self._known = limits
        return limits

    def of_run(self, wanted: float | None) -> float:
        """The limit of a run: the latest, or a lower wanted one. A new journal takes any; without one, the default.

        Raises `Misconfigured` if the wanted limit is above the latest.
        """
        history = self.history()
        if not history:
            return LIFETIME_RHO if wanted is None else wanted
        latest = history[-1].lifetime_rho
        if wanted is None:
            return latest
        if wanted > latest:
            raise Misconfigured(
                f"--lifetime-rho {wanted:g} is above the limit of this journal, rho {latest:g}; to raise it:"
                f" qidpfl-client ledger raise --journal {self.file.path} --lifetime-rho {wanted:g}"
            )
        return wanted

    def keep_first(self, wanted: float | None) -> None:
        """Record the limit of the first run. Later calls change nothing."""
        if not self.history():
            self._add(self.of_run(wanted))

    def raise_to(self, lifetime_rho: float) -> float:
        """Record a higher limit; returns the earlier one.

        Raises `Misconfigured` if there is no limit yet, or the new one is not higher.
        """
        history = self.history()
        if not history:
            raise Misconfigured(f"{self.file.path} has no limit yet: the first run with this journal sets it")
        before = history[-1].lifetime_rho
        if lifetime_rho <= before:
            raise Misconfigured(
                f"the limit of {self.file.path} is already rho {before:g}; the option --lifetime-rho of a run lowers it"
            )
        self._add(lifetime_rho)
        return before

    def _add(self, lifetime_rho: float) -> None:
        self._known = None
        with self.file.transaction() as database:
            database.execute(
                "INSERT INTO limits (recorded_at, lifetime_rho) VALUES (?, ?)", [now(), finite(lifetime_rho)]
            )


def now() -> str:
    """The time of an entry in the history of limits or records."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def finite(rho: float) -> float | None:
    """How the file stores a budget: NULL if it is infinite."""
    return None if math.isinf(rho) else rho


def or_infinite(stored: float | None) -> float:
    """A budget as the file stores it: NULL is infinite."""
    return math.inf if stored is None else stored
