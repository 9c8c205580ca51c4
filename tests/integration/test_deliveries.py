"""What comes in: how large it may be, and when it wakes the coordinator."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from qidpfl_server.ops.open_store import opened_store
from qidpfl_server.service.submissions import StagedDelivery, accept_updates, largest_norm
from qidpfl_server.settings import Settings
from qidpfl_server.store.store import Store
from qidpfl_server.store.transaction import Transaction
from qidpfl_shared.protocol.mechanism_specs import (
    BoltOn,
    GradientOnce,
    MechanismSpec,
    NoisyEpochs,
    PaperLiteral,
    UpdateClip,
)
from support.coordinators import Coordinator, ScriptedClient, running

pytestmark = pytest.mark.live

MECHANISMS = (
    GradientOnce(clip_norm=1.0),
    NoisyEpochs(clip_norm=1.0, learning_rate=0.1, epochs=2, batch_size=10),
    UpdateClip(clip_norm=1.0, learning_rate=0.1, epochs=2, batch_size=10),
    PaperLiteral(clip_norm=1.0, learning_rate=0.1, epochs=2, batch_size=10),
    BoltOn(feature_norm=1.0, learning_rate=0.1, epochs=2, batch_size=10),
)


def gathered(coordinator: Coordinator) -> list[ScriptedClient]:
    """Three clients of a task whose first round is open for long."""
    windows = {"declare_s": 600.0, "deliver_s": 600.0, "expected_clients": 3, "min_clients": 2, "min_updates": 2}
    task_id, code = coordinator.create_task(rounds=windows)
    clients = [ScriptedClient(coordinator.url, task_id, code, f"key-of-delivering-client-{n}") for n in range(3)]
    for client in clients:
        client.enrol()
        client.profile().raise_for_status()
    return clients


@pytest.mark.parametrize("spec", MECHANISMS, ids=lambda spec: str(spec.name))
@pytest.mark.parametrize("dimension", [1, 650, 100_000])
def test_no_honest_upload_comes_near_the_largest_norm(spec: MechanismSpec, dimension: int) -> None:
    mechanism, size, rho, rng = spec.build(), 110, 0.01, np.random.default_rng(dimension)
    largest = largest_norm(mechanism, size=size, rho=rho, dimension=dimension)
    noise = mechanism.noise_std(rho=rho, size=size) * rng.standard_normal((20, dimension))
    noise[:, 0] += mechanism.signal_bound(size=size)
    assert np.linalg.norm(noise, axis=1).max() < largest
    assert 3 * np.linalg.norm(noise[:, 1:], axis=1).max(initial=0.0) < largest


def test_the_last_upload_after_the_time_to_declare_wakes_the_coordinator(tmp_path: Path) -> None:
    with running(tmp_path) as live:
        clients = gathered(live)
        news = clients[0].poll(wait=40)
        assert news is not None
        offer = news["round"]
        for client in clients[:2]:
            client.declare(offer).raise_for_status()
    task_id = clients[0].task_id
    with opened_store(Settings(state_dir=tmp_path)) as store:
        held = store.read(lambda tx: tx.rounds.get(task_id, 1))
        assert held is not None
        # The third is silent: it is waited for as long as it may still answer.
        assert _touched(store, clients[0], clients[0].update(offer), held.declare_by) == set()
        assert _touched(store, clients[1], clients[1].update(offer), held.declare_by + 1) == {task_id}


def _touched(store: Store, client: ScriptedClient, data: bytes, moment: int) -> set[str]:
    """The tasks that an upload at this moment announces a change of."""

    def deliver(tx: Transaction) -> set[str]:
        (receipt,) = accept_updates(tx, client.task_id, 1, [staged])
        assert not isinstance(receipt, Exception)
        return set(tx.touched)

    with store.blobs.stage() as blob:
        blob.write(data)
        blob.sync()
        digest = hashlib.sha256(data).hexdigest()
        staged = StagedDelivery(client_id=client.client_id, digest=digest, at=moment, blob=blob, squared_norm=1.0)
        return store.write(deliver)
