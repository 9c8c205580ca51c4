"""Tasks, clients and rounds that the contract tests write into a store."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from qidpfl_server.clock import SECOND
from qidpfl_server.domain import Client, ClientState, Round, Task, Update
from qidpfl_server.identifiers import hash_secret
from qidpfl_server.service.enrolment import enrol, store_profile
from qidpfl_server.service.rounds.submissions import BudgetAnswer, declare_budgets
from qidpfl_server.service.tasks import create_task, save_initial_model, task_spec
from qidpfl_server.store.store import Store
from qidpfl_server.store.transaction import Transaction
from qidpfl_shared.protocol.messages import Declaration, EnrolRequest, Profile
from qidpfl_shared.protocol.wire import decode, squared_norm

NOW = 1_800_000_000 * SECOND
CLIENTS = 3
# Deadlines that follow the clients are tested elsewhere.
SPEC = task_spec("digits", {"rounds": {"expected_clients": CLIENTS}, "defence": {"deadline_floor": 1.0}})
Open = Callable[[], Store]


def new_task(store: Store, name: str = "task") -> Task:
    model = save_initial_model(store.blobs, SPEC)
    created = store.write(
        lambda tx: create_task(tx, name=name, preset_name="digits", spec=SPEC, model=model, single_use_codes=0, now=NOW)
    )
    # A code that the test can derive again.
    known = hash_secret(f"{created.task.task_id}.code")
    store.write(lambda tx: tx.tasks.add_code(created.task.task_id, known, single_use=False))
    return created.task


def new_client(store: Store, task: Task, key: str) -> str:
    request = EnrolRequest(enrolment_code=f"{task.task_id}.code", enrolment_key=f"the-key-of-client-{key}")
    return store.write(lambda tx: enrol(tx, task.task_id, request, NOW)).client_id


def profile(privacy_value: float = 1.0) -> Profile:
    return Profile(label_counts=(11,) * 10, size=110, privacy_value=privacy_value, histogram_rho=0.1)


def open_round(store: Store) -> tuple[Round, list[Client]]:
    """A task in its first round."""
    task = new_task(store)
    for number in range(CLIENTS):
        client_id = new_client(store, task, str(number))
        store.write(lambda tx, known=client_id: store_profile(tx, known, profile(), NOW))  # type: ignore[misc]
    round_ = store.read(lambda tx: tx.rounds.get(task.task_id, 1))
    assert round_ is not None
    return round_, store.read(lambda tx: tx.clients.in_state(task.task_id, ClientState.SELECTED))


def delivered_round(store: Store) -> tuple[str, list[Client]]:
    """A task whose first round is ready to settle."""
    round_, clients = open_round(store)
    for client in clients:
        noise = np.random.default_rng(client.ordinal).standard_normal(SPEC.dimension)
        data = (noise * 2**0.5 / (110 * 0.05**0.5)).astype("<f4").tobytes()
        update = Update(
            client_id=client.client_id,
            digest=store.blobs.put(data),
            byte_length=len(data),
            squared_norm=squared_norm(decode(data, dimension=SPEC.dimension)),
            received_at=NOW,
        )

        def deliver(tx: Transaction, client: Client = client, update: Update = update) -> None:
            declare_budgets(
                tx, round_.task_id, 1, [BudgetAnswer(client_id=client.client_id, request=Declaration(rho=0.05), at=NOW)]
            )
            tx.rounds.insert_update(round_, update)

        store.write(deliver)
    return round_.task_id, clients


def task_of(store: Store, task_id: str) -> Task:
    task = store.read(lambda tx: tx.tasks.get(task_id))
    assert task is not None
    return task


def kinds(store: Store, task_id: str) -> list[str]:
    return [event.kind for event in store.read(lambda tx: tx.events.after(task_id, 0))]


def at_once(things: list[Any], work: Callable[[Any], Any]) -> list[Any]:
    """Run the same function for each item in a separate thread, all at the same time."""
    start = threading.Barrier(len(things))

    def go(thing: Any) -> Any:
        start.wait()
        return work(thing)

    with ThreadPoolExecutor(len(things)) as threads:
        return list(threads.map(go, things))
