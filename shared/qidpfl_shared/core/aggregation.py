"""The mean of the updates, computed one update at a time, and the server's step."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from . import arguments
from .arguments import ImpossibleArgument, Vector

Parameters = npt.NDArray[np.float32]


class ModelDiverged(ArithmeticError):
    """A step led to parameters outside the range of float32."""


def weighted_mean(*, updates: Iterable[tuple[float, Parameters]], dimension: int) -> Vector:
    """Return Σ w_i·u_i / Σ w_i over (weight, update) pairs in the given order, in float64 and O(d) memory.

    Multiplication and addition are separate steps in a fixed order. The same updates therefore give the same bits on
    every machine.

    Raises `ImpossibleArgument` if there is no update, or if one is not a finite array of `dimension` floats.

    >>> weighted_mean(updates=[(1.0, np.array([0.0, 4.0])), (3.0, np.array([4.0, 0.0]))], dimension=2).tolist()
    [3.0, 1.0]
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
    """The global model in the precision of the wire, and the server's momentum in full precision."""

    parameters: Parameters
    momentum: Vector

    @classmethod
    def start(cls, parameters: Parameters) -> "ServerState":
        """Return the state before the first step, with momentum 0."""
        return cls(parameters=parameters, momentum=np.zeros(parameters.size))


def server_step(
    *, state: ServerState, mean_update: Vector, learning_rate: float = 1.0, momentum: float = 0.0
) -> ServerState:
    """Return w(t) = w(t-1) - η·m(t) with m(t) = μ·m(t-1) + mean (Algorithm 1, line 19, with momentum).

    It uses noised updates only. It is post-processing and has no privacy cost.

    Raises `ModelDiverged` if the step overflows, and `ImpossibleArgument`.

    >>> state = ServerState.start(np.array([1.0, 2.0], dtype=np.float32))
    >>> server_step(state=state, mean_update=np.array([0.5, -0.5]), learning_rate=2.0).parameters.tolist()
    [0.0, 3.0]
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
