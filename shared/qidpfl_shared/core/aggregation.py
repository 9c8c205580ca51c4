"""The mean of the updates, the bounds on what one update can do to it, and the server's step.

A hostile client chooses its upload, its declared budget and its reported size. Its pull on the average is its weight
times the norm of its upload. The functions below bound the weight by public numbers and the norm by the upper threshold
of the noise audit. An honest upload stays below that threshold except with the small probability of the audit, so an
average of honest uploads is not changed by the norm bound.

All functions raise `ImpossibleArgument` for a number outside its range and for sequences of different lengths.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from . import arguments
from .arguments import ImpossibleArgument, Numbers, Vector
from .noise_audit import NoiseAudit

Parameters = npt.NDArray[np.float32]

# Norm bounds are rounded to so many digits, so that another version of a library computes the same model.
_BOUND_DIGITS = 6
# A client that uploads without noise rounds its vector to float32 after clipping.
_ROUNDING = 1e-5


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


class AggregationRule(StrEnum):
    """How the server averages the uploads of a round."""

    MEAN = "mean"
    TRIMMED_MEAN = "trimmed_mean"
    NORM_BOUNDED = "norm_bounded"


def counted_sizes(*, sizes: Sequence[int], max_ratio: float | None) -> list[int]:
    """Return the sizes that count in weights and rewards: at most `max_ratio` times their median. None: all count.

    >>> counted_sizes(sizes=[100, 110, 120, 10**7], max_ratio=2.0)
    [100, 110, 120, 230]
    """
    known = arguments.whole_numbers("sizes", sizes, minimum=1)
    if max_ratio is None or not known:
        return known
    largest = max(1, math.floor(arguments.at_least_one("max_ratio", max_ratio) * median(known)))
    return [min(size, largest) for size in known]


def budget_factors(*, declared: Numbers, planned: Numbers) -> Vector:
    """Return the factor of each weight: ρ_declared/ρ_planned, at most 1. Budgets of 0 (no game) have the factor 1.

    An upload with a smaller budget has more noise and therefore a larger norm bound. Its weight falls faster than that
    bound grows, so a client cannot gain influence by a smaller budget.

    >>> budget_factors(declared=[0.1, 0.05, 0.0], planned=[0.1, 0.1, 0.0]).tolist()
    [1.0, 0.5, 1.0]
    """
    bids = arguments.non_negative_vector("declared", declared)
    plans = arguments.non_negative_vector("planned", planned, length=bids.size)
    factors: Vector = np.ones(bids.size)
    np.divide(bids, plans, out=factors, where=(bids > 0) & (plans > 0))
    return np.minimum(factors, 1.0)


def usual_signal(*, squared_norms: Numbers, noise_stds: Numbers, dimension: int) -> float:
    """Estimate the norm of the signal that most uploads have: an upper estimate of the median.

    |u|² - d·σ² is an unbiased estimate of the squared norm of the signal, with a standard deviation of about σ²·√(2d).
    The median is not moved by a minority. One standard deviation of a typical upload is added, because the estimate of
    a small signal may be negative.

    >>> round(usual_signal(squared_norms=[0.04, 0.09, 100.0], noise_stds=[0.0, 0.0, 0.0], dimension=10), 3)
    0.3
    """
    energies = arguments.non_negative_vector("squared_norms", squared_norms)
    stds = arguments.non_negative_vector("noise_stds", noise_stds, length=energies.size)
    dimension = arguments.whole("dimension", dimension, minimum=1)
    if energies.size == 0:
        return 0.0
    spread = float(np.median(stds**2)) * math.sqrt(2 * dimension)
    return math.sqrt(max(0.0, float(np.median(energies - dimension * stds**2))) + spread)


def norm_bound(*, signal: float, noise_std: float, dimension: int, alpha: float, feedback: bool = False) -> float:
    """Return the largest norm that counts: the square root of the upper threshold of the noise audit.

    `signal` is the largest norm of the signal. `noise_std` 0 means an upload without noise: only its signal counts.

    >>> norm_bound(signal=1.0, noise_std=0.0575, dimension=650, alpha=1e-5)
    1.98284
    """
    if arguments.non_negative("noise_std", noise_std) == 0:
        return arguments.non_negative("signal", signal) * (1 + _ROUNDING)
    audit = NoiseAudit(dimension=dimension, noise_std=noise_std, signal_bound=signal, alpha=alpha, feedback=feedback)
    return float(f"{math.sqrt(audit.upper):.{_BOUND_DIGITS}g}")


def clip_scale(*, squared_norm: float, bound: float) -> float:
    """Return the factor that brings a vector to the norm bound; 1 if it is within the bound.

    >>> clip_scale(squared_norm=16.0, bound=2.0), clip_scale(squared_norm=1.0, bound=2.0)
    (0.5, 1.0)
    """
    norm = math.sqrt(arguments.non_negative("squared_norm", squared_norm))
    return 1.0 if norm <= arguments.non_negative("bound", bound) else bound / norm


def bounded_weights(*, weights: Numbers, bounds: Numbers, max_ratio: float = 1.0) -> Vector:
    """Return weights with which no client can pull more than `max_ratio` times the median: w_i·bound_i ≤ r·median.

    The weights do not depend on the direction of any upload. If all clients are honest, the result is an unbiased
    weighted mean. A client whose bound is 0 keeps its weight: its upload counts as 0.

    >>> bounded_weights(weights=[1.0, 1.0, 1.0], bounds=[1.0, 2.0, 8.0]).tolist()
    [1.0, 1.0, 0.25]
    """
    known = arguments.positive_vector("weights", weights)
    norms = arguments.non_negative_vector("bounds", bounds, length=known.size)
    ratio = arguments.at_least_one("max_ratio", max_ratio)
    largest = ratio * float(np.median(known * norms)) if known.size else 0.0
    if largest == 0:
        return known
    limits: Vector = np.full(known.size, np.inf)
    np.divide(largest, norms, out=limits, where=norms > 0)
    return np.minimum(known, limits)


def trimmed_mean(
    *,
    read: Callable[[int, slice], npt.NDArray[Any]],
    weights: Numbers,
    dimension: int,
    trim: float,
    chunk: int = 1 << 16,
) -> Vector:
    """Return the coordinate-wise trimmed mean in float64, in memory O(d + clients·chunk).

    In each coordinate the `trim`·n smallest and largest values are left out. The mean of the rest is weighted.
    `read(i, part)` returns that part of update i. The mean is biased if the clients' data differ, also if all are
    honest.

    >>> updates = np.array([[0.0], [1.0], [2.0], [900.0]])
    >>> trimmed_mean(read=lambda i, part: updates[i, part], weights=[1.0] * 4, dimension=1, trim=0.25).tolist()
    [1.5]
    """
    known = arguments.positive_vector("weights", weights)
    dimension = arguments.whole("dimension", dimension, minimum=1)
    cut = math.floor(arguments.non_negative("trim", trim) * known.size)
    if known.size <= 2 * cut or known.size == 0:
        raise ImpossibleArgument("trim", trim, f"leaves none of {known.size} updates")
    mean = np.zeros(dimension)
    for start in range(0, dimension, chunk):
        part = slice(start, min(start + chunk, dimension))
        values = np.stack([read(index, part).astype(np.float64) for index in range(known.size)])
        ranks = np.argsort(np.argsort(values, axis=0, kind="stable"), axis=0, kind="stable")
        kept = np.where((ranks >= cut) & (ranks < known.size - cut), known[:, None], 0.0)
        # Row by row: the order of a sum decides its last bits.
        total, weight = np.zeros(values.shape[1]), np.zeros(values.shape[1])
        for row, row_weights in zip(values, kept, strict=True):
            total += row * row_weights
            weight += row_weights
        mean[part] = total / weight
    if not np.isfinite(mean).all():
        raise ImpossibleArgument("updates", "NaN or infinity", "must be finite")
    return mean


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
    # In place: a step over a large model takes as long as the memory for its intermediate results.
    velocity = momentum * state.momentum
    velocity += change
    with np.errstate(over="ignore"):
        step = learning_rate * velocity
        np.subtract(state.parameters, step, out=step, dtype=np.float64)
        parameters = step.astype(np.float32)
    if not np.isfinite(parameters).all():
        raise ModelDiverged("the step leads to parameters beyond float32; lower the learning rate")
    return ServerState(parameters=parameters, momentum=velocity)
