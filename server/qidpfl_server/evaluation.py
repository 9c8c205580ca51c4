"""Accuracy and loss of a model on held-out data, split once: one half decides, the other is reported.

A coordinator that has no evaluator for a workload runs its tasks unevaluated.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from qidpfl_shared.core.aggregation import Parameters
from qidpfl_shared.protocol import layouts
from qidpfl_shared.protocol.tasks import TaskSpec
from qidpfl_shared.protocol.wire import unflatten


@dataclass(frozen=True)
class Score:
    """How good a model is on one half of the held-out data."""

    accuracy: float
    loss: float


@dataclass(frozen=True)
class Evaluation:
    """One half decides whether the target is reached; the other, which nothing was chosen by, is reported."""

    deciding: Score
    reported: Score


class Evaluator(Protocol):
    """Scores models of one kind of workload."""

    def evaluate(self, spec: TaskSpec, parameters: Parameters) -> Evaluation:
        """The scores of these parameters."""


class DigitsEvaluator:
    """Softmax regression on the held-out digits of scikit-learn."""

    def __init__(self) -> None:
        from sklearn.datasets import load_digits

        data = load_digits()
        self._features: npt.NDArray[np.float64] = data.data[1437:] / 16
        self._labels: npt.NDArray[np.int64] = data.target[1437:]

    def evaluate(self, spec: TaskSpec, parameters: Parameters) -> Evaluation:
        tensors = unflatten(vector=parameters, layout=spec.layout)
        scores = self._features @ tensors["weight"].T.astype(np.float64) + tensors["bias"]
        return Evaluation(
            deciding=_score(scores[0::2], self._labels[0::2]), reported=_score(scores[1::2], self._labels[1::2])
        )


def _score(scores: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> Score:
    shifted = scores - scores.max(axis=1, keepdims=True)
    log_odds = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    chosen = log_odds[np.arange(len(labels)), labels]
    return Score(accuracy=float(np.mean(scores.argmax(axis=1) == labels)), loss=float(-chosen.mean()))


def evaluator_for(spec: TaskSpec) -> Evaluator | None:
    """The evaluator of a workload, or None where this coordinator has none."""
    if spec.workload.dataset == "digits" and spec.layout == layouts.linear(inputs=64, labels=10):
        try:
            return DigitsEvaluator()
        except ImportError:
            return None
    return None
