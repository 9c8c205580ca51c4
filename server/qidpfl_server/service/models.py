"""The global model on disk: parameters as they go over the wire, momentum in full precision."""

import hashlib

import numpy as np

from qidpfl_shared.core.aggregation import Parameters, ServerState
from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.protocol.wire import decode, encode, flatten

from ..domain import Model
from ..errors import DamagedState, StoreBusy
from ..store.blobs import Blobs


def initial_parameters(spec: TaskSpec) -> Parameters:
    """Version 0: zero for convex models; else every layer uniform in ±1/sqrt(fan-in).

    It depends on workload and layout alone, so that tasks which differ in game or privacy start from the same model.
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
    """Write a model durably; momentum only where there is some."""
    digest = blobs.put(encode(state.parameters))
    momentum = blobs.put(state.momentum.astype("<f8").tobytes()) if state.momentum.any() else None
    return Model(version=version, digest=digest, momentum_digest=momentum)


def require_stored(blobs: Blobs, model: Model) -> None:
    """Refuse a model that was written so long ago that a sweep has taken it for forgotten.

    Checked when its row is written: who was held up for hours in between has to start again.
    """
    if not all(blobs.has(digest) for digest in (model.digest, model.momentum_digest) if digest is not None):
        raise StoreBusy("the model was swept before it was recorded; try again")


def load_model(blobs: Blobs, model: Model, dimension: int) -> ServerState:
    """Read a model and check it against its digests."""
    parameters = decode(blobs.get(model.digest), dimension=dimension)
    if model.momentum_digest is None:
        return ServerState.start(parameters)
    momentum = np.frombuffer(blobs.get(model.momentum_digest), dtype="<f8").astype(np.float64)
    if momentum.shape != (dimension,):
        raise DamagedState(f"the momentum of model version {model.version} has length {momentum.size}, not {dimension}")
    return ServerState(parameters=parameters, momentum=momentum)
