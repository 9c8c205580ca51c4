"""Accuracy and loss of a model on held-out records: one half decides whether the target is reached, one is reported.

A task that the server cannot evaluate (no data, no torch, an unknown workload) runs without scores. The log says why,
once.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import structlog

from qidpfl_shared.core.aggregation import Parameters
from qidpfl_shared.protocol.mechanism_specs import BoltOn
from qidpfl_shared.protocol.task_spec import TaskSpec, WorkloadSpec
from qidpfl_shared.protocol.wire import unflatten
from qidpfl_shared.workloads.custom import published_name
from qidpfl_shared.workloads.loading import load_workload
from qidpfl_shared.workloads.portion import portion
from qidpfl_shared.workloads.records import Features, Labels, Records, bounded
from qidpfl_shared.workloads.workload import DataMissing, Workload, WorkloadError

_log = structlog.get_logger()
_BATCH = 1000

Scores = npt.NDArray[np.float64]
Scorer = Callable[[Features], Scores]


@dataclass(frozen=True)
class Score:
    """Accuracy and loss on one half of the held-out records; the loss is None if it is not finite."""

    accuracy: float
    loss: float | None


@dataclass(frozen=True)
class Evaluation:
    """The score that decides whether the target is reached, and the score that is reported.

    They come from different records, so that no decision was made by the reported score.
    """

    deciding: Score
    reported: Score


class Evaluator(Protocol):
    """Scores models of one workload."""

    def evaluate(self, spec: TaskSpec, parameters: Parameters) -> Evaluation | None:
        """The scores of these parameters; None if they cannot be evaluated."""

    def prepare(self) -> None:
        """Load the data now, so that missing data is known early."""


class Evaluators:
    """The evaluators of a server. Tasks of the same workload share its records.

    `custom` names the workloads (module:Class) that the server may import: a task cannot make it run other code.
    """

    def __init__(self, *, data_dir: Path | None = None, custom: Sequence[str] = ()) -> None:
        self._data_dir = data_dir
        self._custom = {published_name(name): name for name in custom}
        self._known: dict[WorkloadSpec, HeldOutEvaluator] = {}
        self._loaded: dict[WorkloadSpec, Workload] = {}

    def of(self, spec: TaskSpec) -> "HeldOutEvaluator":
        """The evaluator of a task. It loads its data at the first use."""
        workload = _as_evaluated(spec.workload)
        return self._known.setdefault(workload, HeldOutEvaluator(workload, lambda: self._load(workload)))

    def obstacle(self, spec: TaskSpec) -> str | None:
        """Why this server cannot evaluate a task, or None. Reads no data, so it finds no missing records."""
        if not _is_linear(spec.workload) and find_spec("torch") is None:
            return "torch is not installed"
        try:
            self._load(_as_evaluated(spec.workload))
        except WorkloadError as error:
            return str(error)
        return None

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
        self._loaded: tuple[Workload, Records, Records] | None = None
        self._loading = threading.Lock()
        self._warned_of: set[str] = set()
        self._hopeless = False

    def evaluate(self, spec: TaskSpec, parameters: Parameters) -> Evaluation | None:
        """The scores of these parameters; None, and one warning, if they cannot be evaluated. Raises nothing."""
        held_out = self._held_out()
        if held_out is None:
            return None
        try:
            return _evaluated(*held_out, spec, parameters)
        except Exception as error:
            # A workload may be custom code: its failure must not cost a round, or the evaluation of other tasks.
            self._warn(spec.digest, error)
            return None

    def prepare(self) -> None:
        """Read the records now, so that the log names missing data now."""
        self._held_out()

    def _held_out(self) -> tuple[Workload, Records, Records] | None:
        with self._loading:
            if self._loaded is None and not self._hopeless:
                try:
                    workload = self._load()
                    self._loaded = (workload, *_halves(workload.held_out()))
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


def _evaluated(
    workload: Workload, deciding: Records, reported: Records, spec: TaskSpec, parameters: Parameters
) -> Evaluation:
    scorer = _linear(spec, parameters) if _is_linear(spec.workload) else _network(workload, spec, parameters)
    return Evaluation(deciding=_score(scorer, spec, deciding), reported=_score(scorer, spec, reported))


def _halves(records: Records | None) -> tuple[Records, Records]:
    """Two random halves, the same ones every time. Random, because the records may be sorted."""
    if records is None or len(records) < 2:
        raise DataMissing("the workload has no held-out records, or only one")
    order = np.random.default_rng(0).permutation(len(records))
    middle = len(order) // 2
    return records.take(np.sort(order[:middle])), records.take(np.sort(order[middle:]))


def _is_linear(workload: WorkloadSpec) -> bool:
    """Whether it is the built-in softmax regression, which needs only numpy."""
    return workload.network == "linear" and ":" not in workload.dataset


def _linear(spec: TaskSpec, parameters: Parameters) -> Scorer:
    tensors = unflatten(vector=parameters, layout=spec.layout)
    weight, bias = tensors["weight"].astype(np.float64), tensors["bias"].astype(np.float64)
    return lambda inputs: inputs.reshape(len(inputs), -1) @ weight.T + bias


def _network(workload: Workload, spec: TaskSpec, parameters: Parameters) -> Scorer:
    import torch

    from qidpfl_shared.workloads.networks import load_parameters

    network = workload.network()
    load_parameters(network, parameters, spec.layout)
    network.eval()

    def scores(inputs: Features) -> Scores:
        with torch.no_grad():
            found: Scores = network(torch.from_numpy(inputs)).double().numpy()
        return found

    return scores


def _score(scorer: Scorer, spec: TaskSpec, records: Records) -> Score:
    correct, loss = 0, 0.0
    for inputs, labels in _batches(spec, records):
        with np.errstate(over="ignore", invalid="ignore"):
            scores = scorer(inputs)
            shifted = scores - scores.max(axis=1, keepdims=True)
            log_odds = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        correct += int(np.count_nonzero(scores.argmax(axis=1) == labels))
        loss -= float(log_odds[np.arange(len(labels)), labels].sum())
    mean = loss / len(records)
    return Score(accuracy=correct / len(records), loss=mean if np.isfinite(mean) else None)


def _batches(spec: TaskSpec, records: Records) -> Iterator[tuple[Features, Labels]]:
    """The features as the clients train on them: `bolt_on` bounds the norm of every record."""
    mechanism = spec.privacy.mechanism
    for start in range(0, len(records), _BATCH):
        part = slice(start, start + _BATCH)
        inputs = records.inputs(part)
        if isinstance(mechanism, BoltOn):
            inputs = bounded(inputs, norm=mechanism.feature_norm)
        yield inputs, records.labels[part]
