"""Options of `serve` for trackers, and the export of a task to one."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..ops.open_store import opened_store
from ..tracking.open_trackers import mlflow, tensorboard, write_task
from .options import Where
from .tasks import task_named

Tensorboard = Annotated[
    Path | None,
    typer.Option(help="write every settled round to this folder for TensorBoard  [env: QIDPFL_TENSORBOARD]"),
]
Mlflow = Annotated[
    str | None,
    typer.Option(
        metavar="URI", help="write every settled round to MLflow, like http://host:5000  [env: QIDPFL_MLFLOW]"
    ),
]
Traces = Annotated[
    bool | None,
    typer.Option(
        "--traces", help="send OpenTelemetry traces to where OTEL_EXPORTER_OTLP_ENDPOINT says  [env: QIDPFL_TRACES]"
    ),
]


class ExportTarget(StrEnum):
    """Where an export goes."""

    FILES = "files"
    TENSORBOARD = "tensorboard"
    MLFLOW = "mlflow"


To = Annotated[ExportTarget, typer.Option("--to", help="files, or the figures of all rounds for a tracker")]
_SHOWN_BY = {
    ExportTarget.TENSORBOARD: "show them with: tensorboard --logdir DIR",
    ExportTarget.MLFLOW: "MLflow shows them in the experiment qidpfl, or in that of MLFLOW_EXPERIMENT_NAME",
}


def export_to_tracker(where: Where, task: str, to: ExportTarget, out: str) -> None:
    """Write the settled rounds of a task to a tracker, and say how many points were new there."""
    with opened_store(where.settings()) as store:
        task_id = store.read(lambda tx: task_named(tx, task)).task_id
        tracker = mlflow(out) if to is ExportTarget.MLFLOW else tensorboard(Path(out))
        written = write_task(store, task_id, tracker)
    print(f"{written} new points of task {task}; {_SHOWN_BY[to]}")
