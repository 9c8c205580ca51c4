"""Models and updates: each blob exists and matches its digest, and each model follows from its updates."""

import math

import numpy as np

from qidpfl_shared.protocol.messages import RoundState
from qidpfl_shared.protocol.wire import encode

from ...domain import Model, Round, Task
from ...service.rounds.aggregation import load_model, next_state
from ...service.rounds.weights import uploads_of, weighted_uploads
from ...store.blobs import Blobs
from ...store.transaction import Transaction
from ..records import RoundRecord
from ..report import Report

# The order of a sum changes its last digits: an upload is summed in the pieces in which it arrives.
_TOLERANCE = 1e-9


def audit_models(
    tx: Transaction, blobs: Blobs, task: Task, rounds: list[Round], first_kept: int, report: Report
) -> None:
    """Versions without a gap, one per settled round, each with a blob that matches its digest."""
    models = tx.tasks.models(task.task_id)
    settled = sum(round_.state is RoundState.SETTLED for round_ in rounds)
    report.require(
        [model.version for model in models] == list(range(settled + 1)),
        f"task {task.name}: model versions {[model.version for model in models]} for {settled} settled rounds",
    )
    for model in models[first_kept:]:
        with report.checking(f"task {task.name}: model version {model.version}"):
            load_model(blobs, model, task.spec.dimension)


def audit_deliveries(blobs: Blobs, record: RoundRecord, report: Report) -> None:
    """Every acknowledged update has a blob that matches its digest, and the norm that the noise audit has used."""
    for client_id, update in record.updates.items():
        place = f"{record.place}, client {client_id}"
        with report.checking(place):
            data = blobs.get(update.digest)
            report.require(len(data) == update.byte_length, f"{place}: the update has another length")
            squared_norm = _squared_norm(data)
            report.require(
                math.isclose(squared_norm, update.squared_norm, rel_tol=_TOLERANCE),
                f"{place}: the squared norm of the update is {squared_norm!r}, not {update.squared_norm!r}",
            )


def _squared_norm(data: bytes) -> float:
    """The squared norm of an update, from its bytes."""
    values = np.frombuffer(data, dtype="<f4").astype(np.float64)
    return float(values.dot(values))


def audit_recomputation(
    blobs: Blobs, record: RoundRecord, base: Model | None, published: Model | None, report: Report
) -> None:
    """The model recomputed from the stored updates equals the published one, bit for bit."""
    accepted = record.accepted
    needed = [record.updates[client_id].digest for client_id in accepted]
    if base is None or published is None or not accepted or not all(map(blobs.has, needed)):
        report.not_checkable.append(f"{record.place}: some of its updates or models are gone")
        return
    spec = record.task.spec
    uploads = uploads_of(spec, accepted, record.clients, record.budgets, record.invitations, record.updates)
    parts = weighted_uploads(spec, uploads, participants=len(record.invitations))
    state = next_state(blobs, spec, base, parts)
    report.require(
        encode(state.parameters) == blobs.get(published.digest),
        f"{record.place}: the model recomputed from its updates differs from the published one",
    )
