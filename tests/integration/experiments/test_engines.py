"""`qidpfl-experiments run` on engines: submitit and Ray really run, workers are killed, runs are interrupted."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qidpfl_experiments.results.tables import read_tables
from support.cell_engines import CELL, ONE_CELL, EngineRun, kill, ray_workers, submitit_workers
from support.ray_environment import NoRay, ray_python

pytestmark = pytest.mark.live

HERE = Path(sys.executable)
OWN = Path(__file__).parents[3] / "examples" / "own_rules.py"
LOCAL_SLURM = ("--on", "slurm", "--address", "local")


@pytest.fixture(scope="module")
def submitit() -> None:
    pytest.importorskip("submitit", reason="make setup installs submitit")


@pytest.fixture(scope="module")
def ray() -> Path:
    """An interpreter with Ray."""
    try:
        return ray_python()
    except NoRay as reason:
        pytest.skip(str(reason))


def experiments(*arguments: str, status: int = 0, python: Path = HERE, **environment: str) -> str:
    command = [str(python), "-m", "qidpfl_experiments", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


# --- submitit ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def survived(submitit: None, tmp_path_factory: pytest.TempPathFactory) -> EngineRun:
    """A run whose only worker was killed in the middle of its cell."""
    run = EngineRun(HERE, tmp_path_factory.mktemp("engines") / "out", *LOCAL_SLURM, "--keep-work")
    services = run.wait_for_fleet()
    kill(submitit_workers(run.out))
    run.wait_until_said("lost its worker")
    # The coordinator and the fleet of the killed worker end by themselves.
    run.wait_for("the end of the services", lambda: not set(services) & set(run.services()))
    assert run.ended() == 0, run.said
    return run


def test_a_killed_worker_costs_one_attempt(survived: EngineRun) -> None:
    assert f"{CELL}: attempt 1 of 3 lost its worker: process " in survived.said
    assert f"[1/1] {CELL}: accuracy 0." in survived.said and "attempt 2" not in survived.said
    assert "checks of 1 coordinators, each on its node, 0 violated" in survived.said
    assert [row.state for row in read_tables(survived.out).cells] == ["finished"]
    assert (survived.out / "report.html").exists()
    # --keep-work: the logs of the node are here.
    kept = {path.name for path in (survived.out / "work" / CELL).iterdir()}
    assert {"cell.json", "coordinator.log", f"{CELL}.log", "lost-1.log"} <= kept
    survived.wait_until_alone()


def test_a_cell_with_a_result_is_not_run_again(survived: EngineRun) -> None:
    given = ("run", *ONE_CELL, "--methods", "fedavg", "--out", str(survived.out), "--keep-work")
    said = experiments(*given, *LOCAL_SLURM)
    assert said.count("(not run)") == 1 and f"{CELL}: process" not in said


def test_the_command_of_a_cell_gives_the_result_of_its_job(survived: EngineRun, tmp_path: Path) -> None:
    file, out = survived.out / "work" / CELL / "cell.json", tmp_path / "result.json"
    said = experiments("cell", str(file), "--out", str(out), "--work", str(tmp_path / "work"))
    assert "audit of the coordinator: " in said and "0 violated" in said
    again = json.loads(out.read_text())
    stored = json.loads((survived.out / "cells" / f"{CELL}.json").read_text())
    assert again["fingerprint"] == stored["fingerprint"]
    assert again["cell"]["model_digest"] == stored["cell"]["model_digest"] != ""
    assert (tmp_path / "work" / "coordinator.log").exists()
    refused = experiments("cell", str(file), "--out", str(out), "--work", str(tmp_path / "work"), status=1)
    assert "is not empty; name a new folder" in refused


@pytest.mark.long
def test_the_command_of_a_cell_that_fails_says_why_and_shows_the_logs(survived: EngineRun, tmp_path: Path) -> None:
    job = json.loads((survived.out / "work" / CELL / "cell.json").read_text())
    file, out = tmp_path / "cell.json", tmp_path / "result.json"
    file.write_text(json.dumps(job | {"device": "cuda:99"}))
    said = experiments("cell", str(file), "--out", str(out), status=1)
    assert f"--- {CELL}.log" in said and "--- coordinator.log" in said
    assert said.splitlines()[-1].startswith(f"qidpfl-experiments: {file}: the fleet of {CELL} ended with 1: ")
    assert json.loads(out.read_text())["cell"]["state"] == "failed"
    file.write_text("[]")
    damaged = experiments("cell", str(file), "--out", str(out), status=1)
    assert damaged.startswith(f"qidpfl-experiments: {file} is damaged: ") and damaged.count("\n") == 1


@pytest.mark.long
def test_a_cell_whose_workers_are_all_killed_is_a_named_failure(submitit: None, tmp_path: Path) -> None:
    run = EngineRun(HERE, tmp_path / "out", *LOCAL_SLURM)
    for attempt in (1, 2, 3):
        run.wait_for("a worker", lambda: bool(submitit_workers(run.out)))
        kill(submitit_workers(run.out))
        run.wait_until_said(f"attempt {attempt} of 3 lost its worker")
    assert run.ended() == 1
    assert f"[1/1] {CELL}: FAILED: lost its worker 3 times; the last time: process " in run.said
    assert f"its logs are in {run.out / 'work' / CELL}" in run.said
    assert run.said.splitlines()[-1] == "qidpfl-experiments: 1 of 1 cells failed; the report lists them"
    run.wait_until_alone()
    again = EngineRun(HERE, tmp_path / "out", *LOCAL_SLURM)
    assert again.ended() == 0 and f"[1/1] {CELL}: accuracy 0." in again.said


@pytest.mark.long
def test_calibrations_and_custom_methods_run_as_jobs(submitit: None, tmp_path: Path) -> None:
    run = EngineRun(HERE, tmp_path / "out", *LOCAL_SLURM, "--own", str(OWN))
    assert run.ended() == 0, run.said
    # Four rewards of the calibration, then the two methods.
    assert "checks of 6 coordinators, each on its node, 0 violated" in run.said
    assert {(row.method, row.state) for row in read_tables(run.out).cells} == {
        ("fedavg", "finished"),
        (OWN.stem, "finished"),
    }


@pytest.mark.long
def test_a_limit_of_time_is_a_named_failure_with_the_logs_of_the_node(submitit: None, tmp_path: Path) -> None:
    run = EngineRun(HERE, tmp_path / "out", *LOCAL_SLURM, "--time-limit", "0.05")
    assert run.ended() == 1
    assert "FAILED: it took longer than the time limit of 0.05 minutes" in run.said
    assert '"listening"' in (run.out / "work" / CELL / "coordinator.log").read_text()
    run.wait_until_alone()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_an_interrupted_run_cancels_its_jobs_and_goes_on(
    submitit: None, tmp_path: Path, number: signal.Signals
) -> None:
    run = EngineRun(HERE, tmp_path / "out", *LOCAL_SLURM)
    run.wait_for_fleet()
    run.process.send_signal(number)
    assert run.ended() == 1
    assert run.said.splitlines()[-1] == "qidpfl-experiments: stopped; run the same command again to continue"
    assert "FAILED" not in run.said
    run.wait_until_alone()
    assert not submitit_workers(run.out) and not (run.out / "cells").exists()
    again = EngineRun(HERE, tmp_path / "out", *LOCAL_SLURM)
    assert again.ended() == 0, again.said


SBATCH = """#!/bin/sh
# The number of a job is that of its process.
(setsid sh -c 'export SLURM_JOB_ID=$$ SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1
  echo RUNNING > {folder}/$$.state; sh "$0"; echo FAILED > {folder}/$$.state' "$1" > /dev/null 2>&1 &
  echo $! > {folder}/last)
sleep 0.2
echo "Submitted batch job $(cat {folder}/last)"
"""
SRUN = """#!/bin/sh
while [ "$1" != "{python}" ]; do
  case "$1" in --output) out=$2;; --error) err=$2;; esac
  shift
done
id=$(printf '%s' "$out" | sed "s/%j/$SLURM_JOB_ID/; s/%t/0/")
exec "$@" >> "$id" 2>&1
"""
SACCT = """#!/bin/sh
echo 'JobID|State|NodeList'
for file in {folder}/*.state; do echo "$(basename "$file" .state)|$(cat "$file")|node-1"; done
"""


@pytest.mark.long
def test_jobs_of_slurm_run_and_are_repeated_when_their_worker_is_killed(
    submitit: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm is played by scripts: a job is a process of this machine."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", SRUN), ("sacct", SACCT), ("scancel", "#!/bin/sh\n")):
        (folder / name).write_text(text.replace("{folder}", str(folder)).replace("{python}", str(HERE)))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    run = EngineRun(HERE, tmp_path / "out", "--on", "slurm", "--slurm", "partition=long")
    run.wait_for_fleet()
    kill(submitit_workers(run.out))
    run.wait_until_said("attempt 1 of 3 lost its worker: Job ")
    assert run.ended() == 0, run.said
    assert f"[1/1] {CELL}: accuracy 0." in run.said
    run.wait_until_alone()


# --- Ray --------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_killed_worker_of_ray_costs_one_attempt_and_the_model_is_that_of_a_local_run(
    ray: Path, tmp_path: Path
) -> None:
    run = EngineRun(ray, tmp_path / "out", "--on", "ray")
    services = run.wait_for_fleet()
    kill(ray_workers(CELL))
    run.wait_until_said(f"{CELL}: attempt 1 of 3 lost its worker: WorkerCrashedError")
    run.wait_for("the end of the services", lambda: not set(services) & set(run.services()))
    assert run.ended() == 0, run.said
    assert f"[1/1] {CELL}: accuracy 0." in run.said
    assert "checks of 1 coordinators, each on its node, 0 violated" in run.said
    run.wait_until_alone()
    said = experiments("run", *ONE_CELL, "--methods", "fedavg", "--out", str(run.out), "--on", "ray", python=ray)
    assert said.count("(not run)") == 1
    experiments("run", *ONE_CELL, "--methods", "fedavg", "--out", str(tmp_path / "local"))
    digests = [read_tables(out).cells[0].model_digest for out in (run.out, tmp_path / "local")]
    assert digests[0] == digests[1] != ""


@pytest.mark.long
def test_an_interrupted_run_on_ray_leaves_no_process(ray: Path, tmp_path: Path) -> None:
    run = EngineRun(ray, tmp_path / "out", "--on", "ray")
    run.wait_for_fleet()
    run.process.send_signal(signal.SIGTERM)
    assert run.ended() == 1
    assert run.said.splitlines()[-1] == "qidpfl-experiments: stopped; run the same command again to continue"
    run.wait_until_alone()
    assert not ray_workers(CELL) and not (run.out / "cells").exists()
    # The worker had the time to remove what it had written.
    assert list(run.temporary.glob("qidpfl-cell-*")) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--cpus", "5000"), "a cell needs 5000 CPU, and Ray at local has"),
        (("--gpus", "900"), "a cell needs 900 GPU, and Ray at local has 0"),
        (("--address", "127.0.0.1:1"), "Ray at 127.0.0.1:1 cannot be used: "),
    ],
)
def test_what_ray_cannot_give_is_one_line_and_leaves_nothing(
    ray: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    out = tmp_path / "out"
    given = ("run", *ONE_CELL, "--methods", "fedavg", "--out", str(out), "--on", "ray", *options)
    said = experiments(*given, status=1, python=ray)
    assert said.splitlines()[-1].startswith(f"qidpfl-experiments: {message}") and "Traceback" not in said
    assert not out.exists()


# --- without the extras -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("engine", "module"), [("slurm", "submitit"), ("ray", "ray")])
def test_an_engine_that_is_not_installed_is_one_line(tmp_path: Path, engine: str, module: str) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / f"{module}.py").write_text("raise ImportError\n")
    out = tmp_path / "out"
    path = os.pathsep.join([str(hidden), *filter(None, [os.environ.get("PYTHONPATH")])])
    given = ("run", *ONE_CELL, "--methods", "fedavg", "--out", str(out), "--on", engine)
    said = experiments(*given, status=1, PYTHONPATH=path)
    assert said.splitlines()[-1].endswith(f"is not installed: pip install 'qidpfl-experiments[{engine}]'")
    assert "Traceback" not in said and not out.exists()
