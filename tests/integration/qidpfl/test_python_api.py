"""The Python API on live services: a testbed, its tables and chart, and a coordinator elsewhere."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pandas
import polars
import pytest

from qidpfl import Coordinator, InvalidTask, MissingExtra, Run, RunFailed, Task, Testbed
from qidpfl.progress import TaskProgress
from qidpfl_client.errors import Unauthenticated
from qidpfl_shared.protocol.messages import TaskState
from support.pages import ROOT, blocks

pytestmark = pytest.mark.live

CLIENTS, ROUNDS = 6, 3
# The noise of the histograms never makes a whole client look like one with two labels only.
TASK = Task.from_preset("digits").with_(horizon=ROUNDS, distance_threshold=1.3)


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    with Testbed(clients=CLIENTS, folder=tmp_path_factory.mktemp("bed")) as bed:
        yield bed


@pytest.fixture(scope="module")
def run(bed: Testbed) -> Run:
    return bed.run(TASK)


def test_a_run_has_its_tables(run: Run) -> None:
    assert run.task.state is TaskState.FINISHED and len(run.rounds) == ROUNDS and len(run.clients) == CLIENTS
    assert isinstance(run.rounds, pandas.DataFrame)
    assert run.rounds.epsilon.is_monotonic_increasing and run.rounds.accuracy.notna().all()
    assert run.epsilon == pytest.approx(run.clients.epsilon.max()) == pytest.approx(run.rounds.epsilon.iloc[-1])
    assert run.rounds.paid.sum() == pytest.approx(run.paid) == pytest.approx(run.clients.earned.sum())
    assert run.budgets.groupby("round_number").rho.sum().to_list() == pytest.approx(run.rounds.declared_total)
    refused = run.clients[run.clients.state == "refused"]
    assert list(refused.ordinal) == [2, 5] and refused.earned.sum() == 0
    assert str(run).startswith("Run digits: finished (horizon_reached), 3 rounds, accuracy 0.")


def test_the_same_tables_with_polars(run: Run) -> None:
    rounds = run.table("rounds", "polars")
    assert isinstance(rounds, polars.DataFrame) and rounds["paid"].sum() == pytest.approx(run.rounds.paid.sum())


def test_without_a_library_the_message_names_the_extras(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qidpfl.frames.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'qidpfl\[pandas\]' or pip install 'qidpfl\[polars\]'"):
        _ = run.rounds
    assert len(run.rows("rounds")) == ROUNDS


def test_a_chart_is_a_picture_for_notebooks_and_files(run: Run, tmp_path: Path) -> None:
    chart = run.plot(tmp_path / "deep" / "chart.png")
    assert (tmp_path / "deep" / "chart.png").read_bytes()[:4] == b"\x89PNG" == chart._repr_png_()[:4]
    titles = [axes.get_title() for axes in chart.axes]
    assert "Reward and payments" in titles and "Budgets: a lower privacy value sells more" in titles


def test_the_testbed_audits_itself(bed: Testbed, run: Run) -> None:
    assert bed.audit().endswith("0 violated")
    assert bed.dashboard.startswith("http://127.0.0.1:") and "#token=" in bed.dashboard


def test_the_clients_of_a_testbed_take_part_elsewhere(bed: Testbed, run: Run) -> None:
    token = bed.dashboard.partition("=")[2]
    with Coordinator(bed.coordinator.url, token) as viewer:
        assert viewer.read("digits").rounds.equals(run.rounds)
    with (
        Coordinator(bed.coordinator.url, bed._services.token(), progress=False) as coordinator,
        Testbed(clients=4, coordinator=coordinator) as clients,
    ):
        other = clients.run(TASK.with_(horizon=1), name="elsewhere")
        assert [task.name for task in coordinator.tasks()][-1] == other.task.name == "elsewhere"
        assert len(other.clients) == 4 and coordinator.wait("elsewhere").paid == other.paid > 0
        with pytest.raises(RunFailed, match="only the operator"):
            clients.audit()
        with pytest.raises(InvalidTask, match="has no task 'nothing'; it has digits, "):
            coordinator.read("nothing")


def test_a_wrong_token_is_one_readable_line(bed: Testbed) -> None:
    with Coordinator(bed.coordinator.url, "wrong-token-wrong-token") as coordinator, pytest.raises(Unauthenticated):
        coordinator.tasks()


def test_an_interrupted_run_leaves_no_task_that_waits(bed: Testbed, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(progress: TaskProgress) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TaskProgress, "look", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bed.run(TASK, name="interrupted")
    (task,) = [task for task in bed.coordinator.tasks() if task.name == "interrupted"]
    assert task.state is TaskState.STOPPED


def test_clients_that_cannot_train_end_with_their_last_line(bed: Testbed, tmp_path: Path) -> None:
    with (
        Testbed(clients=4, coordinator=bed.coordinator, device="cuda:99") as clients,
        pytest.raises(RunFailed, match=r"the fleet of .* ended with 1: qidpfl-client: device cuda"),
    ):
        clients.run(TASK)


def statements(text: str) -> list[str]:
    """The lines of a program without comments."""
    return [code for line in text.splitlines() if (code := line.partition("#")[0].rstrip())]


def test_ten_lines_lead_from_import_to_chart(tmp_path: Path) -> None:
    script = ROOT / "examples" / "ten_lines.py"
    assert len(statements(script.read_text())) - 1 <= 10
    began = time.monotonic()
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 120
    assert done.stdout.startswith("Run digits: finished") and not done.stderr
    assert (tmp_path / "results" / "ten-lines.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("page", ["docs/python.md", "qidpfl/README.md"])
def test_the_first_block_of_a_page_works(page: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the run it is the script above; the rest shows a finished task."""
    shown = statements(next(blocks(ROOT / page, "python")).text)
    _, *script = statements((ROOT / "examples" / "ten_lines.py").read_text())
    assert shown[:4] == script[:4] and shown[3] == "    run = bed.run(task)"
    monkeypatch.chdir(tmp_path)
    exec("\n".join(shown[4:]), {"run": run})
    assert (tmp_path / "run.png").is_file()


def test_the_page_changes_a_task(tmp_path: Path) -> None:
    _, changes, _ = blocks(ROOT / "docs" / "python.md", "python")
    exec(changes.text, {"task": TASK})


def test_the_page_runs_a_task_elsewhere(bed: Testbed, tmp_path: Path) -> None:
    *_, elsewhere = blocks(ROOT / "docs" / "python.md", "python")
    address = f'"{bed.coordinator.url}", token, progress=False'
    code = elsewhere.text.replace('"https://host:8443", token, server_ca="ca.pem"', address)
    names: dict[str, object] = {"token": bed._services.token()}
    block = threading.Thread(target=exec, args=[code, names])
    block.start()
    while "codes" not in names:
        assert block.is_alive()
        time.sleep(0.1)
    codes = tmp_path / "codes"
    codes.write_text("\n".join(names["codes"]))  # type: ignore[arg-type]
    command = [
        "-m",
        "qidpfl_client",
        "fleet",
        "--server",
        bed.coordinator.url,
        "--code-file",
        str(codes),
        "--clients",
        "10",
    ]
    subprocess.run([sys.executable, *command, "--public-data"], cwd=tmp_path, check=True, capture_output=True)
    block.join()
    assert isinstance(names["now"], Run) and names["now"].task.state is TaskState.FINISHED
