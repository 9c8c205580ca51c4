"""Computes accuracy and loss of models on held-out records that are prepared once.

One pass scores all records; each record belongs to one of two random halves. A small data set is kept as the network
takes it (scaled, float32). A large one stays as it was read, and each batch is converted when it is used.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from qidpfl_shared.core.aggregation import Parameters
from qidpfl_shared.protocol.mechanism_specs import BoltOn
from qidpfl_shared.protocol.task_spec import TaskSpec, WorkloadSpec
from qidpfl_shared.protocol.wire import unflatten
from qidpfl_shared.workloads.records import Features, Labels, Records, bounded
from qidpfl_shared.workloads.workload import DataMissing, Workload

if TYPE_CHECKING:
    from torch import nn
_KEPT_BYTES = 64 << 20
_LINEAR_BATCH = 2000
# The activations of a batch should stay in the processor's cache. Measured on one core: four times as many take 1.2
# to 1.8 times as long per record.
_ACTIVATION_BYTES = 32 << 20
_SMALLEST_BATCH, _LARGEST_BATCH = 32, 1024

Flags = npt.NDArray[np.bool_]
Losses = npt.NDArray[np.float64]
Weights = npt.NDArray[np.float32]


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


@dataclass(frozen=True)
class _Prepared:
    """All features with at most this norm, None if they are too large to keep; and the norm of the longest record."""

    norm: float | None
    features: Features | None
    longest: float


class HeldOut:
    """The held-out records of a workload, prepared for the evaluation of many models."""

    def __init__(self, workload: Workload, records: Records | None) -> None:
        if records is None or len(records) < 2:
            raise DataMissing("the workload has no held-out records, or only one")
        self._workload = workload
        self._records = records
        self._deciding = _random_half(len(records))
        # The features as the task that was evaluated last uses them.
        self._prepared: _Prepared | None = None
        # Built networks that no thread uses now, with their batch sizes.
        self._networks: list[tuple[nn.Module, int]] = []

    def evaluate(self, spec: TaskSpec, parameters: Parameters) -> Evaluation:
        """The scores of these parameters. Raises what the network of a custom workload raises."""
        correct = np.empty(len(self._records), dtype=np.bool_)
        losses = np.empty(len(self._records), dtype=np.float64)
        if is_linear(spec.workload):
            self._score_linear(spec, parameters, correct, losses)
        else:
            self._score_network(spec, parameters, correct, losses)
        return Evaluation(
            deciding=_score(correct, losses, self._deciding), reported=_score(correct, losses, ~self._deciding)
        )

    def _score_linear(self, spec: TaskSpec, parameters: Parameters, correct: Flags, losses: Losses) -> None:
        tensors = unflatten(vector=parameters, layout=spec.layout)
        weight, bias = tensors["weight"], tensors["bias"]
        prepared = self._prepare(spec)
        rounding = _rounding(prepared.longest, weight, bias)
        for part, inputs in self._batches(prepared, _LINEAR_BATCH):
            flat, labels = inputs.reshape(len(inputs), -1), self._records.labels[part]
            correct[part], losses[part] = _linear_scores(flat, labels, weight, bias, rounding)

    def _score_network(self, spec: TaskSpec, parameters: Parameters, correct: Flags, losses: Losses) -> None:
        import torch

        from qidpfl_shared.workloads.networks import load_parameters

        try:
            network, batch = self._networks.pop()
        except IndexError:
            network, batch = self._built()
        load_parameters(network, parameters, spec.layout)
        labels = torch.from_numpy(self._records.labels)
        with torch.inference_mode():
            for part, inputs in self._batches(self._prepare(spec), batch):
                scores = network(torch.from_numpy(inputs)).double()
                log_odds = scores.log_softmax(dim=1).gather(1, labels[part, None])
                correct[part] = (scores.argmax(dim=1) == labels[part]).numpy()
                losses[part] = -log_odds[:, 0].numpy()
        # Only now: a network that has failed is not used again.
        self._networks.append((network, batch))

    def _built(self) -> "tuple[nn.Module, int]":
        """A new network, and how many records fit one batch."""
        import torch

        network = self._workload.network().eval()
        sizes: list[int] = []
        hooks = [
            layer.register_forward_hook(lambda _, inputs, output: sizes.append(output.nbytes))
            for layer in network.modules()
            if not list(layer.children())
        ]
        try:
            with torch.inference_mode():
                network(torch.from_numpy(self._records.inputs(slice(0, 1))))
        finally:
            for hook in hooks:
                hook.remove()
        fitting = max(1, _ACTIVATION_BYTES // max(1, sum(sizes)))
        return network, min(_LARGEST_BATCH, max(_SMALLEST_BATCH, 1 << (fitting.bit_length() - 1)))

    def _batches(self, prepared: _Prepared, length: int) -> Iterator[tuple[slice, Features]]:
        for start in range(0, len(self._records), length):
            part = slice(start, start + length)
            kept = prepared.features
            yield part, self._inputs(part, prepared.norm) if kept is None else kept[part]

    def _prepare(self, spec: TaskSpec) -> _Prepared:
        """The features as the clients train on them (`bolt_on` bounds the norm of every record), for many models."""
        mechanism = spec.privacy.mechanism
        norm = mechanism.feature_norm if isinstance(mechanism, BoltOn) else None
        # Another thread may replace it meanwhile.
        prepared = self._prepared
        if prepared is None or prepared.norm != norm:
            small = 4 * math.prod(self._records.features.shape) <= _KEPT_BYTES
            kept = np.ascontiguousarray(self._inputs(slice(None), norm)) if small else None
            parts = self._batches(_Prepared(norm, kept, math.inf), _LARGEST_BATCH)
            self._prepared = prepared = _Prepared(norm, kept, max(_longest(inputs) for _, inputs in parts))
        return prepared

    def _inputs(self, part: slice, norm: float | None) -> Features:
        inputs = self._records.inputs(part)
        return inputs if norm is None else bounded(inputs, norm=norm)


def is_linear(workload: WorkloadSpec) -> bool:
    """Whether it is the built-in softmax regression, which needs only numpy."""
    return workload.network == "linear" and ":" not in workload.dataset


def _random_half(count: int) -> Flags:
    """Which records decide: a random half, the same one every time. Random, because the records may be sorted."""
    order = np.random.default_rng(0).permutation(count)
    deciding = np.zeros(count, dtype=np.bool_)
    deciding[order[: count // 2]] = True
    return deciding


def _score(correct: Flags, losses: Losses, half: Flags) -> Score:
    count = int(np.count_nonzero(half))
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(losses[half].sum()) / count
    accuracy = int(np.count_nonzero(correct & half)) / count
    return Score(accuracy=accuracy, loss=mean if math.isfinite(mean) else None)


def _linear_scores(
    inputs: Features, labels: Labels, weight: Weights, bias: Weights, rounding: float
) -> tuple[Flags, Losses]:
    """Whether softmax regression finds the label of each record, and its loss.

    The scores are float32. A record whose answer their rounding could change is computed again in float64.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        # One column for each record: numpy reduces a matrix fast along its first axis.
        scores = (inputs @ weight.T + bias).T.astype(np.float64, order="C")
        records = np.arange(len(labels))
        own = scores[labels, records]
        scores[labels, records] = -np.inf
        margin = own - scores.max(axis=0)
        losses: Losses = np.log1p(np.exp(scores - own).sum(axis=0))
        unsure = ~(np.abs(margin) > 2 * rounding) | ~np.isfinite(losses)
    correct: Flags = margin > 0
    if unsure.any():
        correct[unsure], losses[unsure] = _linear_scores_64(inputs[unsure], labels[unsure], weight, bias)
    return correct, losses


def _longest(inputs: Features) -> float:
    flat = inputs.reshape(len(inputs), -1).astype(np.float64)
    return math.sqrt(float(np.einsum("ij,ij->i", flat, flat).max()))


def _rounding(longest: float, weight: Weights, bias: Weights) -> float:
    """A bound of the rounding error of a score in float32, twice (terms)·u·(|x|·|w| + |b|)."""
    with np.errstate(over="ignore"):
        longest_weight = float(np.linalg.norm(weight.astype(np.float64), axis=1).max())
        unit = float(weight.shape[1] + 2) * 2.0**-24
        return 2 * unit * (longest * longest_weight + float(np.abs(bias).max()))


def _linear_scores_64(inputs: Features, labels: Labels, weight: Weights, bias: Weights) -> tuple[Flags, Losses]:
    with np.errstate(over="ignore", invalid="ignore"):
        scores = inputs @ weight.astype(np.float64).T + bias.astype(np.float64)
        shifted = scores - scores.max(axis=1, keepdims=True)
        log_odds = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    correct: Flags = scores.argmax(axis=1) == labels
    return correct, -log_odds[np.arange(len(labels)), labels]
