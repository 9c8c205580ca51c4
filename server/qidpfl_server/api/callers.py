"""Who may be calling, and who is known to."""

from dataclasses import dataclass
from enum import StrEnum

_MOST_CALLERS = 100_000


class CallerRole(StrEnum):
    """The roles, each with its own credentials."""

    ADMIN = "admin"
    VIEWER = "viewer"
    CLIENT = "client"
    CODE = "code"


@dataclass(frozen=True)
class Caller:
    """Somebody whose credentials are good; a client and a holder of a code belong to one task."""

    role: CallerRole
    client_id: str | None = None
    task_id: str | None = None


class KnownCallers:
    """Callers by the hash of their token, so that not every request has to ask the store.

    Emptied whenever a token may have been revoked: here at once, by another process within a second.
    """

    def __init__(self) -> None:
        self._by_hash: dict[str, Caller] = {}
        self.era = 0

    def get(self, token_hash: str) -> Caller | None:
        return self._by_hash.get(token_hash)

    def add(self, token_hash: str, caller: Caller, *, era: int) -> None:
        """Remember a caller that was looked up in this era; one that may have been revoked since is not."""
        if era != self.era:
            return
        if len(self._by_hash) >= _MOST_CALLERS:
            self.forget()
        self._by_hash[token_hash] = caller

    def forget(self) -> None:
        self._by_hash.clear()
        self.era += 1
