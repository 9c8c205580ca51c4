"""Own data on the command line: what does not fit is one line before enrolment; what fits is shown first."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from qidpfl_client.cli.app import app
from support.coordinators import Coordinator
from support.server_commands import output

pytestmark = pytest.mark.live

HEADER = "age,sex,outcome\n"
GOOD = HEADER + "50,f,home\n20,m,ward\n30,f,ward\n"
ANSWERS = {
    "table": ("--column", "age=0:100", "--column", "sex=f|m", "--label", "outcome", "--labels", "home,ward,garage"),
    "images": ("--image", "16x16", "--labels", "cat,dog", "--network", "lenet"),
    "model": ("--column", "age=0:100", "--label", "outcome", "--labels", "home,ward", "--network", "MODEL:Net"),
}
MODEL = "from torch import nn\ndef Net():\n    return nn.Linear(1, 2)\n"
MIXING = (
    "from torch import nn\ndef Net():\n    return nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))\n"
)
WIDER = "from torch import nn\ndef Net():\n    return nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 2))\n"


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with Coordinator(tmp_path_factory.mktemp("coordinator")) as live:
        yield live


@pytest.fixture(scope="module")
def codes(coordinator: Coordinator, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "net.py").write_text(MODEL)
    made = {"digits": coordinator.create_task("digits", rounds={"quiet_s": 3600.0, "enrolment_window_s": 3600.0})[1]}
    for name, answers in ANSWERS.items():
        given = [answer.replace("MODEL", str(folder / "net.py")) for answer in answers]
        file = folder / f"{name}.toml"
        output("tasks", "init", file, *given, "--owners", "3")
        model = ("--model", given[-1]) if name == "model" else ()
        made[name] = output(
            "tasks", "create", name, "--file", file, "--state-dir", coordinator.state_dir, *model
        ).split()[1]
    return made


Run = Callable[..., Result]


@pytest.fixture
def run(coordinator: Coordinator, codes: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)

    def ran(*arguments: object, task: str = "table") -> Result:
        given = ["--server", coordinator.url, "--code", codes[task], "--first-contact", "5"]
        return CliRunner().invoke(app, ["run", *given, *map(str, arguments)])

    return ran


@pytest.fixture(autouse=True)
def nothing_is_sent(coordinator: Coordinator, tmp_path: Path) -> Iterator[None]:
    yield
    with coordinator.admin as http:
        assert {task["clients"] for task in http.get("/v1/tasks").raise_for_status().json()} == {0}
    assert not list(tmp_path.glob("*.sqlite*"))


def failed_with(result: Result) -> str:
    """The one line of a command that failed; before it stand the limits only."""
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit), result.exception
    limits, line = result.stderr.splitlines()
    assert "limits: at most rho" in limits and line.startswith("qidpfl-client: ")
    return line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEADER + "50,f,ICU\n", "labels that the task does not have (it has home, ward, garage): ICU (1)"),
        ("years,sex,outcome\n50,f,home\n", "mine.csv lacks the column age; it has years, sex, outcome"),
        (HEADER + "50,f,home\nNaN,f,home\n", "mine.csv line 3: column 'age': 1 value is missing"),
        (HEADER + "old,f,home\n", "column 'age' is 'old', not a number"),
        ("", "mine.csv is empty"),
        (HEADER, "mine.csv has no records"),
    ],
)
def test_a_table_that_does_not_fit_is_one_line(run: Run, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "mine.csv").write_text(text)
    assert said in failed_with(run("--data", "mine.csv"))


def test_an_empty_folder_is_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    assert "the folder nothing is empty" in failed_with(run("--data", "nothing"))
    assert "the folder nothing is empty" in failed_with(run("--data", "nothing", task="images"))


def test_images_of_another_size_are_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "scans" / "cat").mkdir(parents=True)
    Image.new("L", (8, 8)).save(tmp_path / "scans" / "cat" / "one.png")
    assert "cat/one.png is 8x8, but the task takes 16x16" in failed_with(run("--data", "scans", task="images"))


@pytest.mark.parametrize(
    ("arguments", "task", "said"),
    [
        ((), "table", "takes the data of its owners: start with --data FOLDER|FILE"),
        (("--data", "good.csv"), "digits", "uses the data set 'digits' and states no features"),
        (("--data", "nowhere.csv"), "table", "there is no file or folder nowhere.csv"),
        (("--data", "good.csv"), "model", "add --model path/to/net.py:Net"),
        (("--data", "good.csv", "--model", "mixing.py:Net"), "model", "use GroupNorm"),
        (("--data", "good.csv", "--model", "wider.py:Net"), "model", "the digest of its layout is"),
        (("--data", "good.csv", "--model", "net.py:Net"), "table", "leave --model out"),
    ],
)
def test_data_and_model_must_be_those_of_the_task(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], task: str, said: str
) -> None:
    (tmp_path / "good.csv").write_text(GOOD)
    for name, text in (("net", MODEL), ("mixing", MIXING), ("wider", WIDER)):
        (tmp_path / f"{name}.py").write_text(text)
    assert said in failed_with(run(*arguments, task=task))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "net.py:Net"), "--model needs --data"),
        (("--data", "good.csv", "--workload", "a:B"), "give one of them"),
        (("--data", "good.csv", "--testbed-shard"), "leave --testbed-shard out"),
        (("--data", "good.csv", "--column", "age"), "must be YOURS=THE_TASKS"),
    ],
)
def test_options_that_contradict_each_other_are_one_line(run: Run, arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 1 and said in result.stderr and result.stderr.count("\n") == 1


def test_a_check_shows_what_would_be_sent_and_sends_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(GOOD.replace("age", "years").replace("ward", "station"))
    mapped = ("--column", "years=age", "--label-name", "station=ward")
    result = run("--data", "mine.csv", *mapped, "--check-only")
    assert result.exit_code == 0, result.stderr
    assert "3 records of 3 inputs" in result.stderr
    assert "note: you have no record of garage" in result.stderr
    assert "will be sent: the number of records" in result.stderr and "12 numbers" in result.stderr
    assert "will not be sent: records" in result.stderr
    assert "checked only, against " in result.stderr and "nothing was sent" in result.stderr
    assert not (tmp_path / "qidpfl-journal.sqlite").exists()


def test_a_table_comes_through_a_pipe(coordinator: Coordinator, codes: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "qidpfl_client", "run", "--server", coordinator.url, "--code", codes["table"]]
    done = subprocess.run(
        [*command, "--data", "-", "--check-only"], input=GOOD, capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    assert done.returncode == 0 and "3 records of 3 inputs" in done.stderr, done.stderr


def test_without_pyarrow_the_line_names_the_extra(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'qidpfl-client[parquet]'" in failed_with(run("--data", "mine.parquet"))
