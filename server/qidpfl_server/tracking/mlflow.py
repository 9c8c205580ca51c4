"""MLflow: one run per task, in the experiment of MLFLOW_EXPERIMENT_NAME or `qidpfl`.

A tag of the run names the task, so that a restarted coordinator finds it again and adds only what it lacks.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..clock import SECOND
from ..domain import Task
from ..errors import CoordinatorError
from .series import Point

# Before the import: no usage data leave the coordinator, no search for git, and no retries for minutes.
for _variable, _value in {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}.items():
    os.environ.setdefault(_variable, _value)

from mlflow.entities import Metric, Param  # noqa: E402
from mlflow.tracking import MlflowClient  # noqa: E402

_TASK_ID = "qidpfl.task_id"
_METRICS_AT_ONCE, _PARAMS_AT_ONCE = 1000, 100
_LONGEST_PARAM = 500
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


class Mlflow:
    """A tracking store of MLflow: a server, or a database such as sqlite:///mlflow.db."""

    name = "mlflow"

    def __init__(self, uri: str) -> None:
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        if "://" not in uri:
            raise CoordinatorError("--mlflow needs a tracking URI, such as http://host:5000 or sqlite:///mlflow.db")
        self._uri = uri
        self._client: MlflowClient | None = None

    def open(self, task: Task) -> "MlflowRun":
        """The run of a task."""
        with _readable(self._uri):
            return self._open(task)

    def _open(self, task: Task) -> "MlflowRun":
        # The first use of a store connects to it: done here, because `open` is tried again after an error.
        self._client = client = self._client or MlflowClient(tracking_uri=self._uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "qidpfl")
        experiment = client.get_experiment_by_name(name)
        experiment_id = client.create_experiment(name) if experiment is None else experiment.experiment_id
        found = client.search_runs([experiment_id], f"tags.`{_TASK_ID}` = '{task.task_id}'", max_results=1)
        if found:
            return MlflowRun(client, found[0].info.run_id, self._uri)
        tags = {_TASK_ID: task.task_id, "qidpfl.preset": task.preset or "", "qidpfl.spec_digest": task.spec_digest}
        run = client.create_run(experiment_id, start_time=_millis(task.opened_at), tags=tags, run_name=task.name)
        params = [Param(key, value) for key, value in _params(task)]
        for first in range(0, len(params), _PARAMS_AT_ONCE):
            client.log_batch(run.info.run_id, params=params[first : first + _PARAMS_AT_ONCE])
        return MlflowRun(client, run.info.run_id, self._uri)


class MlflowRun:
    """The run of one task."""

    def __init__(self, client: MlflowClient, run_id: str, uri: str) -> None:
        self._client = client
        self._run_id = run_id
        self._uri = uri

    def known(self) -> set[tuple[str, int]]:
        """The series and steps that the store has."""
        with _readable(self._uri):
            series = self._client.get_run(self._run_id).data.metrics
            histories = {name: self._client.get_metric_history(self._run_id, name) for name in series}
        return {(name, metric.step) for name, metrics in histories.items() for metric in metrics}

    def write(self, points: Sequence[Point]) -> None:
        """Send the points in batches."""
        metrics = [Metric(point.series, point.value, _millis(point.at), point.step) for point in points]
        with _readable(self._uri):
            for first in range(0, len(metrics), _METRICS_AT_ONCE):
                self._client.log_batch(self._run_id, metrics=metrics[first : first + _METRICS_AT_ONCE])

    def end(self, task: Task) -> None:
        """Set status, end and reason."""
        status, ended_at = _STATUS[task.state], task.ended_at or task.opened_at
        with _readable(self._uri):
            if self._client.get_run(self._run_id).info.status != status:
                self._client.set_tag(self._run_id, "qidpfl.reason", task.reason or "")
                self._client.set_terminated(self._run_id, status, _millis(ended_at))

    def close(self) -> None:
        """MLflow closes its connections itself."""


@contextmanager
def _readable(uri: str) -> Iterator[None]:
    """Turn the errors of MLflow, and of what it uses, into one line without the address: it may have a password."""
    try:
        yield
    except Exception as error:
        raise CoordinatorError(f"MLflow: {' '.join(str(error).replace(uri, '(its address)').split())}") from None


def _params(task: Task) -> Iterator[tuple[str, str]]:
    """The fields of the spec by their dotted names. A list is left out if it is too long for a parameter."""
    facts = task.spec.model_dump(mode="json", exclude={"layout"}, exclude_none=True)
    return ((name, value) for name, value in _flat(facts) if len(value) <= _LONGEST_PARAM)


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value)


def _millis(moment: int) -> int:
    return moment * 1000 // SECOND
