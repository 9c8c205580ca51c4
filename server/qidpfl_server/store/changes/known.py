"""Which counted commits of a store this process knows: those that it made, and those that it was told of.

Every commit that others must notice increments one counter of the store. A process that knows the numbers of the
commits which it made or heard of can tell from the counter alone whether it has missed one.
"""

import threading
from dataclasses import dataclass
from enum import Enum

# What a message has beside the ids of tasks. No id of a task is one of these words.
_DUE, _TOKENS, _ALL = "due", "tokens", "all"
# PostgreSQL refuses messages of 8,000 bytes and more.
_LONGEST = 7_500


@dataclass(frozen=True)
class Change:
    """A counted commit of any process: its number and what it has changed."""

    number: int
    task_ids: frozenset[str] = frozenset()
    # Whether a task is ready for its next step, which its own process runs unless it dies.
    due: bool = False
    tokens: bool = False
    # Whether the message was too short for all tasks, so that any task may have changed.
    everything: bool = False

    @staticmethod
    def words(task_ids: set[str], *, due: bool, tokens: bool) -> str:
        """What a message says after the number."""
        marks = [mark for mark, is_set in ((_DUE, due), (_TOKENS, tokens)) if is_set]
        said = "".join(f" {word}" for word in (*marks, *sorted(task_ids)))
        return said if len(said) <= _LONGEST else "".join(f" {word}" for word in (*marks, _ALL))

    @classmethod
    def of(cls, message: str) -> "Change":
        """The change that a message tells. Raises ValueError if it is no such message."""
        number, *words = message.split()
        named = set(words)
        return cls(
            number=int(number),
            task_ids=frozenset(named - {_DUE, _TOKENS, _ALL}),
            due=_DUE in named,
            tokens=_TOKENS in named,
            everything=_ALL in named,
        )


class News(Enum):
    """What a message adds to what is known: nothing, its own change, or also that earlier ones were missed."""

    NONE = "none"
    ONE = "one"
    MISSED = "missed"


class KnownChanges:
    """The numbers that are known. The writer of the store and the event loop share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # All numbers up to this one are known, and these later ones.
        self._up_to = -1
        self._later: set[int] = set()
        # Whether a number that counts as known may belong to a commit of another process.
        self._unsure = False

    def add_own(self, number: int) -> None:
        """Note the number of a commit of this process, before it happens."""
        with self._lock:
            self._add(number)

    def take_back_own(self) -> None:
        """Note that a commit of this process has failed: another process may get its number."""
        with self._lock:
            self._unsure = True

    def hear_of(self, number: int) -> News:
        """Note the number of an announced commit. Announcements come in the order of the commits."""
        with self._lock:
            if self._unsure:
                return News.MISSED
            if number <= self._up_to or number in self._later:
                return News.NONE
            self._add(number)
            if number <= self._up_to:
                return News.ONE
            self._skip_to(number)
            return News.MISSED

    def misses(self, counter: int) -> bool:
        """Whether there were commits up to this value of the counter that are not known. They count as known then."""
        with self._lock:
            if not self._unsure and self._up_to >= counter:
                return False
            self._unsure = False
            self._up_to = counter
            self._skip_to(counter)
            return True

    def _skip_to(self, number: int) -> None:
        self._up_to = max(self._up_to, number)
        self._later = {later for later in self._later if later > self._up_to}
        self._advance()

    def _add(self, number: int) -> None:
        if number > self._up_to:
            self._later.add(number)
            self._advance()

    def _advance(self) -> None:
        while self._up_to + 1 in self._later:
            self._up_to += 1
            self._later.discard(self._up_to)
