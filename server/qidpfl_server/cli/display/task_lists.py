"""How `tasks list` and `tasks show` print tasks: with accuracy, money and epsilon; for people or as JSON."""

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from qidpfl_shared.core.money import MICRO
from qidpfl_shared.protocol.messages import TaskSummary, TaskView

from ...service.progress.results import TaskResults
from ...service.progress.waiting import Waiting

# Spaces between columns; the least width of a column that is folded.
_GAP = 2
_LEAST_FOLDED = 12

AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


def print_json(value: Any) -> None:
    """Print a value for programs."""
    print(json.dumps(value, indent=2))


def print_tasks(tasks: Sequence[tuple[TaskSummary, TaskResults]], *, as_json: bool) -> None:
    """A table on a terminal; else id, name, state and rounds, separated by tabs; or JSON with all results."""
    if as_json:
        print_json([task.model_dump(mode="json") | {"results": results.fields()} for task, results in tasks])
        return
    console = Console()
    if not console.is_terminal:
        for task, _ in tasks:
            print(task.task_id, task.name, task.state, f"{task.settled_rounds}/{task.horizon}", sep="\t")
        return
    print_table(
        console,
        ("name", "state", "rounds", "clients", "accuracy", "paid", "epsilon"),
        [
            (
                task.name,
                task.state.value,
                f"{task.settled_rounds}/{task.horizon}",
                str(task.clients),
                "–" if results.accuracy is None else f"{results.accuracy:.1%}",
                f"{task.paid_micro / MICRO:.2f}",
                "–" if results.epsilon is None else f"{results.epsilon:.3g}",
            )
            for task, results in tasks
        ],
    )


def print_table(console: Console, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table in which only the first column may be folded, so that no header and no digit is cut.

    Where the other columns do not fit, each row is printed as lines of its own.
    """
    filled = list(rows)
    sizes = [max(map(len, cells)) for cells in zip(headers, *filled, strict=True)]
    if sum(sizes[1:]) + _GAP * len(sizes) + min(sizes[0], _LEAST_FOLDED) > console.width:
        width = max(map(len, headers))
        print("\n\n".join("\n".join(f"{n:<{width}}  {c}" for n, c in zip(headers, row, strict=True)) for row in filled))
        return
    first, *others = headers
    columns = [Column(name, no_wrap=True, min_width=size) for name, size in zip(others, sizes[1:], strict=True)]
    table = Table(Column(first, overflow="fold"), *columns, box=None, padding=(0, _GAP, 0, 0))
    for row in filled:
        table.add_row(*row)
    console.print(table)


def print_task(view: TaskView, results: TaskResults, waiting: Waiting | None, *, as_json: bool) -> None:
    """A few lines on a terminal; else, or if wanted, JSON with the whole spec."""
    if as_json or not Console().is_terminal:
        print_json(view.model_dump(mode="json") | {"results": results.fields()})
        return
    spec = view.spec
    reason = "" if view.reason is None else f": {view.reason}"
    facts = {
        "task": f"{view.name} ({view.task_id})",
        "state": f"{view.state.value}{reason}",
        "waits for": None if waiting is None else waiting.in_words(),
        "rounds": f"{view.settled_rounds} of {view.horizon}",
        "clients": str(view.clients),
        "workload": f"{spec.workload.dataset}, network {spec.workload.network}, {spec.dimension} parameters",
        "accuracy": _accuracy(results),
        "money": f"paid {results.paid_micro / MICRO:.6f}, kept {results.kept_micro / MICRO:.6f}",
        "epsilon": "none yet" if results.epsilon is None else f"{results.epsilon:.4g} at delta {spec.privacy.delta:g}",
        "privacy": results.guarantee,
        "noise audit": ", ".join(f"{count} {verdict}" for verdict, count in results.verdicts.items()) or "nothing yet",
    }
    for name, fact in facts.items():
        if fact is not None:
            print(f"{name:<12} {fact}")
    print("The whole spec: tasks show --json")


def _accuracy(results: TaskResults) -> str:
    if results.accuracy is None or results.best_accuracy is None:
        return "not evaluated"
    return f"{results.accuracy:.1%} (best {results.best_accuracy:.1%})"
