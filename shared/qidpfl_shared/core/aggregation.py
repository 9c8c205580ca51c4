"""The average of the updates, one at a time, and the server's step."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from . import arguments
from .arguments import ImpossibleArgument, Vector

Parameters = npt.NDArray[np.float32]


class ModelDiverged(ArithmeticError):
    """A step led to parameters that a float32 cannot hold."""


def weighted_mean(*, updates: Iterable[tuple[float, Parameters]], dimension: int) -> Vector:
    """Σ w_i·u_i / Σ w_i over (weight, update) pairs in the order given, in float64 and O(d) memory.

    Multiplication and addition are separate and in one order, so that the same updates give the same bits anywhere.
    """
    dimension = arguments.whole("dimension", dimension, minimum=1)
    total = 0.0
    weighted_sum = np.zeros(dimension)
    for index, (weight, update) in enumerate(updates):
        if not isinstance(update, np.ndarray) or update.dtype.kind != "f":
            raise ImpossibleArgument(f"updates[{index}]", type(update).__name__, "must be an array of floats")
        if update.shape != (dimension,):
            raise ImpossibleArgument(f"updates[{index}].shape", update.shape, f"must be ({dimension},)")
        scaled = update.astype(np.float64)
        scaled *= arguments.positive(f"weights[{index}]", weight)
        weighted_sum += scaled
        total += weight
    if total == 0:
        raise ImpossibleArgument("updates", (), "must hold at least one update")
    if not np.isfinite(weighted_sum).all():
        raise ImpossibleArgument("updates", "NaN or infinity", "must be finite")
    weighted_sum /= total
    return weighted_sum


@dataclass(frozen=True)
class ServerState:
    """The global model as it goes over the wire, and the server's momentum, kept in full precision."""

    parameters: Parameters
    momentum: Vector

    @classmethod
    def start(cls, parameters: Parameters) -> "ServerState":
        """A model before its first step, at rest."""
        return cls(parameters=parameters, momentum=np.zeros(parameters.size))


def server_step(
    *, state: ServerState, mean_update: Vector, learning_rate: float = 1.0, momentum: float = 0.0
) -> ServerState:
    """w(t) = w(t-1) - η·m(t) with m(t) = μ·m(t-1) + mean (Algorithm 1, line 19, with momentum).

    It sees noised updates only: post-processing, free of privacy cost. Raises `ModelDiverged` when the step overflows.
    """
    learning_rate = arguments.positive("learning_rate", learning_rate)
    momentum = arguments.weight_below_one("momentum", momentum)
    change = arguments.vector("mean_update", mean_update)
    if not state.parameters.shape == state.momentum.shape == change.shape:
        raise ImpossibleArgument("mean_update.shape", change.shape, f"must be {state.parameters.shape}, like the model")
    velocity = momentum * state.momentum + change
    with np.errstate(over="ignore"):
        parameters = (state.parameters.astype(np.float64) - learning_rate * velocity).astype(np.float32)
    if not np.isfinite(parameters).all():
        raise ModelDiverged("the step leads to parameters beyond float32; lower the learning rate")
    return ServerState(parameters=parameters, momentum=velocity)
