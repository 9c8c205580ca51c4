"""Tasks and clients in the store, on SQLite and on PostgreSQL."""

from typing import Any

import pytest
from sqlalchemy import text

from qidpfl_server.errors import DamagedState, RequestRefused
from qidpfl_server.service.enrolment import store_profile
from qidpfl_server.service.tasks import task_spec
from qidpfl_server.store.store import Store
from qidpfl_shared.protocol.messages import Profile, TaskState
from support.store_rows import NOW, Open, at_once, new_client, new_task, profile, task_of


def test_a_task_moves_only_from_the_state_it_is_in(store: Store) -> None:
    task_id = new_task(store).task_id
    move = {"before": TaskState.ENROLLING, "after": TaskState.TRAINING}
    assert [store.write(lambda tx: tx.tasks.move(task_id, **move)) for _ in range(2)] == [True, False]
    end: dict[str, Any] = {"after": TaskState.STOPPED, "reason": "enough", "at": NOW}
    assert not store.write(lambda tx: tx.tasks.end(task_id, before=TaskState.ENROLLING, **end))
    assert task_of(store, task_id).state is TaskState.TRAINING and task_of(store, task_id).reason is None
    assert store.write(lambda tx: tx.tasks.end(task_id, before=TaskState.TRAINING, **end))
    assert (task_of(store, task_id).state, task_of(store, task_id).reason) == (TaskState.STOPPED, "enough")


def test_one_of_many_processes_changes_the_same_state(opened: Open) -> None:
    task_id = new_task(opened()).task_id

    def move(store: Store) -> bool:
        return store.write(lambda tx: tx.tasks.move(task_id, before=TaskState.ENROLLING, after=TaskState.TRAINING))

    assert at_once([opened() for _ in range(4)], move).count(True) == 1


@pytest.mark.parametrize(
    ("spec", "message"),
    [("{}", "cannot be read"), (task_spec("digits", {"game": {"horizon": 7}}).model_dump_json(), "recorded digest")],
)
def test_a_tampered_spec_is_refused_with_its_place(store: Store, spec: str, message: str) -> None:
    task_id = new_task(store).task_id
    with store.engine.begin() as connection:
        connection.execute(text("UPDATE tasks SET spec = :spec"), {"spec": spec})
    with pytest.raises(DamagedState, match=f"spec of task {task_id} in table tasks.*{message}"):
        task_of(store, task_id)


def test_a_profile_sent_twice_at_once_is_stored_once(opened: Open) -> None:
    store = opened()
    task = new_task(store)
    client_id = new_client(store, task, "first")
    profiles = [profile(value) for value in (0.95, 1.0, 1.05, 1.1)]
    stores = [opened() for _ in profiles]

    def send(pair: tuple[Store, Profile]) -> str:
        own, sent = pair
        try:
            own.write(lambda tx: store_profile(tx, client_id, sent, NOW))
        except RequestRefused as error:
            return error.code.value
        return "stored"

    answers = at_once(list(zip(stores, profiles, strict=True)), send)
    assert sorted(answers) == ["profile_frozen"] * 3 + ["stored"]
    stored = store.read(lambda tx: tx.clients.get(client_id))
    assert stored is not None and stored.privacy_value == profiles[answers.index("stored")].privacy_value
