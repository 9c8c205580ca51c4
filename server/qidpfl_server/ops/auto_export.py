"""Automatic export of tasks: the transaction that ends a task also writes its files, before a client sees the end."""

import json
import os
import stat
from pathlib import Path
from urllib.parse import quote

import structlog

from qidpfl_shared.durable_files import create_folder

from ..clock import Micros
from ..domain import Task
from ..store.transaction import Transaction
from .export import export_inside, write_export
from .tables import TableFormat

_log = structlog.get_logger()


class AutoExport:
    """Writes each task that has ended to a folder of its own in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # A failed commit is tried again with another end time; its files are then written again too.
        self._tried: dict[str, Micros | None] = {}

    def write_ended(self, tx: Transaction) -> None:
        """Write the tasks that this transaction ends."""
        for task_id in tx.touched:
            task = tx.tasks.get(task_id)
            if task is not None and task.ended and self._tried.get(task_id) != task.ended_at:
                self._write(tx, task)

    def write_missing(self, tx: Transaction) -> None:
        """Write ended tasks that have no files yet: another process ended them, or the folder was not set."""
        for task in tx.tasks.all():
            written = _exported_task(self._place(task)) == task.task_id
            if task.ended and task.task_id not in self._tried and not written:
                self._write(tx, task)

    def _place(self, task: Task) -> Path:
        # A name may contain slashes.
        return self._folder / quote(task.name, safe=":")

    def _write(self, tx: Transaction, task: Task) -> None:
        """Write one task. An error is logged only: everything is in the store, so the task ends anyway."""
        self._tried[task.task_id] = task.ended_at
        place = self._place(task)
        try:
            with tx.connection.begin_nested():
                export = export_inside(tx, task.task_id)
            # Who may read the results is who may read the folder above: only the operator, unless that was opened.
            create_folder(self._folder, mode=0o700)
            opened = stat.S_IMODE(self._folder.stat().st_mode)
            _move_aside(place, task.task_id)
            if not os.path.exists(place):
                place.mkdir()
                place.chmod(opened)
            write_export(export, place, TableFormat.CSV, mode=0o600 | (opened & 0o044))
        except Exception as error:
            reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
            _log.error("results_not_written", folder=str(place), reason=reason, instead="export, or make results")
        else:
            _log.info("results_written", folder=str(place))


def _exported_task(place: Path) -> str | None:
    """The id of the task whose results are in a folder; None if there are none that can be read."""
    try:
        return str(json.loads((place / "task.json").read_text(encoding="utf-8"))["task_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _move_aside(place: Path, task_id: str) -> None:
    """Rename the results of an earlier task of the same name, so that old and new files do not mix.

    No task name contains a tilde, so NAME~1 belongs to no other task.
    """
    earlier = _exported_task(place)
    if earlier is None or earlier == task_id:
        return
    number = next(n for n in range(1, 1_000_000) if not place.with_name(f"{place.name}~{n}").exists())
    place.rename(place.with_name(f"{place.name}~{number}"))
    _log.info("earlier_results", folder=str(place.with_name(f"{place.name}~{number}")))
