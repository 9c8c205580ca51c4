"""How `plan` shows its answer: as a table, as JSON, and as a chart."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from qidpfl_shared.core.money import from_micro
from qidpfl_shared.core.planner.answers import AnswerStatus, PlannedOutcome, PlannerAnswer
from qidpfl_shared.core.planner.noise_curve import NoiseCurve

from ...errors import CoordinatorError
from ..display.task_lists import print_table

_HEADERS = ("plan", "money", "rounds", "epsilon", "accuracy", "interval", "noise", "reward")


def outcome_fields(outcome: PlannedOutcome) -> dict[str, Any]:
    """An outcome as JSON."""
    predicted, rounds = outcome.accuracy, outcome.played.rounds
    return {
        "money_micro": outcome.money_micro,
        "rounds": len(rounds),
        "worst_epsilon": outcome.worst_epsilon,
        "worst_rho": outcome.worst_rho,
        "accuracy": None
        if predicted is None
        else {"low": predicted.low, "expected": predicted.expected, "high": predicted.high},
        "noise": outcome.noise,
        "reward_factor": outcome.factor,
        "reward_micro": [one.reward_micro for one in rounds],
        "invited": [one.invited for one in rounds],
        "status": outcome.played.status.value,
    }


def answer_fields(
    answer: PlannerAnswer, frontier: Sequence[PlannedOutcome], curve: NoiseCurve | None, kept: Mapping[str, bool]
) -> dict[str, Any]:
    """The whole answer as JSON."""
    return {
        "status": answer.status.value,
        "detail": answer.detail,
        "answer": None if answer.outcome is None else outcome_fields(answer.outcome),
        "limits_kept": dict(kept),
        "frontier": [outcome_fields(outcome) for outcome in frontier],
        "calibration": None
        if curve is None
        else {
            "runs": curve.runs,
            "noise": [curve.noise_min, curve.noise_max],
            "accuracy": list(curve.accuracies),
            "spread": curve.spread,
        },
    }


def print_answer(answer: PlannerAnswer, frontier: Sequence[PlannedOutcome], kept: Mapping[str, bool]) -> None:
    """The answer and the frontier as a table."""
    rows = [("answer", answer.outcome)] if answer.outcome is not None else []
    rows += [("frontier", outcome) for outcome in frontier]
    if rows:
        print_table(Console(), _HEADERS, [_row(name, outcome) for name, outcome in rows])
    for limit, holds in kept.items():
        print(f"{limit}: {'kept' if holds else 'exceeded by this answer'}")
    if answer.status is AnswerStatus.ANSWERED and answer.outcome is not None and answer.outcome.accuracy is None:
        print("no accuracy: there is no calibration, or it does not cover this noise")


def _row(name: str, outcome: PlannedOutcome) -> tuple[str, ...]:
    predicted, rounds = outcome.accuracy, outcome.played.rounds
    first, last = (from_micro(rounds[place].reward_micro) for place in (0, -1))
    return (
        name,
        f"{from_micro(outcome.money_micro):.2f}",
        str(len(rounds)),
        f"{outcome.worst_epsilon:.3g}",
        "–" if predicted is None else f"{predicted.expected:.1%}",
        "–" if predicted is None else f"{predicted.low:.1%} to {predicted.high:.1%}",
        f"{outcome.noise:.3g}",
        f"{first:.2f} to {last:.2f}",
    )


def draw_answer(answer: PlannerAnswer, frontier: Sequence[PlannedOutcome], path: Path) -> None:
    """A chart of the frontier: accuracy with its interval and ε by money. Raises `CoordinatorError`."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CoordinatorError("--png needs matplotlib: install the extra plot, qidpfl-server[plot]") from error
    known = [outcome for outcome in frontier if outcome.accuracy is not None]
    if not known:
        raise CoordinatorError("--png needs a calibration that covers the task")
    chart = Figure(figsize=(7, 6), layout="constrained")
    accuracy, epsilon = chart.subplots(2, 1, sharex=True)
    money = [from_micro(outcome.money_micro) for outcome in known]
    low, expected, high = zip(
        *((one.low, one.expected, one.high) for outcome in known if (one := outcome.accuracy) is not None), strict=True
    )
    accuracy.plot(money, expected, marker=".", label="expected")
    accuracy.fill_between(money, low, high, alpha=0.25, label="interval")
    epsilon.plot(money, [outcome.worst_epsilon for outcome in known], marker=".")
    if answer.outcome is not None:
        for axes in (accuracy, epsilon):
            axes.axvline(from_micro(answer.outcome.money_micro), linestyle="--", color="black", label="answer")
    accuracy.set_ylabel("accuracy")
    accuracy.legend()
    epsilon.set_ylabel("ε of the client that reveals most")
    epsilon.set_xlabel("money")
    try:
        chart.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise CoordinatorError(f"--png: cannot write {path}: {error}") from error
