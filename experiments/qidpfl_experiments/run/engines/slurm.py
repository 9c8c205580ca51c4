"""Slurm through submitit, and submitit's executor for this machine, which starts processes instead of jobs."""

import getpass
import hashlib
import logging
import math
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from ..cell_job import run_encoded
from .engine import EngineUnavailable
from .remote import ClusterJob, JobFailed, WorkerLost

# submitit asks a job for its checkpoint this long before the end of its time. A cell ends by its own limit before that.
_MARGIN_MIN = 5
_CANCEL_S = 10.0
# Its cache of the states of all jobs is not made for threads.
_ASKING = threading.Lock()
_STARTING = threading.Lock()


class SlurmCluster:
    """Submits jobs with sbatch. `options` are options of sbatch, without their dashes."""

    def __init__(
        self,
        *,
        results: Path,
        here: bool,
        cpus: int,
        gpus: int,
        time_limit_min: float,
        options: Mapping[str, str],
        look_again_s: float = 30.0,
    ) -> None:
        """`here`: processes on this machine instead of jobs. Raises `EngineUnavailable`."""
        try:
            import submitit
        except ImportError:
            raise EngineUnavailable("submitit is not installed: pip install 'qidpfl-experiments[slurm]'") from None
        if not here and (shutil.which("sbatch") is None or shutil.which("srun") is None):
            raise EngineUnavailable(
                "there is no sbatch on this machine: use a login node of the cluster, or --address local, which starts"
                " processes on this machine"
            )
        logging.getLogger("submitit").setLevel(logging.ERROR)
        self._here = here
        self._look_again_s = look_again_s
        minutes = math.ceil(time_limit_min) + _MARGIN_MIN
        if here:
            self._executor: type[Any] = submitit.LocalExecutor
            self._parameters: dict[str, Any] = {"timeout_min": minutes, "gpus_per_node": gpus}
            return
        # Only one run at a time uses a results folder, so jobs with its name were left by one that was killed.
        name = f"qidpfl-{hashlib.sha256(str(results.absolute()).encode()).hexdigest()[:10]}"
        _call("scancel", "--user", getpass.getuser(), "--name", name)
        self._executor = submitit.SlurmExecutor
        self._parameters = {
            "job_name": name,
            "time": minutes,
            "cpus_per_task": cpus,
            # A flag, such as exclusive, has no value.
            "additional_parameters": {key: value or True for key, value in options.items()},
        } | ({"gpus_per_node": gpus} if gpus else {})

    def submit(self, text: str, *, name: str, folder: Path) -> ClusterJob:
        try:
            executor = self._executor(folder=folder)
            executor.update_parameters(**self._parameters)
            with _errors_to(folder / "controller.log") if self._here else nullcontext():
                submitted = executor.submit(run_encoded, text)
        except Exception as error:
            # submitit has no common class for what sbatch and the disk may answer.
            raise JobFailed(f"{name} cannot be submitted: {error}") from error
        return _LocalProcess(submitted) if self._here else _SlurmJob(submitted, self._look_again_s)


@contextmanager
def _errors_to(file: Path) -> Iterator[None]:
    """Give the processes that start in this block a file as their standard error.

    The process that controls a worker inherits it, and ends with a traceback when it is interrupted.
    """
    with _STARTING, file.open("a") as log:
        kept = os.dup(2)
        try:
            os.dup2(log.fileno(), 2)
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


class _LocalProcess:
    def __init__(self, job: Any) -> None:
        self._job = job

    @property
    def label(self) -> str:
        return f"process {self._job.job_id}"

    def outcome(self) -> str | None:
        if not self._job.done():
            return None
        if not self._job.paths.result_pickle.exists():
            # On one machine the file of the result is there before its process ends.
            raise WorkerLost(f"{self.label} ended without a result; its log is {self._job.paths.stderr}")
        return _result(self._job)

    def cancel(self) -> None:
        """Interrupt the process, and wait until it has ended its worker."""
        self._job.cancel()
        deadline = time.monotonic() + _CANCEL_S
        while not self._job.done() and time.monotonic() < deadline:
            time.sleep(0.1)


class _SlurmJob:
    def __init__(self, job: Any, look_again_s: float) -> None:
        self._job = job
        self._look_again_s = look_again_s
        self._looked = time.monotonic()
        self._absences = 0

    @property
    def label(self) -> str:
        return f"job {self._job.job_id}"

    def outcome(self) -> str | None:
        with _ASKING:
            done = self._job.done()
            state = str(self._job.state)
        if not done and not (state.upper() == "UNKNOWN" and self._is_gone()):
            return None
        if not self._job.paths.result_pickle.exists():
            if state.upper().startswith("CANCELLED"):
                raise JobFailed(f"{self.label} was cancelled in Slurm")
            if not done:
                raise WorkerLost(f"{self.label} is not in the queue and has no result; its log is {self._log}")
        return _result(self._job)

    def cancel(self) -> None:
        _call("scancel", str(self._job.job_id))

    @property
    def _log(self) -> Path:
        path: Path = self._job.paths.stderr
        return path

    def _is_gone(self) -> bool:
        """Whether the queue does not have the job, twice: a shared disk may show its result late.

        A cluster without accounting does not tell the state of a job.
        """
        if time.monotonic() < self._looked + self._look_again_s:
            return False
        self._looked = time.monotonic()
        asked = _call("squeue", "--noheader", "--format", "%T", "--jobs", str(self._job.job_id))
        if asked is None:
            return False
        unknown = asked.returncode != 0 and "invalid job id" in asked.stderr.lower()
        absent = unknown or (asked.returncode == 0 and not asked.stdout.strip())
        self._absences = self._absences + 1 if absent else 0
        return self._absences >= 2


def _result(job: Any) -> str:
    """The result of a job that has ended. It may take seconds until a shared disk shows the file."""
    from submitit.core.utils import FailedJobError, UncompletedJobError

    try:
        returned: str = job.result()
    except UncompletedJobError as error:
        first = str(error).splitlines()[0]
        raise WorkerLost(f"{first}; its log is {job.paths.stderr}") from error
    except FailedJobError as error:
        trace = str(error).split("You can check full logs")[0]
        raise JobFailed(trace) from error
    except (OSError, EOFError) as error:
        raise WorkerLost(f"the result of job {job.job_id} cannot be read: {error}") from error
    return returned


def _call(*command: str) -> "subprocess.CompletedProcess[str] | None":
    """Call a command of Slurm; None if it does not answer."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
