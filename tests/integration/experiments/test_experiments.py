"""`qidpfl-experiments` on live services: all methods, custom methods, repeats, interruptions, failures."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from qidpfl_experiments.methods import BY_NAME, METHODS
from qidpfl_experiments.results.tables import Tables, read_tables
from qidpfl_experiments.testbed import services as live
from qidpfl_experiments.testbed.process import AuditFailed

pytestmark = pytest.mark.live

OWN = Path(__file__).parents[3] / "examples" / "own_rules.py"
SCALE = ("--dataset", "digits", "--scale", "smoke")
SMOKE = (*SCALE, "--partition", "quality-mix", "--seeds", "1")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "qidpfl_experiments", *arguments]


def done(*arguments: str, status: int = 0) -> str:
    ended = subprocess.run(command(*arguments), capture_output=True, text=True)
    assert ended.returncode == status, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


# The short form runs the methods that the tests compare with each other.
SOME = ("fedavg", "fedavg-select", "fedavg-dp", "qi-dpfl", "max", "blind-dp")
ALL = tuple(method.name for method in METHODS)
CALIBRATION_RUNS = 4


@pytest.fixture(
    scope="module", params=[pytest.param(SOME, id="some"), pytest.param(ALL, id="all", marks=pytest.mark.long)]
)
def methods(request: pytest.FixtureRequest) -> tuple[str, ...]:
    chosen: tuple[str, ...] = request.param
    return chosen


@pytest.fixture(scope="module")
def smoke(methods: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tables, str]:
    """These methods, a custom one, and one that cannot work, with one seed."""
    folder = tmp_path_factory.mktemp("experiments")
    broken = folder / "broken.py"
    broken.write_text("def select(question):\n    raise ValueError\n")
    own = ("--own", str(OWN), "--own", str(broken))
    out = folder / "smoke"
    said = done("run", *SMOKE, "--methods", ",".join(methods), *own, "--reproducible", "--out", str(out), status=1)
    return out, read_tables(out), said


def test_every_method_is_run_to_the_end(methods: tuple[str, ...], smoke: tuple[Path, Tables, str]) -> None:
    _, tables, _ = smoke
    finished = {row.method: row for row in tables.cells if row.state == "finished" and row.accuracy is not None}
    assert finished.keys() == {*methods, OWN.stem}
    kept = {name: row.selected for name, row in finished.items()}
    assert kept["fedavg"] == kept["fedavg-dp"] == kept["max"] == 6
    # In a quality mix of six clients, two hold two labels only.
    selecting = {kept[name] for name in ("qi-dpfl", "fedavg-select", "max-select", "blind", "blind-dp") if name in kept}
    assert len(selecting) == 1 and max(selecting) <= 4


def test_a_failing_cell_is_reported_and_the_rest_is_there(
    methods: tuple[str, ...], smoke: tuple[Path, Tables, str]
) -> None:
    out, tables, said = smoke
    assert "broken.seed-0: FAILED" in said
    cells = len(methods) + len(("own_rules", "broken")) + CALIBRATION_RUNS
    assert said.splitlines()[-1] == f"qidpfl-experiments: 1 of {cells} cells failed; the report lists them"
    assert [row.method for row in tables.cells if row.state == "failed"] == ["broken"]
    assert "select() raised ValueError" in (out / "report.html").read_text()
    assert f"the logs of failed cells are in {out / 'work'}" in said
    assert any("broken" in log.name for log in (out / "work").glob("*.log"))


def test_a_smaller_scale_is_reported_and_the_audit_is_clean(smoke: tuple[Path, Tables, str]) -> None:
    out, _, said = smoke
    assert "NOT the full experiment" in said
    assert re.search(r"audit of the coordinator: [1-9]\d+ checks, 0 violated", said)
    assert "Not at full scale" in (out / "README.md").read_text()


def test_tables_figures_claims_and_report_are_there(smoke: tuple[Path, Tables, str]) -> None:
    out, tables, _ = smoke
    finished = {row.method for row in tables.cells if row.state == "finished"}
    assert len(tables.rounds) == 3 * len(finished)
    assert {row.method for row in tables.clients} >= finished
    assert len(list((out / "figures").glob("*.png"))) >= 9
    report = (out / "report.html").read_text()
    assert OWN.stem in report and "<img" in report and "http://" not in report.replace("http://www.w3.org", "")
    assert (out / "claims.csv").read_text().count("\n") > 10


def test_the_seconds_of_a_round_are_split(smoke: tuple[Path, Tables, str]) -> None:
    _, tables, _ = smoke
    for row in tables.rounds:
        parts = row.training_s + row.http_s + row.settlement_s + row.evaluation_s
        assert parts == pytest.approx(row.wall_s, rel=0.05)
        assert min(row.training_s, row.http_s, row.settlement_s, row.evaluation_s) > 0


def test_all_methods_see_the_same_clients_and_pay_what_they_say(smoke: tuple[Path, Tables, str]) -> None:
    _, tables, _ = smoke
    finished = {row.method for row in tables.cells if row.state == "finished"}
    clients = [row for row in tables.clients if row.method in finished]
    profiles = {(row.ordinal, row.size, row.privacy_value, row.label_distance) for row in clients}
    assert len(profiles) == 6
    rewards = {row.method: [part.reward for part in tables.rounds if part.method == row.method] for row in tables.cells}
    assert rewards["fedavg-dp"] == rewards["blind-dp"] == rewards["qi-dpfl"]
    assert max(rewards["qi-dpfl"]) <= rewards["max"][0] == rewards["max"][1]
    for row in tables.cells:
        earned = sum(client.earned for client in tables.clients if client.method == row.method)
        assert earned == pytest.approx(row.paid, abs=1e-6)


def test_without_noise_nothing_is_guaranteed_and_nothing_paid(smoke: tuple[Path, Tables, str]) -> None:
    _, tables, _ = smoke
    for row in (row for row in tables.cells if row.state == "finished"):
        unprotected = row.method in BY_NAME and not BY_NAME[row.method].noise
        protected = "heuristic" if row.method.startswith("printed") else "proven"
        assert (row.epsilon is None) == (row.cost is None) == (row.reward == 0) == unprotected
        assert row.guarantee == ("none" if unprotected else protected)


def test_finished_cells_are_not_run_again(smoke: tuple[Path, Tables, str]) -> None:
    out, tables, _ = smoke
    before = {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()}
    said = done("run", *SMOKE, "--methods", "fedavg,qi-dpfl", "--reproducible", "--out", str(out))
    assert said.count("(not run)") == CALIBRATION_RUNS + 2
    assert {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()} == before
    assert read_tables(out) == tables


def test_the_report_of_a_run_that_was_cut_off_is_made_from_what_there_is(
    smoke: tuple[Path, Tables, str], tmp_path: Path
) -> None:
    out, tables, _ = smoke
    (tmp_path / "cells").mkdir()
    for name in ("config.json", "cells/digits.quality-mix.fedavg.seed-0.json"):
        (tmp_path / name).write_bytes((out / name).read_bytes())
    done("report", str(tmp_path))
    assert read_tables(tmp_path).cells == tuple(row for row in tables.cells if row.method == "fedavg")
    assert "FedAvg" in (tmp_path / "report.html").read_text()


def test_a_folder_without_results_has_no_report(tmp_path: Path) -> None:
    said = done("report", str(tmp_path), status=1)
    assert said == f"qidpfl-experiments: {tmp_path / 'config.json'}: No such file or directory\n"


@pytest.mark.long
def test_the_same_seed_gives_the_same_models_to_the_bit(smoke: tuple[Path, Tables, str], tmp_path: Path) -> None:
    _, tables, _ = smoke
    again = tmp_path / "again"
    done("run", *SMOKE, "--methods", "qi-dpfl", "--reproducible", "--jobs", "1", "--out", str(again))
    digests = {row.method: row.model_digest for row in tables.cells}
    assert [row.model_digest for row in read_tables(again).cells] == [digests["qi-dpfl"]]


def processes_of(out: Path) -> list[int]:
    """The processes that have this folder in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if str(out).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def cut_off(arguments: tuple[str, ...], after: str, number: signal.Signals) -> tuple[int, str]:
    """Send a signal as soon as a line begins like this; the exit status, and what was said in the end."""
    with subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None and run.stderr is not None
        assert any(line.startswith(after) for line in run.stdout)
        run.send_signal(number)
        run.stdout.read()
        complaint = run.stderr.read()
    return run.returncode, complaint


def wait_until_alone(out: Path) -> None:
    deadline = time.monotonic() + 60
    while processes_of(out) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_of(out) == []


@pytest.mark.long
def test_an_interrupted_run_leaves_no_process_and_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "interrupted"
    divided = ("--partition", "iid,dirichlet", "--seeds", "1")
    arguments = ("run", *SCALE, *divided, "--methods", "fedavg,fedavg-select", "--jobs", "1", "--out", str(out))
    stopped = cut_off(arguments, "[1/4] digits.iid.fedavg.seed-0: accuracy", signal.SIGINT)
    assert stopped == (1, "qidpfl-experiments: stopped; run the same command again to continue\n")
    wait_until_alone(out)
    killed, _ = cut_off(arguments, "[2/4] digits.iid.fedavg-select.seed-0: accuracy", signal.SIGKILL)
    assert killed == -signal.SIGKILL
    wait_until_alone(out)
    said = done(*arguments)
    assert said.count("(not run)") == 2
    assert len(re.findall(r"dirichlet\.fedavg.*\.seed-0: accuracy .* \(\d+ s\)", said)) == 2


@pytest.mark.long
def test_a_calibration_writes_a_file_that_a_coordinator_accepts(tmp_path: Path) -> None:
    out = tmp_path / "calibrated"
    said = done("calibrate", *SCALE, "--partition", "iid", "--reproducible", "--out", str(out))
    assert re.search(r"iid: accuracy = 0\.\d+ - .* for totals from .* to .*; rewards from .* to .*", said)
    file = out / "calibrated-iid.json"
    limits = json.loads(file.read_text())["game"]["reward_range"]
    state = tmp_path / "state"
    create = ["qidpfl_server", "tasks", "create", "mine", "--preset", "digits", "--overrides", f"@{file}"]
    subprocess.run([sys.executable, "-m", *create, "--state-dir", str(state)], check=True, capture_output=True)
    show = [sys.executable, "-m", "qidpfl_server", "tasks", "show", "mine", "--state-dir", str(state)]
    task = json.loads(subprocess.run(show, check=True, capture_output=True, text=True).stdout)
    assert task["spec"]["game"]["reward_range"] == limits


@pytest.mark.long
def test_the_learning_rate_is_chosen_on_validation_records(tmp_path: Path) -> None:
    out = tmp_path / "tuned"
    done("tune", *SCALE, "--partition", "iid", "--reproducible", "--out", str(out))
    rows = read_tables(out).tuning
    assert [row.learning_rate for row in rows] == [1.0, 3.0]
    # Of 240 validation records one half decides and the other is reported.
    assert all(row.accuracy is not None and (row.accuracy * 120).is_integer() for row in rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--methods", "best"), "there is no method 'best'"),
        (("--partition", "odd"), "there is no partition 'odd'"),
        (("--scale", "tiny"), "there is no scale of digits 'tiny'"),
        (("--variant", "fast"), "there is no variant 'fast'"),
        (("--own", "nowhere.py"), "nowhere.py: No such file or directory"),
        (("--settings", "nowhere.toml"), "nowhere.toml: No such file or directory"),
        (("--methods", ","), "a list of names is empty"),
        (
            ("--own", str(OWN), "--own", str(OWN)),
            "two files have the name own_rules",
        ),
    ],
)
def test_bad_input_gets_one_line_and_leaves_nothing(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    out = tmp_path / "out"
    said = done("run", "--dataset", "digits", *arguments, "--out", str(out), status=1)
    assert said.startswith(f"qidpfl-experiments: {message}") and said.count("\n") == 1
    assert not out.exists()


def test_missing_data_get_one_line_and_leave_nothing(tmp_path: Path) -> None:
    (tmp_path / "MNIST").write_text("not a folder")
    out = tmp_path / "out"
    said = done("run", "--dataset", "mnist", "--data-dir", str(tmp_path), "--out", str(out), status=1)
    assert said.splitlines()[-1].startswith("qidpfl-experiments: ")
    assert "Traceback" not in said and not out.exists()


def test_settings_that_no_task_can_have_leave_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = done("run", "--dataset", "cifar10", "--variant", "paper-rigorous", "--out", str(out), status=1)
    assert said.splitlines()[-1] == "qidpfl-experiments: bolt_on is proven for convex workloads only"
    assert not out.exists()


def test_heuristic_noise_is_announced(tmp_path: Path) -> None:
    (tmp_path / "full").touch()
    said = done("run", *SCALE, "--variant", "paper-literal", "--out", str(tmp_path), status=1)
    assert "HEURISTIC noise, no privacy guarantee: paper_literal proves less than declared" in said
    assert "is not empty and holds no results" in said.splitlines()[-1]


def test_a_failed_audit_ends_the_run_and_keeps_its_state(tmp_path: Path) -> None:
    with live.LocalServices(live.Placement(work=tmp_path)) as testbed:
        testbed.api.create_task("mine", preset="digits")
        assert "0 violated" in testbed.audit()
        with closing(sqlite3.connect(tmp_path / "coordinator" / "coordinator.db")) as books, books:
            books.execute("UPDATE tasks SET state = 'finished'")
        with pytest.raises(AuditFailed, match=f"violated; its state is kept in {tmp_path}"):
            testbed.audit()
