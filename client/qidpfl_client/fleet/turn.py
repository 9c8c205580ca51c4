"""The turn of a fleet: one member at a time computes, while many others wait for the coordinator or the disk.

The interpreter runs one thread at a time. Without turns, threads that could all run hand it over at each call into
SQLite, torch or the kernel: more than a hundred times per upload. With turns, a thread hands over where it waits.
"""

import threading
import time
from types import TracebackType
from typing import Any

# A training that takes longer lets other members compute meanwhile.
_SHORT_TRAINING_S = 5e-3


class Turn:
    """Held by the thread that computes. `waiting()` is the block in which a thread gives it to another one.

    A thread must not wait for a lock with the turn, if another thread may hold that lock and wait for the turn.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mine = threading.local()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._mine.held = True

    def __exit__(self, *_: object) -> None:
        self._mine.held = False
        self._lock.release()

    def is_held(self) -> bool:
        """Whether this thread has the turn."""
        return getattr(self._mine, "held", False)

    def waiting(self) -> "_Waiting":
        """The block in which this thread waits. It does nothing in a thread that does not have the turn."""
        return _Waiting(self)


class _Waiting:
    __slots__ = ("_gave", "_turn")

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._gave = False

    def __enter__(self) -> None:
        if self._turn.is_held():
            self._gave = True
            self._turn.__exit__()

    def __exit__(self, *_: object) -> None:
        if self._gave:
            self._gave = False
            self._turn.__enter__()


class Trainings:
    """Limits how many members train at the same time. Members enter it for each training.

    A short training keeps the turn: to hand it over would cost more than the other members gain.
    """

    def __init__(self, turn: Turn, *, at_once: int) -> None:
        self._turn = turn
        self._free = threading.BoundedSemaphore(at_once)
        self._local = threading.local()
        self._latest_s = 0.0

    def __enter__(self) -> Any:
        self._local.waiting = None
        if self._latest_s > _SHORT_TRAINING_S:
            waiting = self._local.waiting = self._turn.waiting()
            waiting.__enter__()
            self._free.acquire()
        self._local.begun = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._latest_s = time.monotonic() - self._local.begun
        if self._local.waiting is not None:
            # The order matters: a thread with the turn may wait for a training to end.
            self._free.release()
            self._local.waiting.__exit__()
