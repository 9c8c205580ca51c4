"""Calibrations: the noise and the accuracy of tasks that have ended, from their exports, in one JSON file.

The file has data only. The curve is fitted when the file is used, for the number of rounds in question.
"""

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from qidpfl_shared.core.planner.noise_curve import NoCurve, NoiseCurve, fit_noise_curve, mean_noise
from qidpfl_shared.durable_files import write_durably
from qidpfl_shared.protocol.fields import Message, Tuple
from qidpfl_shared.protocol.messages import TaskState
from qidpfl_shared.protocol.task_spec import TaskSpec

from ..errors import CoordinatorError

# The largest file that is read: thousands of runs.
_LARGEST_BYTES = 64 << 20
Noise = Annotated[float, Field(gt=0, le=1e9)]
Accuracy = Annotated[float, Field(ge=0, le=1)]


class CalibrationRun(Message):
    """One task that has ended: the noise and the accuracy of each settled round."""

    task: str = Field(max_length=200)
    noise: Tuple[Noise] = Field(min_length=1, max_length=1_000_000)
    accuracy: Tuple[Accuracy | None] = Field(min_length=1, max_length=1_000_000)


class CalibrationFile(Message):
    """Runs under the same conditions: the same data, model, local computation and server step.

    Clients, partition, weights, rewards and market may differ: they act through the noise of the average.
    """

    format: Literal["qidpfl-calibration-1"] = "qidpfl-calibration-1"
    conditions: dict[str, Any]
    runs: Tuple[CalibrationRun] = Field(min_length=1, max_length=100_000)

    @property
    def rounds(self) -> int:
        """The rounds of the longest run."""
        return max(len(run.noise) for run in self.runs)

    def curve(self, rounds: int, confidence: float = 0.9) -> NoiseCurve:
        """The accuracy after so many rounds by the noise until then. Raises `CoordinatorError`."""
        points = [
            (mean_noise(run.noise[:rounds]), accuracy)
            for run in self.runs
            if len(run.noise) >= rounds and (accuracy := run.accuracy[rounds - 1]) is not None
        ]
        try:
            return fit_noise_curve(
                noises=[noise for noise, _ in points],
                accuracies=[accuracy for _, accuracy in points],
                confidence=confidence,
            )
        except NoCurve as error:
            raise CoordinatorError(f"the calibration says nothing of {rounds} rounds: {error}") from error

    def check_covers(self, spec: TaskSpec) -> None:
        """Raise `CoordinatorError` if the task learns under other conditions than the runs."""
        wanted = conditions_of(spec)
        different = [name for name in wanted if wanted[name] != self.conditions.get(name)]
        if different:
            named = ", ".join(
                f"{name} {json.dumps(self.conditions.get(name))}, the task has {json.dumps(wanted[name])}"
                for name in different[:3]
            )
            raise CoordinatorError(f"the calibration does not cover this task. Its runs have {named}")


def conditions_of(spec: TaskSpec) -> dict[str, Any]:
    """What must be the same in all runs of a calibration and in the task in question."""
    facts = spec.facts()
    workload, step = facts["workload"], facts["aggregation"]
    names = ("learning_rate", "momentum", "rule", "trim", "post_processing", "cutoff")
    return {
        "data": [workload.get(name) for name in ("dataset", "labels", "training_records", "validation_records")],
        "own_data": facts.get("data"),
        "network": [workload["network"], workload.get("hidden"), spec.dimension],
        "mechanism": facts["privacy"]["mechanism"],
        "server_step": {name: step[name] for name in names if step.get(name) is not None},
    }


def calibrate(folders: Sequence[Path]) -> CalibrationFile:
    """The calibration of exports of ended tasks. Raises `CoordinatorError` if one cannot be used."""
    runs, conditions, first = list[CalibrationRun](), dict[str, Any](), Path()
    for folder in folders:
        spec, run = _run(folder)
        found = conditions_of(spec)
        if runs and found != conditions:
            different = next(name for name in found if found[name] != conditions[name])
            raise CoordinatorError(f"{folder} and {first} have another {different}: calibrate them separately")
        if not runs:
            conditions, first = found, folder
        runs.append(run)
    return CalibrationFile(conditions=conditions, runs=tuple(runs))


def write_calibration(calibration: CalibrationFile, path: Path) -> None:
    """Write a calibration as a whole file."""
    write_durably(path, f"{json.dumps(calibration.model_dump(mode='json'), indent=1)}\n".encode(), mode=0o644)


def read_calibration(path: Path) -> CalibrationFile:
    """Read a calibration. Raises `CoordinatorError`."""
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise CoordinatorError(f"{path} is larger than any calibration")
        return CalibrationFile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise CoordinatorError(f"cannot read {path}: {error.strerror or error}") from error
    except ValidationError as error:
        where = "/".join(map(str, error.errors()[0]["loc"]))
        raise CoordinatorError(f"{path} is not a calibration of `qidpfl-server calibrate`: {where}") from error


def exported_task(folder: Path) -> tuple[TaskSpec, dict[str, Any]]:
    """The spec and the summary of an exported task. Raises `CoordinatorError`."""
    try:
        told = json.loads((folder / "task.json").read_bytes())
        return TaskSpec.model_validate(told["spec"], extra="allow"), told
    except OSError as error:
        raise CoordinatorError(f"{folder} is no export of a task: {error.strerror or error}: task.json") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CoordinatorError(f"{folder}/task.json is not that of an export of a task") from error


def exported_table(folder: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a table of an export, CSV or JSON. Empty fields are None. Raises `CoordinatorError`."""
    try:
        if (folder / f"{name}.json").exists():
            return list(json.loads((folder / f"{name}.json").read_bytes()))
        with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            return [{key: value or None for key, value in row.items()} for row in csv.DictReader(file)]
    except (OSError, ValueError, TypeError) as error:
        raise CoordinatorError(f"cannot read the table {name} of {folder}: {error}") from error


def _run(folder: Path) -> tuple[TaskSpec, CalibrationRun]:
    spec, told = exported_task(folder)
    if told.get("state") not in [state.value for state in TaskState if state.ended]:
        raise CoordinatorError(f"the task of {folder} has not ended: a calibration needs ended tasks")
    rows = [row for row in exported_table(folder, "rounds") if row.get("state") == "settled"]
    if rows and "noise" not in rows[0]:
        raise CoordinatorError(f"{folder} was written by an earlier version: export the task again")
    try:
        noise = tuple(_number(row["noise"]) for row in rows)
        accuracy = tuple(_number(row["accuracy"]) for row in rows)
        if not rows or None in noise or accuracy[-1] is None:
            raise CoordinatorError(f"the task of {folder} has no settled round with noise and accuracy")
        return spec, CalibrationRun.model_validate(
            {"task": str(told.get("name"))[:200], "noise": noise, "accuracy": accuracy}
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CoordinatorError(f"the rounds of {folder} have impossible numbers") from error


def _number(value: object) -> float | None:
    number = None if value is None else float(str(value))
    return None if number is None or not math.isfinite(number) else number
