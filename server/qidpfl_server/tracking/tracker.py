"""What a tracker must do, and how a task is written to one without writing a point twice."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from ..domain import Task
from ..store.store import Store
from .series import Point, TaskSeries


class TrackedRun(Protocol):
    """One task in a tracker."""

    def known(self) -> set[tuple[str, int]]:
        """The series and steps that the tracker has already, also of an earlier process."""

    def write(self, points: Sequence[Point]) -> None:
        """Write points; return when they cannot be lost by a crash of this process."""

    def end(self, task: Task) -> None:
        """Say how the task has ended. A repeat changes nothing."""

    def close(self) -> None:
        """Close files and connections."""


class Tracker(Protocol):
    """A place that shows series: a folder of TensorBoard, or an MLflow store."""

    name: str

    def open(self, task: Task) -> TrackedRun:
        """The run of a task, made at the first time."""


class TaskWriter:
    """Writes one task to one tracker: what is settled now, and later what is new."""

    def __init__(self, tracker: Tracker, task_id: str) -> None:
        self._tracker = tracker
        self._series = TaskSeries(task_id)
        self._run: TrackedRun | None = None
        self._known: set[tuple[str, int]] = set()
        # Points that were read, but not yet written because the tracker failed.
        self._unwritten: list[Point] = []

    def write_new(self, store: Store) -> tuple[int, bool]:
        """Write what the tracker does not have yet. Returns how many points, and whether the task is complete."""
        written = 0
        while True:
            task, points = store.read(self._series.read)
            self._unwritten += points
            if task is None:
                return written, True
            try:
                written += self._write(task)
            except Exception:
                self._forget_run()
                raise
            if not points:
                return written, task.ended

    def _write(self, task: Task) -> int:
        if not self._unwritten and not task.ended:
            return 0
        if self._run is None:
            self._run = self._tracker.open(task)
            self._known = self._run.known()
        missing = [point for point in self._unwritten if point.key not in self._known]
        if missing:
            self._run.write(missing)
            self._known.update(point.key for point in missing)
        self._unwritten = []
        if task.ended:
            self._run.end(task)
        return len(missing)

    def _forget_run(self) -> None:
        """A part of the points may have arrived: the next attempt asks the tracker what it has."""
        with suppress(Exception):
            self.close()
        self._run = None

    def close(self) -> None:
        """Close the run."""
        if self._run is not None:
            self._run.close()
