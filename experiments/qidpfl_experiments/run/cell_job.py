"""A cell as a self-contained job: its own coordinator, fleet and audit on the machine where it runs.

A job and its outcome are JSON, so that any engine can carry them. The state of the coordinator and the journals are in
a temporary folder of that machine: SQLite does not belong on a shared disk.
"""

import platform
import shutil
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from qidpfl_client.errors import ClientError

from ..results.cells import Cell, CellResult
from ..results.folder import versions
from ..results.tables import DamagedResults
from ..testbed.process import AuditFailed, ProcessEnded
from ..testbed.services import LocalServices, Placement
from .execute import failed, run_cell

# Of each log: its end, which says why a process has ended.
_LOG_BYTES = 200_000


@dataclass(frozen=True, kw_only=True)
class CellJob:
    """A cell, and what its machine needs to know. `rules` are the files of custom methods, name and content."""

    cell: Cell
    device: str = "auto"
    data_dir: Path | None = None
    rules: Mapping[str, str] = field(default_factory=dict)
    tensorboard: Path | None = None
    mlflow: str | None = None
    time_limit_min: float | None = None
    keep_logs: bool = False


@dataclass(frozen=True, kw_only=True)
class CellOutcome:
    """The result of a job, with the audit of its coordinator, and the logs if the cell failed."""

    result: CellResult
    node: str
    versions: Mapping[str, str]
    audit: str = ""
    logs: Mapping[str, str] = field(default_factory=dict)


_JOB, _OUTCOME = TypeAdapter(CellJob), TypeAdapter(CellOutcome)


def encoded(what: CellJob | CellOutcome) -> str:
    """A job or an outcome as JSON."""
    adapter: TypeAdapter[Any] = _JOB if isinstance(what, CellJob) else _OUTCOME
    return adapter.dump_json(what, indent=1).decode()


def read_job(file: Path) -> CellJob:
    """Read the file of a job."""
    try:
        return _JOB.validate_json(file.read_bytes())
    except ValidationError as error:
        raise DamagedResults(file, error, remedy="a run with --on slurm or --on ray writes it") from error


def outcome_of(text: str) -> CellOutcome:
    """The outcome that a machine has sent."""
    return _OUTCOME.validate_json(text)


def run_encoded(text: str) -> str:
    """Run a job and return its outcome, both as JSON. This is the function that engines call."""
    job = _JOB.validate_json(text)
    try:
        outcome = run_job(job)
    except Exception as error:
        # The next machine would fail in the same way: this is a result, and no reason to try again.
        reason = f"{type(error).__name__} on {platform.node()}: {error}"
        outcome = _outcome(failed(job.cell, reason), logs={"traceback.log": traceback.format_exc()})
    return encoded(outcome)


def run_job(job: CellJob, work: Path | None = None) -> CellOutcome:
    """Run a cell on a coordinator of its own and audit it.

    The state is in a temporary folder, which is kept after a violation of the audit, or in `work`, which is kept.
    """
    folder = work or Path(tempfile.mkdtemp(prefix="qidpfl-cell-"))
    folder.mkdir(parents=True, exist_ok=True)
    keep = work is not None
    try:
        try:
            result, audit = _run(job, folder)
        except AuditFailed as error:
            keep = True
            result, audit = failed(job.cell, f"{error} on {platform.node()}"), "violated"
        except (ClientError, ProcessEnded) as error:
            result, audit = failed(job.cell, str(error)), ""
        logs = {} if result.finished and not job.keep_logs else _logs(folder)
        return _outcome(result, audit=audit, logs=logs)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _outcome(result: CellResult, *, audit: str = "", logs: Mapping[str, str]) -> CellOutcome:
    return CellOutcome(result=result, node=platform.node(), versions=versions(), audit=audit, logs=logs)


def _run(job: CellJob, folder: Path) -> tuple[CellResult, str]:
    placement = Placement(
        work=folder,
        data_dir=job.data_dir,
        device=job.device,
        rules=tuple(_written_rules(job.rules, folder / "rules")),
        tensorboard=job.tensorboard,
        mlflow=job.mlflow,
    )
    with LocalServices(placement) as testbed, _limit(testbed, job.time_limit_min):
        result = run_cell(job.cell, testbed)
        if testbed.stopping:
            return failed(job.cell, f"it took longer than the time limit of {job.time_limit_min:g} minutes"), ""
        return result, testbed.audit()


@contextmanager
def _limit(testbed: LocalServices, minutes: float | None) -> Iterator[None]:
    """Stop the fleet after these minutes."""
    if minutes is None:
        yield
        return
    timer = threading.Timer(60 * minutes, testbed.stop_fleets)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _written_rules(rules: Mapping[str, str], folder: Path) -> Iterator[Path]:
    for name, content in rules.items():
        folder.mkdir(exist_ok=True)
        path = folder / Path(name).name
        path.write_text(content)
        yield path


def _logs(folder: Path) -> dict[str, str]:
    return {path.name: path.read_bytes()[-_LOG_BYTES:].decode(errors="replace") for path in folder.glob("*.log")}
