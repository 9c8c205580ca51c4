"""Accuracy and loss of a model on held-out records, split once: one half decides, the other is reported.

What cannot be evaluated here (no data, no torch, an unknown workload) runs unevaluated; the log says why, once.
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
    """How good a model is on one half of the held-out records; a loss that is not finite is None."""

    accuracy: float
    loss: float | None


@dataclass(frozen=True)
class Evaluation:
    """One half decides whether the target is reached; the other, which nothing was chosen by, is reported."""

    deciding: Score
    reported: Score


class Evaluator(Protocol):
    """Scores models of one workload."""

    def evaluate(self, spec: TaskSpec, parameters: Parameters) -> Evaluation | None:
        """The scores of these parameters; None where they cannot be had."""

    def prepare(self) -> None:
        """Load what is needed, so that what is missing is known early."""


class Evaluators:
    """The evaluators of a coordinator: tasks of the same workload share its records.

    `own` names, as module:Class, what may be imported: a task alone must not make the coordinator run code.
    """

    def __init__(self, *, data_dir: Path | None = None, own: Sequence[str] = ()) -> None:
        self._data_dir = data_dir
        self._own = {published_name(name): name for name in own}
        self._known: dict[WorkloadSpec, HeldOutEvaluator] = {}
        self._loaded: dict[WorkloadSpec, Workload] = {}

    def of(self, spec: TaskSpec) -> "HeldOutEvaluator":
        """The evaluator of a task. Nothing is loaded before it is used."""
        workload = _as_evaluated(spec.workload)
        return self._known.setdefault(workload, HeldOutEvaluator(workload, lambda: self._load(workload)))

    def obstacle(self, spec: TaskSpec) -> str | None:
        """Why a task cannot be evaluated here, as far as can be told without reading its data."""
        if not _is_linear(spec.workload) and find_spec("torch") is None:
            return "torch is not installed"
        try:
            self._load(_as_evaluated(spec.workload))
        except WorkloadError as error:
            return str(error)
        return None

    def _load(self, workload: WorkloadSpec) -> Workload:
        """The workload; portions of the same one share its records, which are read once."""
        whole = workload.whole
        if whole not in self._loaded:
            own = self._own.get(workload.dataset)
            # A download would hold up a settlement.
            self._loaded[whole] = load_workload(whole, data_dir=self._data_dir, custom=own, download=False)
        return portion(self._loaded[whole], workload)


class HeldOutEvaluator:
    """Evaluates models of one workload on its held-out records, which are read once and kept."""

    def __init__(self, workload: WorkloadSpec, load: Callable[[], Workload]) -> None:
        self._name = f"{workload.dataset}, {workload.network}"
        self._load = load
        self._loaded: tuple[Workload, Records, Records] | None = None
        self._loading = threading.Lock()
        self._warned_of: set[str] = set()
        self._hopeless = False

    def evaluate(self, spec: TaskSpec, parameters: Parameters) -> Evaluation | None:
        """The scores of these parameters; None, and a warning at the first time, where they cannot be had."""
        held_out = self._held_out()
        if held_out is None:
            return None
        try:
            return _evaluated(*held_out, spec, parameters)
        except Exception as error:
            # A workload may be anybody's code, and no failure of it is worth a round; nor is it one of other tasks.
            self._warn(spec.digest, error)
            return None

    def prepare(self) -> None:
        """Read the records now, so that what is missing is said now."""
        self._held_out()

    def _held_out(self) -> tuple[Workload, Records, Records] | None:
        with self._loading:
            if self._loaded is None and not self._hopeless:
                try:
                    workload = self._load()
                    self._loaded = (workload, *_halves(workload.held_out()))
                except Exception as error:
                    # Data may still come.
                    self._hopeless = not isinstance(error, DataMissing)
                    self._warn("loading", error)
            return self._loaded

    def _warn(self, subject: str, error: Exception) -> None:
        """Say once for every subject why something is not evaluated."""
        if subject not in self._warned_of:
            reason = str(error) if isinstance(error, WorkloadError) else f"{type(error).__name__}: {error}"
            _log.warning("unevaluated", workload=self._name, reason=reason)
        self._warned_of.add(subject)


def _as_evaluated(workload: WorkloadSpec) -> WorkloadSpec:
    """All that loading depends on and nothing else: what fails to load for one task must not be missing for another.

    How many records are trained on matters only where others of them are for validation.
    """
    without = {"partition": None} | ({} if workload.validation_records else {"training_records": None})
    return workload.model_copy(update=without)


def _evaluated(
    workload: Workload, deciding: Records, reported: Records, spec: TaskSpec, parameters: Parameters
) -> Evaluation:
    scorer = _linear(spec, parameters) if _is_linear(spec.workload) else _network(workload, spec, parameters)
    return Evaluation(deciding=_score(scorer, spec, deciding), reported=_score(scorer, spec, reported))


def _halves(records: Records | None) -> tuple[Records, Records]:
    """Two halves at random, the same ones every time: however records are sorted, both look alike."""
    if records is None or len(records) < 2:
        raise DataMissing("the workload has no held-out records, or only one")
    order = np.random.default_rng(0).permutation(len(records))
    middle = len(order) // 2
    return records.take(np.sort(order[:middle])), records.take(np.sort(order[middle:]))


def _is_linear(workload: WorkloadSpec) -> bool:
    """Whether it is the built-in softmax regression, for which numpy is enough."""
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
    """Features as the clients train on them: `bolt_on` bounds the norm of every record."""
    mechanism = spec.privacy.mechanism
    for start in range(0, len(records), _BATCH):
        part = slice(start, start + _BATCH)
        inputs = records.inputs(part)
        if isinstance(mechanism, BoltOn):
            inputs = bounded(inputs, norm=mechanism.feature_norm)
        yield inputs, records.labels[part]
