"""Softmax regression in float64, for `bolt_on`: its proof needs convexity, bounded features and little rounding."""

from dataclasses import dataclass

import torch
from torch import Tensor

from qidpfl_shared.core.privacy.mechanisms import BoltOnMechanism, batch_sizes
from qidpfl_shared.core.privacy.rounding import SLACK, softmax_regression_slack

from ..errors import ClientError
from .data_loader import Batch, epoch_batches
from .devices import wide_dtype
from .flat_parameters import random_models
from .objective import Objective

_TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True)
class SoftmaxRegression:
    """The network of an objective as a matrix and a bias, with gradients in the widest type."""

    objective: Objective
    feature_norm: float

    def __post_init__(self) -> None:
        self._check_network()

    def check_rounding(self, mechanism: BoltOnMechanism, *, slack: float) -> None:
        """Refuse a model so large that rounding could break the proof. Only public numbers decide this."""
        model_norm = float(torch.linalg.vector_norm(self.objective.parameters.vector.to(torch.float64)))
        weight = self.objective.parameters.tensors[0]
        batches = len(batch_sizes(size=self.objective.size, batch_size=mechanism.batch_size))
        rounding = softmax_regression_slack(
            size=self.objective.size,
            features=weight.shape[1],
            labels=weight.shape[0],
            feature_norm=self.feature_norm,
            model_norm=model_norm,
            learning_rate=mechanism.learning_rate,
            steps=mechanism.epochs * batches,
        )
        if slack + rounding > SLACK:
            raise ClientError(f"bolt_on: the model's norm {model_norm:.3g} exceeds what its proof allows")

    def update(self, mechanism: BoltOnMechanism, *, release: str) -> Tensor:
        """The start model minus the model after all local steps. The steps are shorter by the slack for rounding."""
        start = self.objective.parameters.vector.to(wide_dtype(self.objective.parameters.device))
        total = torch.zeros_like(start)
        for epoch in range(mechanism.epochs):
            batches = epoch_batches(
                size=self.objective.size, batch_size=mechanism.batch_size, release=release, epoch=epoch
            )
            for batch in batches:
                total += self._mean_gradient(start - total, batch) * (mechanism.learning_rate * (1 - SLACK))
        return total

    def _mean_gradient(self, model: Tensor, batch: Batch) -> Tensor:
        shape = self.objective.parameters.tensors[0].shape
        weight, bias = model[: shape.numel()].view(shape), model[shape.numel() :]
        total = torch.zeros_like(model)
        for inputs, labels in self.objective.loader.chunks(batch, length=self.objective.chunk):
            features = inputs.flatten(1).to(model.dtype)
            scores = features @ weight.T
            errors = torch.softmax(scores + bias if len(bias) else scores, dim=1)
            errors[torch.arange(len(labels), device=labels.device), labels] -= 1
            total[: shape.numel()] += (errors.T @ features).reshape(-1)
            if len(bias):
                total[shape.numel() :] += errors.sum(0)
        return total / len(batch)

    def _check_network(self) -> None:
        """Refuse a network that does not compute features times a matrix, plus a bias, for all parameters."""
        parameters, inputs = self.objective.parameters, self.objective.checked.example_inputs
        weight, *biases = parameters.tensors
        if weight.ndim != 2 or [tuple(bias.shape) for bias in biases] not in ([], [(len(weight),)]):
            raise ClientError("bolt_on is proven for softmax regression only: one matrix, and a bias or none")
        features = inputs.flatten(1)
        given = parameters.vector.clone()
        for model in random_models(parameters):
            parameters.vector.copy_(model)
            with torch.no_grad():
                same = features.shape[1] == weight.shape[1] and torch.allclose(
                    self.objective.network(inputs), features @ weight.T + sum(biases), rtol=_TOLERANCE, atol=_TOLERANCE
                )
            parameters.vector.copy_(given)
            if not same:
                raise ClientError("bolt_on is proven for softmax regression only: this network computes something else")
