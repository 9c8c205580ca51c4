"""The global model: version 0, the next version from a round's accepted updates, and how versions are stored.

Parameters are stored as they go over the wire, momentum in full precision. Settlement and the audit compute the next
version with the same function.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qidpfl_shared.core.aggregation import (
    AggregationRule,
    Parameters,
    ServerState,
    server_step,
    trimmed_mean,
    weighted_mean,
)
from qidpfl_shared.core.arguments import Vector
from qidpfl_shared.core.noise_audit import RoundMoments, alignment
from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.protocol.wire import decode, encode, flatten

from ...domain import Model
from ...errors import DamagedState, StoreBusy
from ...store.blobs import Blobs
from .weights import WeightedUpload


def next_state(blobs: Blobs, spec: TaskSpec, base: Model, parts: Sequence[WeightedUpload]) -> ServerState:
    """The state after the server's step along the mean of the accepted updates, in the order of `parts`."""
    return server_step(
        state=load_model(blobs, base, spec.dimension),
        mean_update=_mean(blobs, spec, parts),
        learning_rate=spec.aggregation.learning_rate,
        momentum=spec.aggregation.momentum,
    )


def alignments(blobs: Blobs, spec: TaskSpec, parts: Sequence[WeightedUpload]) -> list[float]:
    """How well each update agrees with the sum of the others, as a score that is N(0, 1) for random directions.

    Two passes over the updates, so that memory does not grow with their number.
    """
    total = np.zeros(spec.dimension)
    for part in parts:
        total += part.weight * _clipped(blobs, spec, part)
    norms, products = [], []
    for part in parts:
        weighted = part.weight * _clipped(blobs, spec, part)
        norms.append(float(weighted.dot(weighted)))
        products.append(float(weighted.dot(total)))
    moments = RoundMoments(
        squared_norms=np.array(norms), sum_products=np.array(products), sum_squared_norm=float(total.dot(total))
    )
    return [float(score) for score in alignment(moments=moments, dimension=spec.dimension)]


def _mean(blobs: Blobs, spec: TaskSpec, parts: Sequence[WeightedUpload]) -> Vector:
    """The mean by the rule of the task. The updates are streamed, so that memory does not grow with their number."""
    if spec.aggregation.rule is AggregationRule.TRIMMED_MEAN:
        return _trimmed_mean(blobs, spec, parts)

    def stream() -> Iterator[tuple[float, npt.NDArray[Any]]]:
        for part in parts:
            yield part.weight, _clipped(blobs, spec, part)

    return weighted_mean(updates=stream(), dimension=spec.dimension)


def _trimmed_mean(blobs: Blobs, spec: TaskSpec, parts: Sequence[WeightedUpload]) -> Vector:
    """The trimmed mean reads all updates side by side, a piece of each at a time, after their digests were checked."""
    files = [blobs.checked_path(part.digest) for part in parts]

    def read(index: int, piece: slice) -> npt.NDArray[Any]:
        values = np.fromfile(files[index], dtype="<f4", count=piece.stop - piece.start, offset=4 * piece.start)
        return values.astype(np.float64) * parts[index].scale

    return trimmed_mean(
        read=read,
        weights=[part.weight for part in parts],
        dimension=spec.dimension,
        trim=spec.aggregation.trim or 0.0,
    )


def _clipped(blobs: Blobs, spec: TaskSpec, part: WeightedUpload) -> npt.NDArray[Any]:
    """An update within its norm bound."""
    vector = decode(blobs.get(part.digest), dimension=spec.dimension)
    return vector if part.scale == 1 else vector.astype(np.float64) * part.scale


def initial_parameters(spec: TaskSpec) -> Parameters:
    """Version 0: zero for convex models; otherwise each layer uniform in ±1/sqrt(fan-in).

    It depends on workload and layout only, so that tasks that differ in game or privacy start from the same model.
    """
    if spec.workload.convex:
        return np.zeros(spec.dimension, dtype=np.float32)
    what = f"{spec.workload.model_dump_json()}{spec.layout.model_dump_json()}"
    source = np.random.default_rng(list(hashlib.sha256(what.encode()).digest()))
    tensors, bound = {}, 1.0
    for tensor in spec.layout.tensors:
        if len(tensor.shape) > 1:
            bound = (tensor.size / tensor.shape[0]) ** -0.5
        tensors[tensor.name] = source.uniform(-bound, bound, tensor.shape)
    return flatten(tensors=tensors, layout=spec.layout)


def save_model(blobs: Blobs, version: int, state: ServerState) -> Model:
    """Write a model durably; momentum only if it is not zero."""
    digest = blobs.put(encode(state.parameters))
    momentum = blobs.put(state.momentum.astype("<f8").tobytes()) if state.momentum.any() else None
    return Model(version=version, digest=digest, momentum_digest=momentum)


def require_stored(blobs: Blobs, model: Model) -> None:
    """Raise `StoreBusy` if a sweep has removed the files of a model before its row was written.

    That happens to a process that was paused for longer than the grace period of the sweep.
    """
    if not all(blobs.has(digest) for digest in (model.digest, model.momentum_digest) if digest is not None):
        raise StoreBusy("the model was swept before it was recorded; try again")


def load_model(blobs: Blobs, model: Model, dimension: int) -> ServerState:
    """Read a model and check its digests. Raises `DamagedState`."""
    parameters = decode(blobs.get(model.digest), dimension=dimension)
    if model.momentum_digest is None:
        return ServerState.start(parameters)
    momentum = np.frombuffer(blobs.get(model.momentum_digest), dtype="<f8").astype(np.float64)
    if momentum.shape != (dimension,):
        raise DamagedState(f"the momentum of model version {model.version} has length {momentum.size}, not {dimension}")
    return ServerState(parameters=parameters, momentum=momentum)
