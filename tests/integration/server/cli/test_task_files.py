"""Task files: `tasks init` writes one that `tasks create --file` accepts; every mistake is one line."""

import json
import sys
from pathlib import Path

import pytest

from support.commands import server_command
from support.screens import on_a_terminal
from support.server_commands import output

pytestmark = pytest.mark.live

TABLE = ("--column", "age=0:100", "--column", "sex=f|m", "--label", "outcome", "--labels", "home,ward", "--owners", "3")


def created(state: Path, file: Path, *more: str) -> dict[str, object]:
    task_id, *codes = output("tasks", "create", "mine", "--file", file, "--state-dir", state, *more).split()
    assert len(codes) == 3
    spec: dict[str, object] = json.loads(output("tasks", "show", task_id, "--state-dir", state))["spec"]
    return spec


def test_init_asks_on_a_terminal_until_every_answer_is_possible(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "qidpfl_server", "tasks", "init", "mine.toml"]
    with on_a_terminal(command, tmp_path) as screen:
        screen.answer("the columns, with commas", "age")
        screen.wait_for("it must be columns such as")
        screen.answer("the columns, with commas", "age=0:100,sex=f|m")
        screen.answer("the column of the label [label]", "outcome")
        screen.answer("the names of the labels", "home")
        screen.wait_for("at least two names are needed")
        screen.answer("the names of the labels", "home, ward")
        screen.answer("the network", "deep")
        screen.wait_for("it must be linear")
        screen.answer("the network", "mlp")
        screen.answer("how many owners take part [3]", "one")
        screen.wait_for("it must be a whole number from 2 to 1000")
        screen.answer("how many owners take part [3]", "")
        screen.answer("how many rounds [20]", "5")
        assert screen.process.wait(60) == 0
        screen.wait_for("mine.toml is written")
    spec = created(tmp_path / "state", tmp_path / "mine.toml")
    assert spec["workload"]["network"] == "mlp" and spec["game"]["horizon"] == 5  # type: ignore[index]
    assert spec["data"]["label"]["names"] == ["home", "ward"]  # type: ignore[index]


def test_rounds_that_no_owner_can_sell_are_a_note(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    output("tasks", "init", file, *TABLE)
    made = server_command("tasks", "create", "fits", "--file", file, "--state-dir", tmp_path / "state")
    assert made.returncode == 0 and "lifetime" not in made.stderr
    file.write_text(file.read_text().replace("horizon = 20 ", "horizon = 200 "))
    made = server_command("tasks", "create", "mine", "--file", file, "--state-dir", tmp_path / "state")
    assert made.returncode == 0
    assert (
        "note: 200 rounds at rho_max 0.008 are rho 1.6, and an owner without --lifetime-rho spends 0.2" in made.stderr
    )
    assert "it stops after 25 rounds" in made.stderr


@pytest.mark.parametrize(
    ("answers", "labels"),
    [
        (TABLE, 2),
        ((*TABLE, "--network", "mlp", "--hidden", "8,4"), 2),
        (("--image", "28x28", "--labels", "no,yes", "--network", "lenet"), 2),
        (("--image", "32x24x3", "--labels", "no,yes"), 2),
        (("--column", "age=0:100", "--label", "days", "--bins", "1,7"), 3),
        (("--column", "age=0:100", "--label", "signs", "--label-sets", ",cough,cough;fever"), 3),
        (("--column", 'say "hi"=0:1', "--labels", "é,ß"), 2),
    ],
)
def test_what_init_writes_can_be_created(tmp_path: Path, answers: tuple[str, ...], labels: int) -> None:
    file = tmp_path / "mine.toml"
    said = output("tasks", "init", file, *answers)
    assert f"qidpfl-server tasks create mine --file {file}" in said
    assert file.read_text().count("#") > 10 and "reward_total_micro = 2_000_000_000 " in file.read_text()
    spec = created(tmp_path / "state", file)
    assert isinstance(spec["workload"], dict) and spec["workload"]["labels"] == labels
    assert spec["workload"]["partition"] is None


def test_an_own_model_gives_the_layout_and_version_0(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("from torch import nn\ndef Net(labels):\n    return nn.Linear(3, labels)\n")
    file, model = tmp_path / "mine.toml", f"{tmp_path / 'net.py'}:Net"
    output("tasks", "init", file, *TABLE, "--network", model)
    spec = created(tmp_path / "state", file, "--model", model)
    assert isinstance(spec["workload"], dict) and spec["workload"]["network"] == "net:Net"
    # The folder of the file is the operator's own business.
    assert str(tmp_path) not in json.dumps(spec)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("init", "FILE", "--labels", "a,b", "--owners", "3"), "say the columns"),
        (("init", "FILE", "--column", "age", "--labels", "a,b"), "must be NAME=LOW:HIGH or NAME=A|B|C"),
        (("init", "FILE", "--column", "age=9:1", "--labels", "a,b"), "low < high"),
        (("init", "FILE", "--image", "big", "--labels", "a,b"), "must be WIDTHxHEIGHT"),
        (("init", "FILE", "--column", "a=0:1", "--bins", "x"), "--bins must be numbers"),
        (("init", "FILE", "--column", "a=0:1", "--labels", "a,b", "--bins", "1"), "give one of --labels"),
        (("init", "FILE", "--column", "a=0:1", "--labels", "a,b", "--network", "lenet"), "does not accept records"),
        (("create", "mine"), "give exactly one of --preset and --file"),
        (("create", "mine", "--file", "FILE"), "cannot read"),
        (("create", "mine", "--preset", "digits", "--held-out", "x.csv"), "--held-out needs --file"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_file(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    file = tmp_path / "mine.toml"
    where = ("--state-dir", str(tmp_path / "state")) if arguments[0] == "create" else ()
    done = server_command("tasks", *(str(file) if part == "FILE" else part for part in arguments), *where)
    assert done.returncode == 1
    assert said in done.stderr and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[data", "is not TOML"),
        ("x = 1", "needs the tables [data] and [workload]"),
        ('[workload]\n[data.label]\nkind = "regression"', "Use kind bins with edges"),
        ('[workload]\nnetwork = "net:Net"\n[data.label]\nnames = ["a"]', "add --model path/to/FILE.py:Class"),
        ('[workload]\n[data.label]\nnames = ["a", "b"]', "either columns or an image"),
        ('requires = ["x"]\n[workload]\n[data.label]\nnames = ["a"]', "leave it out"),
        ('[workload]\n[data.image]\nwidth = 2\nheight = 2\n[data.label]\nnames = ["a"]\n[gane]\nhorizon = 3', "gane"),
    ],
)
def test_a_wrong_file_is_one_line_and_makes_no_task(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    where = ("--state-dir", tmp_path / "state")
    done = server_command("tasks", "create", "mine", "--file", tmp_path / "mine.toml", *where)
    assert done.returncode == 1
    assert said in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "state").exists()


def test_an_existing_file_is_not_replaced(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("mine")
    done = server_command("tasks", "init", file, *TABLE)
    assert done.returncode == 1 and "--force replaces it" in done.stderr
    assert file.read_text() == "mine"
