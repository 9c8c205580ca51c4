"""`calibrate` and `plan`: from exports of ended tasks to an answer, and one line for what has no answer."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from qidpfl_server.cli.app import app
from qidpfl_server.ops.calibrations import read_calibration
from qidpfl_server.ops.export import read_export, write_export
from qidpfl_server.ops.tables import TableFormat
from qidpfl_shared.core.planner.play import noise_of_average, play_task
from qidpfl_shared.core.round_rules import Participant
from qidpfl_shared.protocol.presets import preset
from support.use_cases import RHO, UseCases

pytestmark = pytest.mark.slow

ROUNDS = 20


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def exported(folder: Path, noise: float, accuracy: float, **changes: Any) -> Path:
    """An export as `qidpfl-server export` writes it, of a task whose noise falls a little in each round."""
    folder.mkdir(parents=True)
    spec = preset("digits", changes.pop("overrides", {}))
    told = {"name": folder.name, "state": "finished", "spec": spec.facts()} | changes
    (folder / "task.json").write_text(json.dumps(told))
    with (folder / "rounds.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["round_number", "state", "noise", "accuracy"])
        for number in range(1, ROUNDS + 1):
            table.writerow([number, "settled", noise * (1.2 - 0.01 * number), accuracy - 0.005 * (ROUNDS - number)])
    return folder


def exports_in(folder: Path) -> list[Path]:
    """Three repeats of five rewards, on a known curve."""
    rng = np.random.default_rng(1)
    return [
        exported(folder / f"run-{place}-{draw}", noise, 0.9 - 0.2 * noise**1.5 + 0.003 * rng.standard_normal())
        for place, noise in enumerate((0.25, 0.35, 0.5, 0.7, 0.9))
        for draw in range(3)
    ]


@pytest.fixture
def exports(tmp_path: Path) -> list[Path]:
    return exports_in(tmp_path)


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibration")
    done = run("calibrate", *exports_in(folder), "--out", folder / "calibration.json")
    assert done.exit_code == 0, done.output
    return folder / "calibration.json"


def planned(calibration: Path, *options: str) -> dict[str, Any]:
    done = run("plan", "--task", "digits", "--calibration", calibration, *options, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def refused(*arguments: str | Path) -> str:
    """The one line of a command that fails."""
    done = run(*arguments)
    assert done.exit_code == 1 and done.stdout == "", done.output
    (line,) = done.stderr.splitlines()
    return line


def test_calibrate_says_what_it_covers(exports: list[Path], tmp_path: Path) -> None:
    done = run("calibrate", *exports, "--out", tmp_path / "calibration.json")
    assert "15 runs of 20 rounds, noise 0.27" in done.stdout
    assert len(read_calibration(tmp_path / "calibration.json").runs) == 15


def test_the_answer_for_an_accuracy_has_money_rounds_epsilon_and_an_interval(calibration: Path) -> None:
    found = planned(calibration, "--target-accuracy", "0.8")
    answer = found["answer"]
    assert answer["accuracy"]["expected"] == pytest.approx(0.8, abs=1e-4)
    assert answer["accuracy"]["low"] < 0.8 < answer["accuracy"]["high"]
    assert answer["rounds"] == ROUNDS == len(answer["reward_micro"])
    assert answer["money_micro"] == sum(answer["reward_micro"]) and answer["worst_epsilon"] > 0
    costs = [one["money_micro"] for one in found["frontier"]]
    assert costs == sorted(costs) and len(costs) > 3


def test_fewer_rounds_are_planned_from_the_beginning_of_the_same_runs(calibration: Path) -> None:
    found = planned(calibration, "--rounds", "10")
    assert found["answer"]["rounds"] == 10
    # The runs are 5 points below their end after half of the rounds.
    (all_rounds,) = [planned(calibration)["calibration"]["accuracy"]]
    assert found["calibration"]["accuracy"][1] == pytest.approx(all_rounds[1] - 0.05, abs=1e-6)


def test_other_figures_are_limits_of_the_answer(calibration: Path) -> None:
    found = planned(calibration, "--target-accuracy", "0.8", "--money", "1", "--epsilon", "1000")
    assert found["limits_kept"] == {"money 1": False, "epsilon 1000": True}


def test_money_and_epsilon_are_questions_without_a_calibration_too() -> None:
    for option, value, field in (("--money", 100.0, "money_micro"), ("--epsilon", 8.0, "worst_epsilon")):
        done = run("plan", "--task", "digits", option, str(value), "--json")
        answer = json.loads(done.stdout)["answer"]
        unit = 1e6 if field == "money_micro" else 1
        assert answer[field] / unit == pytest.approx(value, rel=1e-4) and answer["accuracy"] is None


def test_the_table_has_the_answer_and_the_frontier(calibration: Path) -> None:
    done = run("plan", "--task", "digits", "--calibration", calibration, "--target-accuracy", "0.8")
    assert done.exit_code == 0 and "answer" in done.stdout and done.stdout.count("frontier") > 3


def test_a_chart_is_written(calibration: Path, tmp_path: Path) -> None:
    done = run("plan", "--task", "digits", "--calibration", calibration, "--png", tmp_path / "plan.png")
    assert done.exit_code == 0 and (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_a_question_outside_the_calibration_is_not_answered(calibration: Path) -> None:
    done = run("plan", "--task", "digits", "--calibration", calibration, "--target-accuracy", "0.99", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["status"] == "outside_calibration"
    assert "outside what the calibration covers" in done.stderr


def test_a_calibration_of_another_server_step_is_refused(calibration: Path, tmp_path: Path) -> None:
    spec = preset("digits", {"aggregation": {"learning_rate": 1.0}})
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    line = refused("plan", "--task", tmp_path / "spec.json", "--calibration", calibration)
    assert "does not cover this task" in line and "server_step" in line


@pytest.mark.parametrize("changes", [{"aggregation": {"weighting": "optimal"}}, {"game": {"accuracy_weight": 0.3}}])
def test_weights_and_rewards_may_differ_from_those_of_the_runs(
    calibration: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    (tmp_path / "spec.json").write_text(preset("digits", changes).model_dump_json())
    assert run("plan", "--task", tmp_path / "spec.json", "--calibration", calibration).exit_code == 0


def test_runs_under_different_conditions_make_no_calibration(exports: list[Path], tmp_path: Path) -> None:
    other = exported(tmp_path / "other", 0.4, 0.8, overrides={"aggregation": {"momentum": 0.1}})
    line = refused("calibrate", *exports, other, "--out", tmp_path / "calibration.json")
    assert "another server_step" in line and not (tmp_path / "calibration.json").exists()


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (("mnist-paper",), "--privacy-values"),
        (("nothing-here",), "neither a preset nor a readable file"),
        (("digits", "--target-accuracy", "0.8"), "--calibration"),
        (("digits", "--privacy-values", "2:1"), "LOW:HIGH"),
        (("digits", "--rounds", "21"), "horizon"),
        (("digits", "--calibration", "/nowhere/at-all.json"), "cannot read"),
        (("digits", "--clients", "5", "--clients-from", "/nowhere"), "leave the other options out"),
    ],
)
def test_what_cannot_be_planned_is_one_line(task: Sequence[str], said: str) -> None:
    assert said in refused("plan", "--task", *task)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "task.json").unlink(),
        lambda folder: (folder / "task.json").write_text("{"),
        lambda folder: (folder / "rounds.csv").write_text("round_number,state,accuracy\n1,settled,0.5\n"),
        lambda folder: (folder / "rounds.csv").write_text("round_number,state,noise,accuracy\n1,settled,0.5,much\n"),
        lambda folder: (folder / "rounds.csv").write_text("round_number,state,noise,accuracy\n1,settled,0.5,\n"),
    ],
    ids=["missing", "broken", "earlier version", "no number", "not evaluated"],
)
def test_an_export_that_cannot_be_used_is_named_in_one_line(exports: list[Path], tmp_path: Path, spoil: Any) -> None:
    spoil(exports[3])
    assert str(exports[3]) in refused("calibrate", *exports, "--out", tmp_path / "calibration.json")


def test_a_task_that_has_not_ended_is_no_calibration(exports: list[Path], tmp_path: Path) -> None:
    open_task = exported(tmp_path / "open", 0.4, 0.8, state="training")
    assert "has not ended" in refused("calibrate", *exports, open_task, "--out", tmp_path / "calibration.json")


@pytest.mark.parametrize("text", ["{}", "[]", "nonsense", '{"format": "qidpfl-calibration-2"}'])
def test_a_file_that_is_no_calibration_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "calibration.json").write_text(text)
    line = refused("plan", "--task", "digits", "--calibration", tmp_path / "calibration.json")
    assert "is not a calibration" in line


@pytest.mark.parametrize("aggregation", [{}, {"weighting": "uniform"}, {"weighting": "inverse_variance"}])
def test_an_export_has_the_noise_that_the_planner_expects(
    cases: UseCases, tmp_path: Path, aggregation: dict[str, Any]
) -> None:
    task, clients = cases.training(game={"horizon": 2}, aggregation=aggregation)
    for number in (1, 2):
        task.play(clients, number)
    write_export(read_export(cases.store, task.task_id), tmp_path / "out", TableFormat.CSV)
    with (tmp_path / "out" / "rounds.csv").open() as file:
        found = [float(row["noise"]) for row in csv.DictReader(file)]
    participants = [Participant(privacy_value=1.0, size=110)] * 3
    expected = noise_of_average(rules=task.now.spec.round_rules(), participants=participants, budgets=[RHO] * 3)
    assert found == pytest.approx([expected] * 2, rel=1e-9)


def test_the_clients_of_an_export_can_be_planned_with(cases: UseCases, tmp_path: Path) -> None:
    task, clients = cases.training(game={"horizon": 2})
    for number in (1, 2):
        task.play(clients, number)
    write_export(read_export(cases.store, task.task_id), tmp_path / "out", TableFormat.JSON)
    done = run("plan", "--task", tmp_path / "out" / "task.json", "--clients-from", tmp_path / "out", "--json")
    participants = [Participant(privacy_value=1.0, size=110, remaining_rho=2.9)] * 3
    expected = play_task(rules=task.now.spec.round_rules(), participants=participants, rounds=2)
    assert json.loads(done.stdout)["answer"]["money_micro"] == expected.money_micro == 2 * task.round().reward_micro
