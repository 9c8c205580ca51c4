"""The commands `calibrate` and `plan`."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.planner.answers import AnswerStatus, Planner, PlannerAnswer
from qidpfl_shared.core.planner.noise_curve import NoiseCurve
from qidpfl_shared.protocol.presets import PRESETS, preset
from qidpfl_shared.protocol.task_spec import TaskSpec

from ...errors import CoordinatorError
from ...ops.calibrations import calibrate, read_calibration, write_calibration
from ...ops.scenarios import assumed_clients, exported_clients, parsed_range, scenario
from ..display.task_lists import AsJson, print_json
from ..options import guarded
from ..task_files import read_task_file
from .shown import answer_fields, draw_answer, print_answer

_FRONTIER_POINTS = 9


@guarded
def calibrate_command(
    exports: Annotated[list[Path], typer.Argument(metavar="EXPORT...", help="folders of exports of ended tasks")],
    out: Annotated[Path, typer.Option(help="the calibration file to write")],
) -> None:
    """Make a calibration for `plan` from ended tasks.

    The tasks must have the same data, network, mechanism and server step, and differ in their rewards. At least five
    are needed; repeats with the same rewards show how much single runs differ. Prints what the calibration covers.
    """
    found = calibrate(exports)
    curve = found.curve(found.rounds)
    write_calibration(found, out)
    low, high = curve.accuracies
    print(
        f"{out}: {curve.runs} runs of {found.rounds} rounds, noise {curve.noise_min:.4g} to {curve.noise_max:.4g},"
        f" accuracy {low:.4f} to {high:.4f}, single runs differ from the curve by {curve.spread:.4f}"
    )


@guarded
def plan_command(
    task: Annotated[
        str,
        typer.Option(help="a preset, a JSON file with a spec, task.json of an export, or a task file (TOML)"),
    ],
    calibration: Annotated[
        Path | None, typer.Option(help="file of `calibrate`; without it there is no accuracy")
    ] = None,
    target_accuracy: Annotated[
        float | None, typer.Option(min=0, max=1, help="what does this expected accuracy cost?")
    ] = None,
    money: Annotated[
        float | None, typer.Option(min=0, help="what does this money buy?  With --target-accuracy: a limit")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            min=0, help="what does this epsilon of the client that reveals most allow?  With another question: a limit"
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="number of rounds  [default: the task's]")] = None,
    clients: Annotated[int | None, typer.Option(min=2, max=10_000, help="how many  [default: the task's]")] = None,
    records: Annotated[int | None, typer.Option(min=1, help="records of each client  [default: equal parts]")] = None,
    privacy_values: Annotated[
        str | None,
        typer.Option(help="LOW:HIGH of the clients' privacy values  [default: the task's bounds]"),
    ] = None,
    clients_from: Annotated[
        Path | None, typer.Option(help="take the clients of this export instead of equal ones")
    ] = None,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.999, help="of the accuracy's interval")] = 0.9,
    png: Annotated[Path | None, typer.Option(help="draw the frontier into this file")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a task costs before it runs: money, rounds, epsilon, accuracy.

    Without a question it shows the task as it is. All rewards are multiplied by one factor; clients bid as the plan of
    the server expects. Below the answer stands the frontier: what more or less money buys. Where the calibration does
    not cover the question, the planner says so and the exit code is 1.
    """
    spec = _spec(task)
    if clients_from is not None:
        if clients or records or privacy_values:
            raise CoordinatorError("--clients-from says everything of the clients: leave the other options out")
        participants = exported_clients(spec, clients_from)
    else:
        values = None if privacy_values is None else parsed_range(privacy_values, "--privacy-values")
        participants = assumed_clients(spec, clients=clients, records=records, privacy_values=values)
    question = scenario(spec, participants, rounds)
    curve = None if calibration is None else _curve(calibration, spec, question.rounds, confidence)
    if target_accuracy is not None and curve is None:
        raise CoordinatorError("--target-accuracy needs --calibration, a file of `qidpfl-server calibrate`")
    planner = Planner(scenario=question, curve=curve)
    try:
        answer, limits = _answer(planner, target_accuracy, money, epsilon)
        frontier = planner.frontier(_FRONTIER_POINTS)
    except ImpossibleArgument as error:
        raise CoordinatorError(str(error)) from error
    if as_json:
        print_json(answer_fields(answer, frontier, curve, limits))
    else:
        print_answer(answer, frontier, limits)
    if png is not None:
        draw_answer(answer, frontier, png)
    if answer.status is not AnswerStatus.ANSWERED:
        print(f"qidpfl-server: no answer: {answer.detail}", file=sys.stderr)
        raise typer.Exit(1)


def _answer(
    planner: Planner, target: float | None, money: float | None, epsilon: float | None
) -> tuple[PlannerAnswer, dict[str, bool]]:
    """The answer to the first question; the others are limits, each with whether the answer keeps it."""
    if target is not None:
        answer, limits = planner.for_accuracy(target), {"money": money, "epsilon": epsilon}
    elif money is not None:
        answer, limits = planner.for_money(money), {"epsilon": epsilon}
    elif epsilon is not None:
        answer, limits = planner.for_epsilon(epsilon), {}
    else:
        answer, limits = planner.base(), {}
    if answer.outcome is None:
        return answer, {}
    reached = {"money": answer.outcome.money_micro / 1e6, "epsilon": answer.outcome.worst_epsilon}
    kept = {f"{name} {limit:g}": reached[name] <= limit for name, limit in limits.items() if limit is not None}
    return answer, kept


def _curve(path: Path, spec: TaskSpec, rounds: int, confidence: float) -> NoiseCurve:
    found = read_calibration(path)
    found.check_covers(spec)
    return found.curve(rounds, confidence)


def _spec(text: str) -> TaskSpec:
    """The task that an option names. Raises `CoordinatorError`."""
    path = Path(text)
    if text in PRESETS and not path.exists():
        return preset(text)
    if path.suffix == ".toml":
        return read_task_file(path, None)[0]
    try:
        told = json.loads(path.read_bytes())
        stated = told["spec"] if isinstance(told, dict) and "spec" in told else told
        return TaskSpec.model_validate(stated, extra="allow")
    except OSError as error:
        raise CoordinatorError(f"--task: {text} is neither a preset nor a readable file") from error
    except ValidationError:
        raise
    except ValueError as error:
        raise CoordinatorError(f"--task: {text} is not JSON: {error}") from error
