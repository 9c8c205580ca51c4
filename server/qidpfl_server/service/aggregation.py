"""The next global model from a round's accepted updates: what settlement computes and the audit computes again."""

from collections.abc import Iterator, Mapping, Sequence

from qidpfl_shared.core.aggregation import Parameters, ServerState, server_step, weighted_mean
from qidpfl_shared.core.reward import Weighting, aggregation_weights
from qidpfl_shared.protocol.wire import decode

from ..domain import Budget, Client, Model, Task, Update
from ..store.blobs import Blobs
from .models import load_model


def next_state(
    blobs: Blobs,
    task: Task,
    base: Model,
    accepted: Sequence[Client],
    budgets: Mapping[str, Budget],
    updates: Mapping[str, Update],
) -> ServerState:
    """The server's step along the mean of the accepted updates, streamed in the order given: memory does not grow."""
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
    """How much each update counts. Without noise there is no variance to weigh by, and size counts instead."""
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
