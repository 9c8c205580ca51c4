"""Rounds and their settlement in the store, on SQLite and on PostgreSQL."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import event, update

from qidpfl_server.clock import seconds
from qidpfl_server.domain import Payment, Round, RoundInvitation, RoundSums, Update
from qidpfl_server.errors import DamagedState
from qidpfl_server.service.rounds.deferred_evaluation import evaluate_settled
from qidpfl_server.service.rounds.settlement import settle_if_due
from qidpfl_server.service.rounds.settlement_timer import Timing
from qidpfl_server.service.scoring import Evaluation, Score
from qidpfl_server.service.views import round_result
from qidpfl_server.store.schema import rounds
from qidpfl_server.store.store import Store
from qidpfl_server.store.transaction import Transaction
from qidpfl_shared.core.aggregation import Parameters
from qidpfl_shared.core.planning import Standing
from qidpfl_shared.protocol.messages import RoundState
from qidpfl_shared.protocol.task_spec import TaskSpec
from support.store_rows import NOW, SPEC, Open, at_once, delivered_round, kinds, new_task, open_round, task_of


def test_a_round_changes_only_if_state_and_attempt_are_those_known(store: Store) -> None:
    known = round_of(new_task(store).task_id)
    store.write(lambda tx: tx.rounds.insert(known))
    deadlines = {"declare_by": known.declare_by, "deliver_by": known.deliver_by}
    result: dict[str, Any] = {
        "kept_micro": 0,
        "declared_total": 0.0,
        "accuracy": None,
        "loss": None,
        "sums": RoundSums(),
    }
    assert store.write(lambda tx: tx.rounds.start_attempt(known, **deadlines))
    assert not store.write(lambda tx: tx.rounds.settle(known, settled_at=NOW, **result))
    again = round_of(known.task_id, attempt=2)
    assert store.write(lambda tx: tx.rounds.void(again))
    assert not store.write(lambda tx: tx.rounds.settle(again, settled_at=NOW, **result))
    assert store.read(lambda tx: tx.rounds.get(known.task_id, 1)) == round_of(
        known.task_id, attempt=2, state=RoundState.VOID
    )


def test_each_round_and_client_has_one_row_per_table(store: Store) -> None:
    round_, clients = open_round(store)
    client_id = clients[0].client_id
    update = Update(client_id=client_id, digest="a" * 64, byte_length=4, squared_norm=1.0, received_at=NOW)
    other = Update(client_id=client_id, digest="b" * 64, byte_length=4, squared_norm=1.0, received_at=NOW)
    store.write(lambda tx: tx.rounds.insert_update(round_, update))
    store.write(lambda tx: tx.payments.pay(round_, {client_id: Payment(amount_micro=5)}))
    invitation = RoundInvitation(client_id=client_id, standing=Standing.INVITED, expected_rho=1.0)
    seconds: list[Callable[[Transaction], None]] = [
        lambda tx: tx.rounds.insert_update(round_, other),
        lambda tx: tx.payments.pay(round_, {client_id: Payment(amount_micro=7)}),
        lambda tx: tx.rounds.invite(round_, [invitation]),
        lambda tx: tx.rounds.insert(round_),
    ]
    for second in seconds:
        with pytest.raises(DamagedState):
            store.write(second)
    assert store.read(lambda tx: tx.rounds.updates(round_.task_id, 1)) == {client_id: update}
    assert store.read(lambda tx: tx.payments.of_round(round_.task_id, 1)) == {client_id: Payment(amount_micro=5)}


def test_rows_of_unknown_clients_and_rounds_are_refused(store: Store) -> None:
    round_, clients = open_round(store)
    with pytest.raises(DamagedState):
        store.write(lambda tx: tx.payments.pay(round_, {"nobody": Payment(amount_micro=1)}))
    with pytest.raises(DamagedState):
        store.write(
            lambda tx: tx.payments.pay(
                round_of(round_.task_id, round_number=9), {clients[0].client_id: Payment(amount_micro=1)}
            )
        )


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
    round_, following = store.read(lambda tx: tx.rounds.of_task(task_id))
    assert round_.settlement_s is not None and round_.evaluation_s is not None and round_.settled_at is not None
    assert round_.evaluation_s >= 0.2 and 0 < round_.settlement_s < took_s - 0.2
    assert round_.opened_at == NOW
    # The next round begins when this one is closed, so the evaluation takes none of its time.
    assert NOW + seconds(0.2) <= round_.settled_at <= NOW + seconds(took_s)
    assert following.opened_at == round_.settled_at
    assert following.declare_by == round_.settled_at + seconds(SPEC.rounds.declare_s)
    (timing,) = observed
    assert timing.evaluation_s == round_.evaluation_s and (timing.settlement_s or 0) >= round_.settlement_s


@pytest.mark.parametrize("evaluator", [None, Slow(scores=False)])
def test_a_round_without_evaluation_has_no_evaluation_time(store: Store, evaluator: Slow | None) -> None:
    task_id, _ = delivered_round(store)
    assert settle_if_due(store, task_id, evaluator, NOW)
    (round_, following) = store.read(lambda tx: tx.rounds.of_task(task_id))
    assert round_.settlement_s is not None and round_.evaluation_s is None
    assert (following.settled_at, following.settlement_s) == (None, None)
    task = task_of(store, task_id)
    shown = [store.read(lambda tx, n=n: round_result(tx, task, n)).timing for n in (1, 2)]  # type: ignore[misc]
    assert shown[0] is not None and shown[0].settlement_s == round_.settlement_s
    assert shown[1] is not None and shown[1].settled_at is None and shown[1].opened_at == shown[0].settled_at


def test_one_of_many_processes_settles_a_round(opened: Open) -> None:
    task_id, clients = delivered_round(opened())
    stores = [opened() for _ in range(4)]
    assert at_once(stores, lambda store: settle_if_due(store, task_id, None, NOW) is not None).count(True) == 1
    round_ = stores[0].read(lambda tx: tx.rounds.get(task_id, 1))
    payments = stores[0].read(lambda tx: tx.payments.of_round(task_id, 1))
    assert round_ is not None and round_.state is RoundState.SETTLED
    assert set(payments) == {client.client_id for client in clients}
    assert sum(payment.amount_micro for payment in payments.values()) + (round_.kept_micro or 0) == round_.reward_micro
    assert [model.version for model in stores[0].read(lambda tx: tx.tasks.models(task_id))] == [0, 1]
    assert kinds(stores[0], task_id).count("round.settled") == 1
    assert not settle_if_due(stores[0], task_id, None, NOW)


def test_one_of_many_processes_stores_the_scores_of_a_settled_round(opened: Open) -> None:
    store = opened()
    task_id, _ = delivered_round(store)
    assert settle_if_due(store, task_id, None, NOW)
    with store.engine.begin() as connection:
        connection.execute(update(rounds).where(rounds.c.round_number == 1).values(evaluation_deferred=True))
    evaluator = Slow(takes_s=0.05)
    stored = at_once([opened() for _ in range(4)], lambda process: evaluate_settled(process, task_id, evaluator, NOW))
    assert stored.count(True) == 1
    round_ = store.read(lambda tx: tx.rounds.get(task_id, 1))
    assert round_ is not None and (round_.accuracy, round_.loss) == (0.5, 1.0) and not round_.awaits_evaluation
    assert kinds(store, task_id).count("round.evaluated") == 1
    assert not evaluate_settled(store, task_id, evaluator, NOW)


def test_known_digests_are_those_of_the_task(store: Store) -> None:
    task_id, clients = delivered_round(store)
    known = [one.digest for one in store.read(lambda tx: tx.rounds.updates(task_id, 1)).values()]
    assert len(known) == len(clients)
    for digests in (known, known[:1]):
        asked = [*digests, "0" * 64]
        assert store.read(lambda tx, asked=asked: tx.rounds.known_digests(task_id, asked)) == set(digests)  # type: ignore[misc]
    assert store.read(lambda tx: tx.rounds.known_digests("another", known)) == set()
    assert store.read(lambda tx: tx.rounds.known_digests("another", known[:1])) == set()


def test_several_digests_are_looked_up_by_their_index(store: Store) -> None:
    """Catches a query that reads all updates of the task: a round would then cost more with every round played."""
    asked: list[str] = []

    def plan(tx: Transaction) -> list[str]:
        event.listen(tx.connection, "before_cursor_execute", lambda *call: asked.append(call[2]))
        tx.rounds.known_digests("task", ["1", "2"])
        return [row[3] for row in tx.connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {asked[0]}", ("1", "2"))]

    if store.engine.dialect.name != "sqlite":
        pytest.skip("PostgreSQL chooses by the rows that a table has")
    assert ["ix_updates_digest" in line for line in store.read(plan)] == [True]


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
