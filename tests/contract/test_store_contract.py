"""What the store promises, on SQLite and on PostgreSQL alike."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import text

from qidpfl_server.clock import SECOND, seconds
from qidpfl_server.domain import Client, ClientState, Model, Round, RoundInvitation, Task, Update
from qidpfl_server.errors import DamagedState, RequestRefused
from qidpfl_server.identifiers import hash_secret
from qidpfl_server.service.enrolment import enrol, store_profile
from qidpfl_server.service.evaluation import Evaluation, Score
from qidpfl_server.service.lifecycle import get_task, get_task_for_update
from qidpfl_server.service.settlement import settle_if_due
from qidpfl_server.service.settlement_timer import Timing
from qidpfl_server.service.submissions import BudgetAnswer, declare_budgets
from qidpfl_server.service.tasks import create_task, save_initial_model, task_spec
from qidpfl_server.service.views import round_result
from qidpfl_server.store.blobs import Blobs
from qidpfl_server.store.database import migrate, open_engine
from qidpfl_server.store.store import Store
from qidpfl_server.store.transaction import Transaction
from qidpfl_shared.core.aggregation import Parameters
from qidpfl_shared.core.planning import Standing
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import Declaration, EnrolRequest, Profile, RoundState, TaskState
from qidpfl_shared.protocol.task_spec import TaskSpec

NOW = 1_800_000_000 * SECOND
CLIENTS = 3
SPEC = task_spec("digits", {"rounds": {"expected_clients": CLIENTS}})
Open = Callable[[], Store]


@pytest.fixture
def opened(store_url: str, tmp_path: Path) -> Iterator[Open]:
    """Opens the store, as often as wanted, as another process would."""
    stores: list[Store] = []

    def another() -> Store:
        engine = open_engine(store_url)
        migrate(engine)
        stores.append(Store(engine, Blobs(tmp_path / "blobs")))
        return stores[-1]

    yield another
    for store in stores:
        store.close()


@pytest.fixture
def store(opened: Open) -> Store:
    return opened()


def test_a_task_moves_only_from_the_state_it_is_in(store: Store) -> None:
    task_id = new_task(store).task_id
    move = {"before": TaskState.ENROLLING, "after": TaskState.TRAINING}
    assert [store.write(lambda tx: tx.tasks.move(task_id, **move)) for _ in range(2)] == [True, False]
    end: dict[str, Any] = {"after": TaskState.STOPPED, "reason": "enough", "at": NOW}
    assert not store.write(lambda tx: tx.tasks.end(task_id, before=TaskState.ENROLLING, **end))
    assert task_of(store, task_id).state is TaskState.TRAINING and task_of(store, task_id).reason is None
    assert store.write(lambda tx: tx.tasks.end(task_id, before=TaskState.TRAINING, **end))
    assert (task_of(store, task_id).state, task_of(store, task_id).reason) == (TaskState.STOPPED, "enough")


def test_a_round_changes_only_if_state_and_attempt_are_those_known(store: Store) -> None:
    known = round_of(new_task(store).task_id)
    store.write(lambda tx: tx.rounds.insert(known))
    deadlines = {"declare_by": known.declare_by, "deliver_by": known.deliver_by}
    result: dict[str, Any] = {"kept_micro": 0, "declared_total": 0.0, "accuracy": None, "loss": None}
    assert store.write(lambda tx: tx.rounds.start_attempt(known, **deadlines))
    assert not store.write(lambda tx: tx.rounds.settle(known, settled_at=NOW, **result))
    again = round_of(known.task_id, attempt=2)
    assert store.write(lambda tx: tx.rounds.void(again))
    assert not store.write(lambda tx: tx.rounds.settle(again, settled_at=NOW, **result))
    assert store.read(lambda tx: tx.rounds.get(known.task_id, 1)) == round_of(
        known.task_id, attempt=2, state=RoundState.VOID
    )


def test_of_many_who_change_the_same_state_one_succeeds(opened: Open) -> None:
    task_id = new_task(opened()).task_id

    def move(store: Store) -> bool:
        return store.write(lambda tx: tx.tasks.move(task_id, before=TaskState.ENROLLING, after=TaskState.TRAINING))

    assert at_once([opened() for _ in range(4)], move).count(True) == 1


def test_a_refused_write_leaves_nothing_and_harms_no_neighbour_of_its_commit(store: Store) -> None:
    task_id = new_task(store).task_id
    told: list[set[str]] = []
    store.on_commit(told.append)

    def good(tx: Transaction, name: str) -> str:
        tx.events.add(task_id, name, at=NOW)
        return name

    def refused(tx: Transaction, name: str) -> str:
        tx.touch("never")
        good(tx, name)
        raise RequestRefused(ErrorCode.NOT_FOUND, name)

    def impossible(tx: Transaction, name: str) -> str:
        tx.touch("never")
        good(tx, name)
        tx.tasks.add_model(task_id, Model(version=0, digest="d", momentum_digest=None), NOW)
        return name

    def surprising(tx: Transaction, name: str) -> str:
        good(tx, name)
        raise ZeroDivisionError(name)

    works = [good, refused, good, impossible, surprising, good] * 3
    names = [f"{work.__name__}-{number}" for number, work in enumerate(works)]
    with ThreadPoolExecutor(len(works)) as threads, held_up(store):
        writes = [
            threads.submit(store.write, lambda tx, work=work, name=name: work(tx, name))
            for work, name in zip(works, names, strict=True)
        ]
    expected = {
        "good": type(None),
        "refused": RequestRefused,
        "impossible": DamagedState,
        "surprising": ZeroDivisionError,
    }
    assert [type(write.exception()) for write in writes] == [expected[work.__name__] for work in works]
    assert [write.result() for write in writes if write.exception() is None] == [n for n in names if "good" in n]
    assert {name for name in kinds(store, task_id) if "-" in name} == {name for name in names if "good" in name}
    assert not any("never" in touched for touched in told)


def test_concurrent_writes_are_all_durable_when_they_return(opened: Open) -> None:
    stores = [opened(), opened()]
    task_id = new_task(stores[0]).task_id
    names = [f"write-{number}" for number in range(60)]
    reader = opened()

    def add(store: Store, name: str) -> bool:
        store.write(lambda tx: tx.events.add(task_id, name, at=NOW))
        return name in kinds(reader, task_id)

    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(add, stores * 30, names))
    assert sorted(kind for kind in kinds(stores[0], task_id) if "write" in kind) == sorted(names)


def test_what_happens_once_per_round_and_client_has_one_row(store: Store) -> None:
    held, clients = open_round(store)
    client_id = clients[0].client_id
    update = Update(client_id=client_id, digest="a" * 64, byte_length=4, squared_norm=1.0, received_at=NOW)
    other = Update(client_id=client_id, digest="b" * 64, byte_length=4, squared_norm=1.0, received_at=NOW)
    store.write(lambda tx: tx.rounds.insert_update(held, update))
    store.write(lambda tx: tx.rounds.pay(held, {client_id: 5}))
    invitation = RoundInvitation(client_id=client_id, standing=Standing.INVITED, expected_rho=1.0)
    seconds: list[Callable[[Transaction], None]] = [
        lambda tx: tx.rounds.insert_update(held, other),
        lambda tx: tx.rounds.pay(held, {client_id: 7}),
        lambda tx: tx.rounds.invite(held, [invitation]),
        lambda tx: tx.rounds.insert(held),
    ]
    for second in seconds:
        with pytest.raises(DamagedState):
            store.write(second)
    assert store.read(lambda tx: tx.rounds.updates(held.task_id, 1)) == {client_id: update}
    assert store.read(lambda tx: tx.rounds.payments(held.task_id, 1)) == {client_id: 5}


def test_rows_of_unknown_clients_and_rounds_are_refused(store: Store) -> None:
    held, clients = open_round(store)
    with pytest.raises(DamagedState):
        store.write(lambda tx: tx.rounds.pay(held, {"nobody": 1}))
    with pytest.raises(DamagedState):
        store.write(lambda tx: tx.rounds.pay(round_of(held.task_id, round_number=9), {clients[0].client_id: 1}))


def test_a_write_sees_what_it_wrote_and_so_does_every_later_read(opened: Open) -> None:
    store, other = opened(), opened()
    task_id = new_task(store).task_id

    def write_then_read(tx: Transaction) -> list[str]:
        tx.events.add(task_id, "written", at=NOW)
        return [event.kind for event in tx.events.after(task_id, 0)]

    assert "written" in store.write(write_then_read)
    assert "written" in kinds(store, task_id) and "written" in kinds(other, task_id)


def test_a_snapshot_shows_one_moment_while_others_write(opened: Open) -> None:
    store, other = opened(), opened()
    task_id = new_task(store).task_id

    def read_twice(tx: Transaction) -> bool:
        before = tx.events.after(task_id, 0)
        other.write(lambda tx: tx.events.add(task_id, "in-between", at=NOW))
        return before == tx.events.after(task_id, 0)

    assert store.read(read_twice, snapshot=True)
    assert "in-between" in kinds(store, task_id)


def test_a_read_does_not_wait_for_whoever_changes_the_task(opened: Open) -> None:
    store, other = opened(), opened()
    task_id = new_task(store).task_id

    def change_and_ask(tx: Transaction) -> TaskState:
        get_task_for_update(tx, task_id)
        tx.tasks.move(task_id, before=TaskState.ENROLLING, after=TaskState.TRAINING)
        return other.read(lambda reading: get_task(reading, task_id).state)

    assert store.write(change_and_ask) is TaskState.ENROLLING


def test_the_change_counter_counts_the_commits_that_change_a_task(opened: Open) -> None:
    store, other = opened(), opened()
    task_id = new_task(store).task_id
    start = store.read(lambda tx: tx.change_counter())
    assert start == 1
    store.write(lambda tx: tx.touch(task_id))
    other.write(lambda tx: tx.touch(task_id))
    store.write(lambda tx: tx.events.add(task_id, "quiet", at=NOW))

    def refused(tx: Transaction) -> None:
        tx.touch(task_id)
        raise RequestRefused(ErrorCode.NOT_FOUND)

    with pytest.raises(RequestRefused):
        store.write(refused)
    assert store.read(lambda tx: tx.change_counter()) == start + 2


def test_the_first_counted_changes_of_several_processes_do_not_collide(opened: Open) -> None:
    stores = [opened() for _ in range(4)]
    at_once(stores, lambda store: store.write(lambda tx: tx.touch("a task")))
    # Each process commits by itself.
    assert stores[0].read(lambda tx: tx.change_counter()) == len(stores)


def test_a_store_that_is_opened_again_has_everything(opened: Open) -> None:
    store = opened()
    task_id, _ = delivered_round(store)
    before = everything(store, task_id)
    assert before == everything(opened(), task_id)
    assert settle_if_due(store, task_id, None, NOW)
    after = everything(store, task_id)
    assert after != before and after == everything(opened(), task_id)


def test_several_may_open_an_empty_store_at_the_same_time(store_url: str) -> None:
    engines = [open_engine(store_url) for _ in range(4)]
    if store_url.startswith("sqlite"):
        # The file is made by the first: `serve` is alone on it.
        migrate(engines[0])
    at_once(engines, migrate)
    for engine in engines:
        engine.dispose()


def test_a_store_of_a_newer_program_is_refused_and_left_alone(store: Store, store_url: str) -> None:
    with store.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'from_the_future'"))
    engine = open_engine(store_url)
    with pytest.raises(DamagedState) as refusal:
        migrate(engine)
    assert "from_the_future" in str(refusal.value) and str(engine.url.database) in str(refusal.value)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() == "from_the_future"
    engine.dispose()


TIMINGS: dict[str, Any] = {"opened_at": None, "settlement_s": None, "evaluation_s": None}


def test_a_store_from_before_rounds_were_timed_goes_on(opened: Open, store_url: str) -> None:
    store = opened()
    task_id, _ = delivered_round(store)
    assert settle_if_due(store, task_id, None, NOW)
    before = store.read(lambda tx: tx.rounds.of_task(task_id))
    with store.engine.begin() as connection:
        for column in TIMINGS:
            connection.execute(text(f"ALTER TABLE rounds DROP COLUMN {column}"))
        connection.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    upgraded = opened()
    assert upgraded.read(lambda tx: tx.rounds.of_task(task_id)) == [replace(held, **TIMINGS) for held in before]
    shown = upgraded.read(lambda tx: round_result(tx, task_of(upgraded, task_id), 1))
    assert shown.state is RoundState.SETTLED and shown.timing is None
    assert settle_if_due(upgraded, task_id, None, NOW, stop=True)
    assert task_of(upgraded, task_id).state is TaskState.STOPPED


# --- how long a settlement takes -------------------------------------------------------------------------------------


@dataclass
class Slow:
    """An evaluator that takes its time."""

    takes_s: float = 0.2
    scores: bool = True

    def prepare(self) -> None:
        """Nothing is needed."""

    def evaluate(self, spec: TaskSpec, parameters: Parameters) -> Evaluation | None:
        time.sleep(self.takes_s)
        score = Score(accuracy=0.5, loss=1.0)
        return Evaluation(deciding=score, reported=score) if self.scores else None


def test_a_settled_round_tells_how_long_its_settlement_and_evaluation_took(store: Store) -> None:
    task_id, _ = delivered_round(store)
    observed: list[Timing] = []
    began = time.perf_counter()
    assert settle_if_due(store, task_id, Slow(), NOW, observe=observed.append)
    took_s = time.perf_counter() - began
    held, following = store.read(lambda tx: tx.rounds.of_task(task_id))
    assert held.settlement_s is not None and held.evaluation_s is not None and held.settled_at is not None
    assert held.evaluation_s >= 0.2 and 0 < held.settlement_s < took_s - 0.2
    assert held.opened_at == NOW
    # The round is closed when it is closed, and the next one begins then: nobody's time is taken by the evaluation.
    assert NOW + seconds(0.2) <= held.settled_at <= NOW + seconds(took_s)
    assert following.opened_at == held.settled_at
    assert following.declare_by == held.settled_at + seconds(SPEC.rounds.declare_s)
    (timing,) = observed
    assert timing.evaluation_s == held.evaluation_s and timing.settlement_s >= held.settlement_s


@pytest.mark.parametrize("evaluator", [None, Slow(scores=False)])
def test_what_was_not_evaluated_took_no_time_to_evaluate(store: Store, evaluator: Slow | None) -> None:
    task_id, _ = delivered_round(store)
    assert settle_if_due(store, task_id, evaluator, NOW)
    (held, following) = store.read(lambda tx: tx.rounds.of_task(task_id))
    assert held.settlement_s is not None and held.evaluation_s is None
    assert (following.settled_at, following.settlement_s) == (None, None)
    task = task_of(store, task_id)
    shown = [store.read(lambda tx, n=n: round_result(tx, task, n)).timing for n in (1, 2)]  # type: ignore[misc]
    assert shown[0] is not None and shown[0].settlement_s == held.settlement_s
    assert shown[1] is not None and shown[1].settled_at is None and shown[1].opened_at == shown[0].settled_at


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


def test_of_many_who_settle_a_round_one_does(opened: Open) -> None:
    task_id, clients = delivered_round(opened())
    stores = [opened() for _ in range(4)]
    assert at_once(stores, lambda store: settle_if_due(store, task_id, None, NOW)).count(True) == 1
    held = stores[0].read(lambda tx: tx.rounds.get(task_id, 1))
    payments = stores[0].read(lambda tx: tx.rounds.payments(task_id, 1))
    assert held is not None and held.state is RoundState.SETTLED
    assert set(payments) == {client.client_id for client in clients}
    assert sum(payments.values()) + (held.kept_micro or 0) == held.reward_micro
    assert [model.version for model in stores[0].read(lambda tx: tx.tasks.models(task_id))] == [0, 1]
    assert kinds(stores[0], task_id).count("round.settled") == 1
    assert not settle_if_due(stores[0], task_id, None, NOW)


def test_a_profile_sent_twice_at_once_is_stored_once(opened: Open) -> None:
    store = opened()
    task = new_task(store)
    client_id = new_client(store, task, "first")
    profiles = [profile(value) for value in (1.0, 2.0, 3.0, 4.0)]
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


def new_task(store: Store) -> Task:
    model = save_initial_model(store.blobs, SPEC)
    created = store.write(
        lambda tx: create_task(
            tx, name="task", preset_name="digits", spec=SPEC, model=model, single_use_codes=0, now=NOW
        )
    )
    # A code that the test can make up again.
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
    held = store.read(lambda tx: tx.rounds.get(task.task_id, 1))
    assert held is not None
    return held, store.read(lambda tx: tx.clients.in_state(task.task_id, ClientState.SELECTED))


def delivered_round(store: Store) -> tuple[str, list[Client]]:
    """A task whose first round is ready to settle."""
    held, clients = open_round(store)
    for client in clients:
        noise = np.random.default_rng(client.ordinal).standard_normal(SPEC.dimension)
        data = (noise * 2**0.5 / (110 * 0.05**0.5)).astype("<f4").tobytes()
        update = Update(
            client_id=client.client_id,
            digest=store.blobs.put(data),
            byte_length=len(data),
            squared_norm=1.0,
            received_at=NOW,
        )

        def deliver(tx: Transaction, client: Client = client, update: Update = update) -> None:
            declare_budgets(
                tx, held.task_id, 1, [BudgetAnswer(client_id=client.client_id, request=Declaration(rho=0.05), at=NOW)]
            )
            tx.rounds.insert_update(held, update)

        store.write(deliver)
    return held.task_id, clients


def round_of(task_id: str, **values: Any) -> Round:
    usual: dict[str, Any] = {
        "round_number": 1,
        "attempt": 1,
        "state": RoundState.OPEN,
        "reward_micro": 10,
        "total": 0.1,
        "min_updates": 3,
        "base_version": 0,
        "declare_by": NOW,
        "deliver_by": NOW,
    }
    return Round(task_id=task_id, **(usual | values))


def task_of(store: Store, task_id: str) -> Task:
    task = store.read(lambda tx: tx.tasks.get(task_id))
    assert task is not None
    return task


def kinds(store: Store, task_id: str) -> list[str]:
    return [event.kind for event in store.read(lambda tx: tx.events.after(task_id, 0))]


def everything(store: Store, task_id: str) -> list[Any]:
    def read(tx: Transaction) -> list[Any]:
        rounds = tx.rounds.of_task(task_id)
        numbers = [held.round_number for held in rounds]
        return [
            tx.tasks.all(),
            tx.tasks.models(task_id),
            tx.clients.of_task(task_id),
            rounds,
            [tx.rounds.invitations(task_id, number) for number in numbers],
            [tx.rounds.budgets(task_id, number) for number in numbers],
            [tx.rounds.updates(task_id, number) for number in numbers],
            [tx.rounds.payments(task_id, number) for number in numbers],
            tx.events.after(task_id, 0),
            tx.change_counter(),
        ]

    return store.read(read)


def at_once(things: list[Any], work: Callable[[Any], Any]) -> list[Any]:
    """Do the same with each thing in a thread of its own, all starting together."""
    start = threading.Barrier(len(things))

    def go(thing: Any) -> Any:
        start.wait()
        return work(thing)

    with ThreadPoolExecutor(len(things)) as threads:
        return list(threads.map(go, things))


@contextmanager
def held_up(store: Store) -> Iterator[None]:
    """Keep the writer busy meanwhile, so that what is written within shares its next commit."""
    busy, go_on = threading.Event(), threading.Event()

    def hold(_: Transaction) -> None:
        busy.set()
        go_on.wait(60)

    with ThreadPoolExecutor(1) as thread:
        holding = thread.submit(store.write, hold)
        busy.wait(60)
        yield
        # Time for the threads to hand in their writes; whoever comes later gets a commit of its own.
        go_on.wait(0.3)
        go_on.set()
        holding.result()
