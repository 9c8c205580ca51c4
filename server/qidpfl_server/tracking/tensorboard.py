"""TensorBoard: one folder of event files per task. Written with tensorboardX, which needs neither TensorFlow nor torch.

The files themselves say what they contain: after a crash, a new file gets what the earlier ones lack.
"""

import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event as EventRecord
from tensorboardX.summary import scalar, text

from qidpfl_shared.durable_files import create_folder

from ..clock import SECOND
from ..domain import Task
from ..identifiers import new_id
from .series import Point

_ABOUT = "task/about"


class TensorBoard:
    """A folder that `tensorboard --logdir` shows."""

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        # Only the operator can read a new folder: it tells what each client sold.
        create_folder(folder, mode=0o700)
        self._folder = folder

    def open(self, task: Task) -> "TensorBoardRun":
        """The folder of a task. Tasks of the same name, of different coordinators, have different folders."""
        folder = self._folder / f"{quote(task.name, safe=':')}-{task.task_id[:8]}"
        create_folder(folder)
        return TensorBoardRun(folder, task)


class TensorBoardRun:
    """The event files of one task. Only its newest file is open."""

    def __init__(self, folder: Path, task: Task) -> None:
        self._folder = folder
        self._task = task
        self._writer: EventsWriter | None = None
        self._texts: set[str] = set()

    def known(self) -> set[tuple[str, int]]:
        """The series and steps of all files."""
        found: set[tuple[str, int]] = set()
        for path in sorted(self._folder.glob("*tfevents*")):
            for event in _events(path):
                for value in event.summary.value:
                    found.add((value.tag, event.step))
                    self._texts.add(value.tag.removesuffix("/text_summary"))
        return found

    def write(self, points: Sequence[Point]) -> None:
        """Append the points and flush."""
        self._describe(_ABOUT, _about(self._task), self._task.opened_at / SECOND)
        for point in points:
            self._append(EventRecord(wall_time=point.at_s, step=point.step, summary=scalar(point.series, point.value)))
        self._opened().flush()

    def end(self, task: Task) -> None:
        """Write the state and the reason as a text, once."""
        at = (task.ended_at or task.opened_at) / SECOND
        self._describe(_ABOUT, _about(task), task.opened_at / SECOND)
        self._describe(f"task/{task.state}", task.reason or "", at)
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Close the newest file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _describe(self, tag: str, content: str, at_s: float) -> None:
        if tag not in self._texts:
            self._append(EventRecord(wall_time=at_s, step=0, summary=text(tag, content)))
            self._texts.add(tag)

    def _append(self, event: EventRecord) -> None:
        self._opened().write_event(event)

    def _opened(self) -> EventsWriter:
        if self._writer is None:
            # The name has the second in it, and two processes may start in the same one.
            self._writer = EventsWriter(str(self._folder / "events"), f".{new_id()}")
        return self._writer


def _about(task: Task) -> str:
    """The task as Markdown: TensorBoard shows texts so."""
    facts = task.spec.model_dump(mode="json", exclude={"layout"})
    spec = json.dumps(facts, indent=2).replace("\n", "\n    ")
    return f"task {task.name}, id {task.task_id}, preset {task.preset}\n\n    {spec}"


def _events(path: Path) -> Iterator[EventRecord]:
    """The events of a file, up to a record that a crash has cut off.

    A record is its length (8 bytes), a checksum of the length (4), the data, and a checksum of the data (4).
    """
    with path.open("rb") as file:
        while len(head := file.read(12)) == 12:
            (length,) = struct.unpack("<Q", head[:8])
            data = file.read(length + 4)
            if len(data) < length + 4:
                return
            yield EventRecord.FromString(data[:length])
