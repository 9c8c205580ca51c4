"""Cells on a cluster: lost workers, failures, a stop, and what comes back. The cluster here is scripted."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from qidpfl_experiments.methods import QI_DPFL
from qidpfl_experiments.results.cells import Cell, CellResult, failure_of
from qidpfl_experiments.results.folder import versions
from qidpfl_experiments.results.tables import DamagedResults
from qidpfl_experiments.run.cell_job import CellJob, CellOutcome, encoded, outcome_of, read_job, run_encoded
from qidpfl_experiments.run.engines.engine import EngineUnavailable
from qidpfl_experiments.run.engines.remote import ATTEMPTS, ClusterJob, JobFailed, RemoteEngine, WorkerLost
from qidpfl_experiments.run.engines.slurm import SlurmCluster
from qidpfl_experiments.run.execute import failed
from qidpfl_experiments.run.grid import GridBuilder
from qidpfl_experiments.settings import read_settings, setup

SETUP = setup(read_settings(), dataset="digits", scale="smoke", variant="recommended", partitions=["quality-mix"])
CELL = GridBuilder(setup=SETUP).cell(QI_DPFL, partition="quality-mix", seed=3, rewards=None, leader=None)


def finished(cell: Cell = CELL) -> CellResult:
    result = failed(cell, "")
    return replace(result, cell=replace(result.cell, state="finished", accuracy=0.5))


def outcome(**changes: Any) -> str:
    plain = CellOutcome(result=finished(), node="node-7", versions=versions(), audit="7 checks, 0 violated")
    return encoded(replace(plain, **changes))


@dataclass
class ScriptedCluster:
    """Each job ends as the next entry says: a text is its outcome, None never ends, an error is raised."""

    script: list[str | Exception | None]
    submitted: list[str] = field(default_factory=list)
    cancelled: int = 0

    def submit(self, text: str, *, name: str, folder: Path) -> "ScriptedJob":
        self.submitted.append(text)
        return ScriptedJob(self, self.script.pop(0))


@dataclass
class ScriptedJob:
    cluster: ScriptedCluster
    end: str | Exception | None
    label: str = "job 1"

    def outcome(self) -> str | None:
        if isinstance(self.end, Exception):
            raise self.end
        return self.end

    def cancel(self) -> None:
        self.cluster.cancelled += 1


@dataclass
class Played:
    engine: RemoteEngine
    cluster: ScriptedCluster
    said: list[str]
    folder: Path


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., Played]:
    def made(*script: str | Exception | None) -> Played:
        cluster, said = ScriptedCluster(list(script)), list[str]()
        engine = RemoteEngine(
            cluster, template=lambda cell: CellJob(cell=cell), work=tmp_path / "work", say=said.append, poll_s=0.0
        )
        return Played(engine, cluster, said, tmp_path / "work" / CELL.name)

    return made


def test_a_cell_has_the_same_fingerprint_after_its_way_to_a_node(tmp_path: Path) -> None:
    file = tmp_path / "cell.json"
    file.write_text(encoded(CellJob(cell=CELL, rules={"mine.py": "x = 1\n"}, data_dir=Path("/data"))))
    job = read_job(file)
    assert job.cell.fingerprint == CELL.fingerprint and job.cell.spec == CELL.spec
    assert job.rules == {"mine.py": "x = 1\n"} and job.data_dir == Path("/data")
    file.write_text("{}")
    with pytest.raises(DamagedResults, match="is damaged: cell: Field required; a run with --on slurm or --on ray"):
        read_job(file)


def test_the_result_of_a_job_is_the_result_of_its_cell(play: Callable[..., Played]) -> None:
    played = play(outcome())
    assert played.engine.run(CELL) == finished()
    assert played.said == [f"{CELL.name}: job 1"]
    assert read_job(played.folder / "cell.json").cell.fingerprint == CELL.fingerprint
    assert played.engine.audit() == "7 checks of 1 coordinators, each on its node, 0 violated"
    assert played.engine.versions == []


def test_a_cell_whose_worker_is_lost_is_started_again(play: Callable[..., Played]) -> None:
    played = play(WorkerLost("killed\nby a signal"), outcome())
    assert played.engine.run(CELL).finished and len(played.cluster.submitted) == 2
    assert f"{CELL.name}: attempt 1 of {ATTEMPTS} lost its worker: killed by a signal" in played.said
    assert (played.folder / "lost-1.log").read_text() == "killed\nby a signal\n"


def test_a_cell_that_loses_every_worker_fails_with_its_name_and_reason(play: Callable[..., Played]) -> None:
    played = play(*(WorkerLost(f"killed {number}") for number in range(1, ATTEMPTS + 1)))
    result = played.engine.run(CELL)
    assert failure_of(result) == f"lost its worker {ATTEMPTS} times; the last time: killed {ATTEMPTS}"
    assert played.said[-1] == f"{CELL.name}: {failure_of(result)}; its logs are in {played.folder}"
    assert len(played.cluster.submitted) == ATTEMPTS and played.engine.audit() == "no cell was run"


def test_a_job_that_fails_before_its_cell_begins_is_not_repeated(play: Callable[..., Played]) -> None:
    played = play(JobFailed("Traceback\n  line\nModuleNotFoundError: No module named 'qidpfl_experiments'\n-----\n"))
    assert failure_of(played.engine.run(CELL)) == "ModuleNotFoundError: No module named 'qidpfl_experiments'"
    assert len(played.cluster.submitted) == 1
    assert (played.folder / "failure.log").read_text().startswith("Traceback")


def test_a_failed_cell_leaves_the_logs_of_its_node(play: Callable[..., Played]) -> None:
    played = play(outcome(result=failed(CELL, "no clients"), audit="", logs={"../../coordinator.log": "it says why"}))
    assert failure_of(played.engine.run(CELL)) == "no clients" and len(played.cluster.submitted) == 1
    assert (played.folder / "coordinator.log").read_text() == "it says why"
    assert not (played.folder.parent.parent / "coordinator.log").exists()


@pytest.mark.parametrize("text", ["", "{}", "[1, 2]", '{"result": 1}'])
def test_what_cannot_be_read_is_a_failure(play: Callable[..., Played], text: str) -> None:
    played = play(text)
    assert not played.engine.run(CELL).finished


def test_a_node_with_another_version_of_the_project_is_refused(play: Callable[..., Played]) -> None:
    played = play(outcome(versions=versions() | {"qidpfl-client": "0.0.1"}))
    here = version("qidpfl-client")
    assert failure_of(played.engine.run(CELL)) == (
        f"node-7 has qidpfl-client 0.0.1, this machine has {here}: install the same one"
    )


def test_other_versions_of_a_node_are_noted_once(play: Callable[..., Played]) -> None:
    others = versions() | {"torch": "9.9", "machine": "512 cores"}
    played = play(*(outcome(versions=others) for _ in range(2)), outcome(versions=versions() | {"machine": "1 cores"}))
    assert [played.engine.run(CELL).finished for _ in range(3)] == [True] * 3
    assert played.engine.versions == [others]


def test_a_result_of_another_cell_is_refused(play: Callable[..., Played]) -> None:
    played = play(outcome(result=replace(finished(), fingerprint="0")))
    assert "install the same one" in failure_of(played.engine.run(CELL))


def test_a_stop_cancels_the_jobs_and_gives_no_result(play: Callable[..., Played]) -> None:
    played = play(None)
    found: list[CellResult] = []
    thread = threading.Thread(target=lambda: found.append(played.engine.run(CELL)))
    thread.start()
    while not played.said:
        pass
    played.engine.stop()
    thread.join(10)
    assert not thread.is_alive() and played.cluster.cancelled == 1
    assert played.engine.stopping and not found[0].finished
    assert not played.engine.run(CELL).finished and len(played.cluster.submitted) == 1


def test_an_error_on_a_node_is_the_reason_of_the_failure(tmp_path: Path) -> None:
    """The rules cannot be written: nothing starts."""
    job = CellJob(cell=CELL, rules={"": "x"})
    found = outcome_of(run_encoded(encoded(job)))
    assert not found.result.finished and "IsADirectoryError" in failure_of(found.result)
    assert "Traceback" in found.logs["traceback.log"] and found.result.fingerprint == CELL.fingerprint


# --- Slurm, whose commands are scripts --------------------------------------------------------------------------------

# submitit remembers the states of jobs by their number.
NUMBERS = count(17)


def script(folder: Path, name: str, *lines: str) -> None:
    file = folder / name
    file.write_text("\n".join(("#!/bin/sh", f'echo "{name} $@" >> {folder}/calls', *lines, "")))
    file.chmod(0o755)


@dataclass(frozen=True)
class FakeSlurm:
    folder: Path
    number: int

    def says(self, state: str) -> None:
        """What sacct says of the job."""
        script(self.folder, "sacct", "echo 'JobID|State|NodeList'", f"echo '{self.number}|{state}|node-1'")

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """Commands that answer as those of Slurm do: a job waits in the queue."""
    pytest.importorskip("submitit", reason="make setup installs submitit")
    folder = tmp_path / "bin"
    folder.mkdir()
    found = FakeSlurm(folder, next(NUMBERS))
    script(folder, "sbatch", f'cat "$1" >> {folder}/batch', f"echo Submitted batch job {found.number}")
    script(folder, "srun")
    script(folder, "scancel")
    script(folder, "squeue", "echo PENDING")
    found.says("PENDING")
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return found


def submitted(tmp_path: Path, **options: str) -> ClusterJob:
    made = SlurmCluster(
        results=tmp_path / "results",
        here=False,
        cpus=2,
        gpus=1,
        time_limit_min=60,
        options=options,
        look_again_s=0.0,
    )
    return made.submit("{}", name="cell", folder=tmp_path / "cell")


def test_a_job_of_slurm_has_the_options_that_were_asked_for(slurm: FakeSlurm, tmp_path: Path) -> None:
    job = submitted(tmp_path, partition="long", mem="8G", exclusive="")
    lines = (slurm.folder / "batch").read_text().splitlines()
    assert {
        *("#SBATCH --partition=long", "#SBATCH --mem=8G", "#SBATCH --exclusive", "#SBATCH --cpus-per-task=2"),
        *("#SBATCH --gpus-per-node=1", "#SBATCH --time=65"),
    } <= set(lines)
    (name,) = [line.split("=")[1] for line in lines if "--job-name" in line]
    assert job.label == f"job {slurm.number}" and job.outcome() is None
    job.cancel()
    # Jobs that a killed run of the same folder has left are cancelled first.
    assert slurm.calls[0].startswith("scancel --user ") and slurm.calls[0].endswith(f"--name {name}")
    assert slurm.calls[-1] == f"scancel {slurm.number}"


def test_a_job_that_was_cancelled_in_slurm_is_not_repeated(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.says("CANCELLED by 1000")
    with pytest.raises(JobFailed, match=f"job {slurm.number} was cancelled in Slurm"):
        submitted(tmp_path).outcome()


@pytest.mark.parametrize("queue", ["exit 0", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"])
def test_without_accounting_a_job_that_has_left_the_queue_is_lost(slurm: FakeSlurm, tmp_path: Path, queue: str) -> None:
    script(slurm.folder, "sacct", "echo 'Slurm accounting storage is disabled' >&2", "exit 1")
    job = submitted(tmp_path)
    assert [job.outcome() for _ in range(3)] == [None] * 3
    script(slurm.folder, "squeue", queue)
    assert job.outcome() is None
    with pytest.raises(WorkerLost, match=f"job {slurm.number} is not in the queue and has no result"):
        job.outcome()


def test_an_sbatch_that_refuses_is_a_failure_with_its_words(slurm: FakeSlurm, tmp_path: Path) -> None:
    script(slurm.folder, "sbatch", "echo 'sbatch: error: invalid partition specified: lng' >&2", "exit 1")
    with pytest.raises(JobFailed, match=r"cell cannot be submitted: [^$]*invalid partition specified: lng"):
        submitted(tmp_path)


def test_a_machine_without_slurm_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="make setup installs submitit")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineUnavailable, match=r"there is no sbatch on this machine.*--address local"):
        submitted(tmp_path)
