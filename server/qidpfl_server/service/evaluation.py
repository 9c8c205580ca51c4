"""Accuracy and loss of a model on held-out records: one half decides whether the target is reached, one is reported.

A task that the server cannot evaluate (no data, no torch, an unknown workload) runs without scores. The log says why,
once.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import structlog

from qidpfl_shared.core.aggregation import Parameters
from qidpfl_shared.protocol.task_spec import TaskSpec, WorkloadSpec
from qidpfl_shared.workloads.custom import published_name
from qidpfl_shared.workloads.loading import load_workload
from qidpfl_shared.workloads.own_data.reading import OwnFiles
from qidpfl_shared.workloads.own_data.workload import own_data
from qidpfl_shared.workloads.portion import portion
from qidpfl_shared.workloads.workload import DataMissing, UnknownWorkload, Workload, WorkloadError

from .scoring import Evaluation, HeldOut, is_linear

_log = structlog.get_logger()


class Evaluator(Protocol):
    """Scores models of one workload."""

    def evaluate(self, spec: TaskSpec, parameters: Parameters) -> Evaluation | None:
        """The scores of these parameters; None if they cannot be evaluated."""

    def prepare(self) -> None:
        """Load the data now, so that missing data is known early."""


class Evaluators:
    """The evaluators of a server. Tasks of the same workload share its records.

    `custom` names the workloads (module:Class) that the server may import, `models` the models of owners: a task cannot
    make it run other code. `held_out` are the operator's files for tasks of own data, by the name of their data.
    """

    def __init__(
        self,
        *,
        data_dir: Path | None = None,
        custom: Sequence[str] = (),
        models: Sequence[str] = (),
        held_out: Mapping[str, Path] | None = None,
    ) -> None:
        self._data_dir = data_dir
        self._custom = {published_name(name): name for name in custom}
        self._models = {published_name(name): name for name in models}
        self._files = held_out or {}
        self._own: dict[str, HeldOutEvaluator] = {}
        self._known: dict[WorkloadSpec, HeldOutEvaluator] = {}
        self._loaded: dict[WorkloadSpec, Workload] = {}

    def of(self, spec: TaskSpec) -> "HeldOutEvaluator":
        """The evaluator of a task. It loads its data at the first use."""
        if spec.data is not None:
            known = self._own.get(spec.digest) or HeldOutEvaluator(spec.workload, lambda: self._load_own(spec))
            return self._own.setdefault(spec.digest, known)
        workload = _as_evaluated(spec.workload)
        return self._known.setdefault(workload, HeldOutEvaluator(workload, lambda: self._load(workload)))

    def obstacle(self, spec: TaskSpec) -> str | None:
        """Why this server cannot evaluate a task, or None. Reads no data, so it finds no missing records."""
        if not is_linear(spec.workload) and find_spec("torch") is None:
            return "torch is not installed"
        try:
            if spec.data is not None:
                self._load_own(spec)
            else:
                self._load(_as_evaluated(spec.workload))
        except WorkloadError as error:
            return str(error)
        return None

    def _load_own(self, spec: TaskSpec) -> Workload:
        """The workload of a task of own data, if the operator has a file for it."""
        path = self._files.get(spec.workload.dataset)
        if path is None:
            raise UnknownWorkload(f"serve --held-out {spec.workload.dataset}=FILE would evaluate it on a file of yours")
        network = spec.workload.network
        if ":" in network and network not in self._models:
            raise UnknownWorkload(f"serve --model path/to/{network.replace(':', '.py:')} would evaluate it")
        return own_data(spec, files=OwnFiles(path=path), model=self._models.get(network))

    def _load(self, workload: WorkloadSpec) -> Workload:
        """The workload. Portions of one workload share its records, which are read once."""
        whole = workload.whole
        if whole not in self._loaded:
            custom = self._custom.get(workload.dataset)
            # A download would delay a settlement.
            self._loaded[whole] = load_workload(whole, data_dir=self._data_dir, custom=custom, download=False)
        return portion(self._loaded[whole], workload)


class HeldOutEvaluator:
    """Evaluates models of one workload on its held-out records, which it reads once and keeps."""

    def __init__(self, workload: WorkloadSpec, load: Callable[[], Workload]) -> None:
        self._name = f"{workload.dataset}, {workload.network}"
        self._load = load
        self._loaded: HeldOut | None = None
        self._loading = threading.Lock()
        self._warned_of: set[str] = set()
        self._hopeless = False

    def evaluate(self, spec: TaskSpec, parameters: Parameters) -> Evaluation | None:
        """The scores of these parameters; None, and one warning, if they cannot be evaluated. Raises nothing."""
        held_out = self._held_out()
        if held_out is None:
            return None
        try:
            return held_out.evaluate(spec, parameters)
        except Exception as error:
            # A workload may be custom code: its failure must not cost a round, or the evaluation of other tasks.
            self._warn(spec.digest, error)
            return None

    def prepare(self) -> None:
        """Read the records now, so that the log names missing data now."""
        self._held_out()

    def _held_out(self) -> HeldOut | None:
        with self._loading:
            if self._loaded is None and not self._hopeless:
                try:
                    workload = self._load()
                    self._loaded = HeldOut(workload, workload.held_out())
                except Exception as error:
                    # The operator may still add missing data.
                    self._hopeless = not isinstance(error, DataMissing)
                    self._warn("loading", error)
            return self._loaded

    def _warn(self, subject: str, error: Exception) -> None:
        """Log the reason once per subject."""
        if subject not in self._warned_of:
            reason = str(error) if isinstance(error, WorkloadError) else f"{type(error).__name__}: {error}"
            _log.warning("unevaluated", workload=self._name, reason=reason)
        self._warned_of.add(subject)


def _as_evaluated(workload: WorkloadSpec) -> WorkloadSpec:
    """The fields that loading depends on, as a cache key: a failure of one task must not affect another.

    The number of training records matters only if other records of the same set are for validation.
    """
    without = {"partition": None} | ({} if workload.validation_records else {"training_records": None})
    return workload.model_copy(update=without)
