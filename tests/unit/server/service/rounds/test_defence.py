"""What a hostile client cannot do in a task with a defence: to the model, the money and the pace."""

from typing import Any

import numpy as np
import pytest

from qidpfl_server.domain import EndReason, Payment
from qidpfl_server.errors import RequestRefused
from qidpfl_server.service.deletion import delete_task
from qidpfl_server.service.enrolment import client_summaries, revoke_client
from qidpfl_server.service.lifecycle import end_task
from qidpfl_server.service.rounds.aggregation import load_model
from qidpfl_server.service.rounds.submissions import void_update
from qidpfl_server.store.transaction import Transaction
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import TaskState
from support.use_cases import ServedClient, ServedTask, UseCases

HORIZON: dict[str, Any] = {"game": {"horizon": 12}}


def refusal(refused: pytest.ExceptionInfo[RequestRefused]) -> ErrorCode:
    return refused.value.code


def model(task: ServedTask, version: int) -> np.ndarray[Any, Any]:
    found = task.cases.read(lambda tx: tx.tasks.model(task.task_id, version))
    assert found is not None
    return load_model(task.cases.store.blobs, found, task.now.spec.dimension).parameters


def vector(norm: float, dimension: int = 650) -> bytes:
    """An update in one direction only."""
    values = np.zeros(dimension, dtype="<f4")
    values[7] = norm
    return values.tobytes()


# --- the model -------------------------------------------------------------------------------------------------------


def test_an_upload_without_noise_is_clipped_to_the_usual_signal(cases: UseCases) -> None:
    task, clients = cases.training(5, game={"policy": "none"}, privacy={"noise": False})
    norms = [0.2, 0.2, 0.2, 0.2, 9.9]
    for client, norm in zip(clients, norms, strict=True):
        client.join()
        client.upload(vector(norm))
    task.settle()
    rate = task.now.spec.aggregation.learning_rate
    assert model(task, 1)[7] == pytest.approx(-rate * 0.2, rel=1e-4)
    assert cases.violations() == []


def test_without_a_defence_the_same_upload_dominates(cases: UseCases) -> None:
    task, clients = cases.training(5, game={"policy": "none"}, privacy={"noise": False}, defence=None)
    for client, norm in zip(clients, [0.2, 0.2, 0.2, 0.2, 9.9], strict=True):
        client.join()
        client.upload(vector(norm))
    task.settle()
    assert abs(model(task, 1)[7]) > 5


def test_noise_of_another_budget_is_rejected(cases: UseCases) -> None:
    task, clients = cases.training(4, **HORIZON)
    for client in clients:
        client.declare()
    for client in clients[:3]:
        client.upload()
    clients[3].upload((10 * np.frombuffer(clients[3].update(), dtype="<f4")).tobytes())
    task.settle()
    assert clients[3].client_id not in task.payments()
    own = next(part for part in task.result().clients or () if part.client_id == clients[3].client_id)
    assert (own.accepted, own.verdict) == (False, "too_much_noise")


def test_an_absurd_size_does_not_end_the_task_nor_own_the_model(cases: UseCases) -> None:
    task = cases.task(rounds={"expected_clients": 4}, **HORIZON)
    honest = [task.client() for _ in range(3)]
    liar = task.client(labels=(10**6,) * 10)
    assert task.now.state is TaskState.TRAINING
    offer = liar.offer()
    assert offer.reward_micro > 0
    rhos = {client.client_id: client.offer().rho_max / 1.25 for client in [*honest, liar]}
    assert max(rhos.values()) == pytest.approx(min(rhos.values()))


def test_the_alignment_of_a_client_that_works_against_the_others_is_flagged(cases: UseCases) -> None:
    task, clients = cases.training(5, game={"policy": "none", "horizon": 4}, privacy={"noise": False})
    for number in (1, 2, 3):
        for client in clients:
            client.join(number)
            client.upload(vector(-0.2 if client is clients[0] else 0.2 + number / 100), number)
        task.settle()
    summaries = cases.read(lambda tx: client_summaries(tx, task.task_id))
    assert [summary.flagged for summary in summaries] == [True, False, False, False, False]
    assert summaries[0].alignment == pytest.approx(-(650**0.5) * 3**0.5)


def test_a_task_stops_when_too_few_bidders_without_a_flag_remain(cases: UseCases) -> None:
    task, clients = cases.training(4, defence={"alignment_floor": -0.001}, **HORIZON)
    for number in range(1, 12):
        if task.now.ended:
            break
        task.play(clients, number)
    # Pure noise, the same at every run: at some point the scores of more than half of the clients are below zero.
    assert (task.now.reason or "").startswith("too_few_bidders")
    assert cases.violations() == []


# --- the money -------------------------------------------------------------------------------------------------------


def test_a_bid_above_the_offered_bound_is_refused(cases: UseCases) -> None:
    _, clients = cases.training(4)
    largest = clients[0].offer().rho_max
    with pytest.raises(RequestRefused) as refused:
        clients[0].declare(rho=largest * 1.001)
    assert refusal(refused) is ErrorCode.OUT_OF_BOUNDS
    assert clients[0].declare(rho=largest).rho == largest


def test_a_withdrawn_budget_takes_nothing_from_the_others(cases: UseCases) -> None:
    task, clients = cases.training(4, **HORIZON)
    planned = clients[0].offer().rho_max / 1.25
    for client in clients[:3]:
        client.declare(rho=planned)
        client.upload(client.noise(planned))
    clients[3].declare(rho=planned * 1.25)
    clients[3].decline()
    task.settle()
    reward = task.result().reward_micro
    assert list(task.payments().values()) == pytest.approx([reward / 4] * 3, abs=1)
    assert cases.violations() == []


def test_escrow_is_part_of_the_reward_and_released_at_the_end(cases: UseCases) -> None:
    task, clients = cases.training(4, game={"horizon": 1}, defence={"escrow": 0.25})
    task.play(clients)
    assert task.now.reason == "horizon_reached"
    result = task.result()
    assert result.paid_micro + (result.escrow_micro or 0) + result.kept_micro == result.reward_micro
    assert result.escrow_micro == pytest.approx(result.reward_micro / 4, abs=4)
    account = clients[0].ledger()
    assert account.released_micro == account.escrow_micro
    assert account.earned_micro == pytest.approx(result.reward_micro / 4, abs=1)
    assert cases.violations() == []


def test_a_revoked_client_loses_its_escrow(cases: UseCases) -> None:
    task, clients = cases.training(4, game={"horizon": 2}, defence={"escrow": 0.5})
    task.play(clients)
    cases.write(lambda tx: revoke_client(tx, task.task_id, clients[0].client_id, cases.clock.now()))
    task.play(clients[1:], 2)
    assert task.now.reason == "horizon_reached"
    assert clients[0].ledger().released_micro == 0
    assert clients[1].ledger().released_micro
    assert cases.violations() == []


def test_the_audit_finds_a_release_that_does_not_fit_its_escrow(cases: UseCases) -> None:
    task, clients = cases.training(4, game={"horizon": 1}, defence={"escrow": 0.25})
    task.play(clients)
    cases.write(
        lambda tx: tx.connection.exec_driver_sql("UPDATE escrow_settlements SET amount_micro = amount_micro + 1")
    )
    assert any("in escrow" in problem for problem in cases.violations())


def test_payments_of_a_task_without_escrow_hold_nothing_back(cases: UseCases) -> None:
    task, clients = cases.training(3, game={"horizon": 1})
    task.play(clients)
    found = cases.read(lambda tx: tx.payments.of_round(task.task_id, 1))
    assert all(payment == Payment(amount_micro=payment.amount_micro) for payment in found.values())


# --- the pace --------------------------------------------------------------------------------------------------------


def griefed_rounds(task: ServedTask, honest: list[ServedClient], liar: ServedClient, rounds: int) -> list[int]:
    """Play rounds in which the liar only withdraws; the numbers of the rounds that had to wait for it."""
    waited = []
    for number in range(1, rounds + 1):
        for client in honest:
            client.play(number)
        if liar.announcement().round.standing == "invited":  # type: ignore[union-attr]
            waited.append(number)
            liar.declare(number)
            liar.decline(number)
        task.settle()
    return waited


def test_a_client_that_only_withdraws_is_excluded_for_growing_times(cases: UseCases) -> None:
    task, clients = cases.training(4, game={"horizon": 20})
    assert griefed_rounds(task, clients[:3], clients[3], 20) == [1, 2, 3, 5, 8, 13]
    assert clients[3].now.excluded_until == 22
    assert cases.violations() == []


def test_without_a_defence_a_withdrawal_has_no_consequence(cases: UseCases) -> None:
    task, clients = cases.training(4, game={"horizon": 6}, defence=None)
    assert griefed_rounds(task, clients[:3], clients[3], 6) == [1, 2, 3, 4, 5, 6]


def test_an_honest_decline_is_no_miss(cases: UseCases) -> None:
    task, clients = cases.training(4, game={"horizon": 6})
    for number in range(1, 6):
        for client in clients[:3]:
            client.play(number)
        clients[3].decline(number)
        task.settle()
    assert (clients[3].now.misses, clients[3].now.set_aside) == (0, False)


def test_deadlines_follow_the_clients_and_stay_within_bounds(cases: UseCases) -> None:
    task, clients = cases.training(
        3, rounds={"declare_s": 40.0, "deliver_s": 200.0}, defence={"deadline_factor": 4.0}, **HORIZON
    )
    first = task.round(1)
    assert (first.declare_by - (first.opened_at or 0)) / 1e6 == 40
    cases.clock.advance(5)
    for client in clients:
        client.declare()
    cases.clock.advance(15)
    for client in clients:
        client.upload()
    task.settle()
    second = task.round(2)
    assert (second.declare_by - (second.opened_at or 0)) / 1e6 == pytest.approx(20)
    # Four times the 20 seconds after which the clients delivered.
    assert (second.deliver_by - (second.opened_at or 0)) / 1e6 == pytest.approx(80)
    for client in clients:
        client.play(2)
    task.settle()
    third = task.round(3)
    # Answers without delay shorten them to a quarter of the task's own, and no further.
    assert (third.declare_by - (third.opened_at or 0)) / 1e6 >= 10
    assert cases.violations() == []


def test_quick_declines_do_not_use_up_all_attempts(cases: UseCases) -> None:
    task, clients = cases.training(3, rounds={"declare_s": 30.0, "deliver_s": 60.0}, **HORIZON)
    for client in clients[:2]:
        client.play()
    clients[2].decline()
    assert not task.settle()
    assert (task.round().attempt, task.now.state) == (1, TaskState.TRAINING)
    cases.clock.advance(31)
    assert task.settle()
    assert task.round().attempt == 2
    # The client that declined may answer the new attempt.
    clients[2].play()
    task.settle()
    assert task.result().state == "settled"
    assert cases.violations() == []


# --- small tasks and odd claims --------------------------------------------------------------------------------------


def test_a_client_that_leaves_does_not_end_a_small_task(cases: UseCases) -> None:
    task, clients = cases.training(3, **HORIZON)
    for client in clients:
        client.play()
    clients[2].leave()
    task.settle()
    task.play(clients[:2], 2)
    assert (task.now.state, task.round(3).state) == (TaskState.TRAINING, "open")


@pytest.mark.parametrize("by", ["operator", "audit"])
def test_one_refused_update_does_not_end_a_small_task(cases: UseCases, by: str) -> None:
    task, clients = cases.training(3, **HORIZON)
    for client in clients:
        client.declare()
    noise = 10 * np.frombuffer(clients[0].update(), dtype="<f4")
    clients[0].upload(noise.tobytes() if by == "audit" else None)
    if by == "operator":
        cases.write(lambda tx: void_update(tx, task.task_id, 1, clients[0].client_id, cases.clock.now()))
    for client in clients[1:]:
        client.upload()
    task.settle()
    assert task.result().state == "settled"
    assert set(task.payments()) == {client.client_id for client in clients[1:]}
    assert cases.violations() == []


def test_a_tiny_size_decides_nothing_with_uniform_weights(cases: UseCases) -> None:
    def reward(labels: tuple[int, ...]) -> int:
        task = cases.task(
            rounds={"expected_clients": 5}, aggregation={"weighting": "uniform"}, selection={"rule": "all"}
        )
        for _ in range(4):
            task.client()
        return task.client(labels=labels).offer().reward_micro

    assert reward((1, *(0,) * 9)) < 2 * reward((11,) * 10)


def test_deleting_a_task_that_failed_by_a_fault_settles_its_escrow(cases: UseCases) -> None:
    task, clients = cases.training(3, defence={"escrow": 0.5}, **HORIZON)
    task.play(clients)

    def fail(tx: Transaction) -> None:
        tx.rounds.void(task.round(2))
        end_task(tx, task.now, TaskState.FAILED, EndReason.STEP_FAILED, cases.clock.now())

    cases.write(fail)
    held = cases.read(lambda tx: tx.payments.escrow(task.task_id))
    assert held and not cases.read(lambda tx: tx.payments.escrow_settlements(task.task_id))
    before = len(cases.read(lambda tx: list(tx.chain.entries(task.task_id))))
    stone = cases.write(lambda tx: delete_task(tx, task.task_id, deleted_by="admin", now=cases.clock.now()))
    assert stone.chain is not None and stone.chain.sequence > before
    assert cases.violations() == []


def test_the_place_of_a_slow_client_stays_while_others_are_free(cases: UseCases) -> None:
    task = cases.task()
    slow = task.stranger()
    slow.enrol(ordinal=4)
    cases.clock.advance(100)
    with pytest.raises(RequestRefused) as refused:
        task.stranger().enrol(ordinal=4)
    assert refusal(refused) is ErrorCode.ORDINAL_TAKEN
    slow.send_profile()


def test_zero_updates_without_noise_do_not_fail_the_step(cases: UseCases) -> None:
    task, clients = cases.training(
        3, game={"policy": "none"}, privacy={"noise": False}, aggregation={"rule": "norm_bounded"}
    )
    for client, norm in zip(clients, (0.0, 0.0, 0.3), strict=True):
        client.join()
        client.upload(vector(norm))
    task.settle()
    assert task.result().state == "settled"
    assert cases.violations() == []
