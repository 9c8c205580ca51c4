"""Follows all tasks of a running coordinator and writes them to a tracker, in a thread of its own.

Nothing is queued but the ids of changed tasks: the points are read from the store. So a slow tracker, or one that does
not answer, neither blocks a settlement nor fills the memory, and the thread catches up later.
"""

import threading

import structlog

from ..store.store import Store
from .tracker import TaskWriter, Tracker

_log = structlog.get_logger()
# So often at most the store is read, and so long an unknown change of another process stays unseen.
_INTERVAL_S = 1.0
_LONGEST_PAUSE_S = 60.0
_LAST_S = 10.0


class Follower:
    """Writes every settled round to one tracker."""

    def __init__(self, store: Store, tracker: Tracker) -> None:
        self._store = store
        self._tracker = tracker
        self._writers: dict[str, TaskWriter] = {}
        self._changed: set[str] = set()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tracking-{tracker.name}", daemon=True)

    def start(self) -> None:
        """Follow the tasks, beginning with all that the store has."""
        self._changed.update(self._store.read(lambda tx: [task.task_id for task in tx.tasks.all()]))
        self._store.on_commit(self._note)
        self._thread.start()

    def stop(self) -> None:
        """Write the last rounds and stop. What the tracker does not take in time is written at the next start."""
        self._stopping.set()
        self._thread.join(_LAST_S)
        if self._thread.is_alive():
            _log.warning("tracking_behind", tracker=self._tracker.name, instead="start again, or use export --to")

    def _note(self, touched: set[str]) -> None:
        """Called by the thread that commits: it only remembers the ids."""
        with self._lock:
            self._changed |= touched

    def _run(self) -> None:
        failures = 0
        last = False
        while not last:
            pause = min(_LONGEST_PAUSE_S, _INTERVAL_S * 2**failures)
            last = self._stopping.wait(pause)
            try:
                self._write_changed()
                failures = 0
            except Exception as error:
                # The tracker or the store may answer again later. The coordinator goes on in any case.
                if failures == 0:
                    _log.warning(
                        "tracking_failed", tracker=self._tracker.name, reason=" ".join(str(error).split())[:300]
                    )
                failures += 1
        for writer in self._writers.values():
            writer.close()

    def _write_changed(self) -> None:
        with self._lock:
            changed, self._changed = self._changed, set()
        # Another coordinator on the same database may have settled a round.
        changed |= set(self._store.read(lambda tx: tx.tasks.live_ids()))
        while changed:
            task_id = next(iter(changed))
            try:
                self._write(task_id)
            except Exception:
                with self._lock:
                    self._changed |= changed
                raise
            changed.remove(task_id)

    def _write(self, task_id: str) -> None:
        writer = self._writers.setdefault(task_id, TaskWriter(self._tracker, task_id))
        _, complete = writer.write_new(self._store)
        if complete:
            writer.close()
            del self._writers[task_id]
