"""The global model: version 0, the next version from a round's accepted updates, and how versions are stored.

Parameters are stored as they go over the wire, momentum in full precision. Settlement and the audit compute the next
version with the same function.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from qidpfl_shared.core.aggregation import Parameters, ServerState, server_step, weighted_mean
from qidpfl_shared.core.reward import Weighting, aggregation_weights
from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.protocol.wire import decode, encode, flatten

from ..domain import Budget, Client, Model, Task, Update
from ..errors import DamagedState, StoreBusy
from ..store.blobs import Blobs


def next_state(
    blobs: Blobs,
    task: Task,
    base: Model,
    accepted: Sequence[Client],
    budgets: Mapping[str, Budget],
    updates: Mapping[str, Update],
) -> ServerState:
    """The state after the server's step along the mean of the accepted updates.

    The updates are streamed in the given order, so that memory does not grow with their number.
    """
    spec = task.spec

    def stream() -> Iterator[tuple[float, Parameters]]:
        for client, weight in zip(accepted, _weights(task, accepted, budgets), strict=True):
            yield weight, decode(blobs.get(updates[client.client_id].digest), dimension=spec.dimension)

    return server_step(
        state=load_model(blobs, base, spec.dimension),
        mean_update=weighted_mean(updates=stream(), dimension=spec.dimension),
        learning_rate=spec.aggregation.learning_rate,
        momentum=spec.aggregation.momentum,
    )


def _weights(task: Task, clients: Sequence[Client], budgets: Mapping[str, Budget]) -> list[float]:
    """The weight of each update. Without noise there is no variance to weigh by, so the size is used instead."""
    spec = task.spec
    mechanism = spec.privacy.mechanism.build()
    sizes = [client.size or 1 for client in clients]
    weighting = spec.aggregation.weighting
    if not spec.privacy.noise and weighting is Weighting.INVERSE_VARIANCE:
        weighting = Weighting.SIZE
    weights = aggregation_weights(
        weighting=weighting,
        budgets=[budgets[client.client_id].rho if spec.privacy.noise else 1.0 for client in clients],
        sizes=sizes,
        noise_scales=[mechanism.noise_scale(size=size) for size in sizes],
    )
    return [float(weight) for weight in weights]


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
