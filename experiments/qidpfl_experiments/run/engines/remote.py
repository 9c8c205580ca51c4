"""Runs cells as jobs of a cluster: submits, waits, repeats a job whose worker was lost, and collects logs."""

import re
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from ...results.cells import Cell, CellResult, failure_of
from ...results.folder import versions
from ..cell_job import CellJob, CellOutcome, encoded, outcome_of
from ..execute import failed
from .engine import Versions

# How often a cell is started, if its worker is lost each time.
ATTEMPTS = 3
# These say where a cell was run and not with what.
_OF_A_MACHINE = {"platform", "machine", "commit"}


class WorkerLost(Exception):
    """The worker of a job ended without an outcome: killed, out of memory, or with its node. Another may finish it."""


class JobFailed(Exception):
    """A job cannot be submitted, or failed before its cell began. Another attempt would fail in the same way."""


class ClusterJob(Protocol):
    """A job that has been submitted."""

    @property
    def label(self) -> str:
        """What the cluster calls the job."""

    def outcome(self) -> str | None:
        """What the function has returned; None while it waits or runs. Raises `WorkerLost` or `JobFailed`."""

    def cancel(self) -> None:
        """End the job as soon as possible."""


class Cluster(Protocol):
    """Runs `run_encoded` on its machines."""

    def submit(self, text: str, *, name: str, folder: Path) -> ClusterJob:
        """Submit a job. Its own files go to `folder`. Raises `JobFailed`."""


class RemoteEngine:
    """Runs each cell as one job of a cluster. `template` has the settings of all jobs."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        template: Callable[[Cell], CellJob],
        work: Path,
        say: Callable[[str], None],
        poll_s: float = 0.5,
    ) -> None:
        self._cluster = cluster
        self._template = template
        self._work = work
        self._say = say
        self._poll_s = poll_s
        self._stopping = threading.Event()
        self._audits: list[str] = []
        self._versions: list[Versions] = []
        self._here = versions()
        work.mkdir(parents=True, exist_ok=True)

    def run(self, cell: Cell) -> CellResult:
        folder = self._work / cell.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        text = encoded(self._template(cell))
        (folder / "cell.json").write_text(text)
        try:
            result = self._attempts(cell, text, folder)
        except JobFailed as error:
            (folder / "failure.log").write_text(f"{error}\n")
            result = failed(cell, _last_line(error))
        if not result.finished and not self.stopping:
            self._say(f"{cell.name}: {failure_of(result)}; its logs are in {folder}")
        return result

    def _attempts(self, cell: Cell, text: str, folder: Path) -> CellResult:
        reason = ""
        for attempt in range(1, ATTEMPTS + 1):
            if self.stopping:
                break
            try:
                outcome = self._outcome(cell, text, folder)
            except WorkerLost as error:
                reason = " ".join(str(error).split())
                (folder / f"lost-{attempt}.log").write_text(f"{error}\n")
                self._say(f"{cell.name}: attempt {attempt} of {ATTEMPTS} lost its worker: {reason}")
                continue
            return failed(cell, "it was stopped") if outcome is None else self._accepted(cell, outcome, folder)
        return failed(cell, f"lost its worker {ATTEMPTS} times; the last time: {reason}")

    def _outcome(self, cell: Cell, text: str, folder: Path) -> CellOutcome | None:
        """The outcome of one job; None if the run was stopped before."""
        job = self._cluster.submit(text, name=cell.name, folder=folder)
        self._say(f"{cell.name}: {job.label}")
        while not self._stopping.wait(self._poll_s):
            found = job.outcome()
            if found is not None:
                try:
                    return outcome_of(found)
                except ValidationError as error:
                    raise JobFailed(f"{job.label} returned what this version cannot read: {error}") from error
        job.cancel()
        return None

    def _accepted(self, cell: Cell, outcome: CellOutcome, folder: Path) -> CellResult:
        for name, content in outcome.logs.items():
            (folder / Path(name).name).write_text(content)
        result = outcome.result
        others = {name for name in self._here if outcome.versions.get(name) != self._here[name]} - _OF_A_MACHINE
        ours = sorted(name for name in others if name.startswith("qidpfl-"))
        if ours or result.fingerprint != cell.fingerprint:
            name = ours[0] if ours else "qidpfl-experiments"
            there, here = outcome.versions.get(name), self._here[name]
            return failed(cell, f"{outcome.node} has {name} {there}, this machine has {here}: install the same one")
        if others and outcome.versions not in self._versions:
            self._versions.append(dict(outcome.versions))
        if outcome.audit:
            self._audits.append(outcome.audit)
        return result

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        self._stopping.set()

    @property
    def versions(self) -> Sequence[Versions]:
        return self._versions

    def audit(self) -> str:
        """A cell whose coordinator had a violation has failed already."""
        if not self._audits:
            return "no cell was run"
        checks = sum(int(found[1]) for audit in self._audits if (found := re.search(r"(\d+) checks", audit)))
        violated = sum("0 violated" not in audit for audit in self._audits)
        return f"{checks} checks of {len(self._audits)} coordinators, each on its node, {violated} violated"


def _last_line(error: Exception) -> str:
    """The last line with words: of a traceback the error itself."""
    lines = [line.strip() for line in str(error).splitlines() if re.search(r"\w", line)]
    return lines[-1] if lines else type(error).__name__
