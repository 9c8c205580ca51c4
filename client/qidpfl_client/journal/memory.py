"""What a journal has last read and written: a client asks for the same rows several times in a round."""

from .entries import Entry, SeenOffer
from .sqlite_file import JournalFile

# A client needs the present round and the one before it.
_KEPT = 4


class JournalMemory:
    """The latest rows of a journal that only this process changes. After a rollback nothing of it holds."""

    def __init__(self, file: JournalFile) -> None:
        self._file = file
        self._rollbacks = file.rollbacks
        self._entries: dict[tuple[str, str], Entry | None] = {}
        self._offers: dict[tuple[str, int], SeenOffer] = {}
        self._latest: dict[str, SeenOffer] = {}

    def knows_entry(self, task_id: str, release: str) -> bool:
        """Whether `entry` has this entry, or knows that there is none."""
        self._check()
        return (task_id, release) in self._entries

    def entry(self, task_id: str, release: str) -> Entry | None:
        """An entry that `knows_entry` has found."""
        return self._entries[task_id, release]

    def keep_entry(self, task_id: str, release: str, entry: Entry | None) -> None:
        """Remember an entry as it is in the file."""
        self._check()
        if len(self._entries) >= _KEPT:
            self._entries.clear()
        self._entries[task_id, release] = entry

    def forget_entry(self, task_id: str, release: str) -> None:
        """Forget an entry before it changes."""
        self._entries.pop((task_id, release), None)

    def offer(self, task_id: str, round_number: int) -> SeenOffer | None:
        """The terms of a round, if they are known."""
        self._check()
        return self._offers.get((task_id, round_number))

    def latest_offer(self, task_id: str) -> SeenOffer | None:
        """The terms of the latest round, if they are known."""
        self._check()
        return self._latest.get(task_id)

    def keep_offer(self, task_id: str, offer: SeenOffer, *, is_latest: bool = False) -> None:
        """Remember the terms of a round as they are in the file. `is_latest`: the file has no later round."""
        self._check()
        if len(self._offers) >= _KEPT:
            self._offers.clear()
        self._offers[task_id, offer.round_number] = offer
        latest = self._latest.get(task_id)
        if is_latest or (latest is not None and offer.round_number > latest.round_number):
            self._latest[task_id] = offer

    def _check(self) -> None:
        if self._rollbacks != self._file.rollbacks:
            self._rollbacks = self._file.rollbacks
            self._entries.clear()
            self._offers.clear()
            self._latest.clear()
