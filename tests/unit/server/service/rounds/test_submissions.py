"""Submissions: budgets and updates; a repeat gets its first receipt, a refusal leaves nothing behind."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qidpfl_server.errors import RequestRefused
from qidpfl_server.service.rounds.submissions import largest_norm
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.mechanism_specs import (
    BoltOn,
    GradientOnce,
    MechanismSpec,
    NoisyEpochs,
    PaperLiteral,
    UpdateClip,
)
from qidpfl_shared.protocol.messages import Declaration, Join, TaskState
from support.use_cases import RHO, SKEWED, ServedClient, UseCases

MECHANISMS = (
    GradientOnce(clip_norm=1.0),
    NoisyEpochs(clip_norm=1.0, learning_rate=0.1, epochs=2, batch_size=10),
    UpdateClip(clip_norm=1.0, learning_rate=0.1, epochs=2, batch_size=10),
    PaperLiteral(clip_norm=1.0, learning_rate=0.1, epochs=2, batch_size=10),
    BoltOn(feature_norm=1.0, learning_rate=0.1, epochs=2, batch_size=10),
)


def refused(code: ErrorCode) -> Any:
    return pytest.raises(RequestRefused, match=f"^{code.value}")


def staged_files(cases: UseCases) -> list[str]:
    return [path.name for path in (Path(cases.store.blobs.place) / "staging").iterdir()]


# --- budgets ---------------------------------------------------------------------------------------------------------


def test_a_declaration_can_be_withdrawn_once_and_still_counts_in_the_split(cases: UseCases) -> None:
    task, (*three, changing) = cases.training(4, game={"horizon": 1})
    declared = changing.declare()
    assert changing.declare() == declared
    with refused(ErrorCode.BUDGET_DECLARED):
        changing.declare(rho=0.06)
    withdrawn = changing.decline()
    assert (withdrawn.state, withdrawn.rho) == ("declined", 0.05)
    cases.clock.advance(1)
    assert changing.decline() == withdrawn
    with refused(ErrorCode.BUDGET_DECLARED):
        changing.declare()
    with refused(ErrorCode.BUDGET_MISSING):
        changing.upload()
    task.play(three)
    settled = task.result()
    assert task.now.state is TaskState.FINISHED
    assert settled.declared_total == pytest.approx(0.2)
    assert settled.kept_micro == pytest.approx(settled.reward_micro / 4, abs=1)
    assert changing.entry().state == "freed"
    assert cases.violations() == []


def test_a_decline_after_the_upload_comes_too_late(cases: UseCases) -> None:
    _, (client, *_) = cases.training()
    client.play()
    with refused(ErrorCode.UPDATE_EXISTS):
        client.decline()


@pytest.mark.parametrize("request_", [Declaration(rho=0.51), Declaration(rho=0.009), Join(join=True)], ids=str)
def test_an_impossible_budget_is_refused_and_not_recorded(cases: UseCases, request_: Declaration | Join) -> None:
    task, (client, *_) = cases.training(bounds={"rho_min": 0.01})
    with refused(ErrorCode.OUT_OF_BOUNDS):
        client.answer(request_)
    assert cases.read(lambda tx: tx.rounds.budgets(task.task_id, 1)) == {}


@pytest.mark.parametrize("limits", [{"rho_cap": 0.04}, {"lifetime_rho": 0.14}], ids=str)
def test_a_budget_above_the_limits_of_the_client_is_refused(cases: UseCases, limits: dict[str, float]) -> None:
    task = cases.task(rounds={"expected_clients": 3})
    limited, *_ = task.client(limits=limits), task.client(), task.client()
    with refused(ErrorCode.OUT_OF_BOUNDS):
        limited.declare(rho=0.041)
    assert limited.declare(rho=0.039).state == "declared"


def test_an_answer_to_a_round_that_an_ended_task_never_announced_says_that_the_task_has_ended(cases: UseCases) -> None:
    task = cases.task(rounds={"expected_clients": 3, "min_clients": 3})
    clients = [task.client(labels=SKEWED) for _ in range(3)]
    assert task.now.state is TaskState.FAILED
    for answer in (clients[0].declare, clients[0].decline, clients[0].upload):
        with pytest.raises(RequestRefused, match=f"^{ErrorCode.TASK_ENDED.value}: the task is failed"):
            answer()


def test_a_closed_round_of_an_ended_task_stays_closed_because_the_task_may_be_resumed(cases: UseCases) -> None:
    task, (client, *_) = cases.training()
    client.declare()
    task.stop()
    for answer in (lambda: client.declare(rho=0.06), client.upload):
        with pytest.raises(RequestRefused, match=f"^{ErrorCode.ROUND_CLOSED.value}: .* and the task is stopped"):
            answer()


def test_no_budget_is_declared_after_its_deadline(cases: UseCases) -> None:
    task, (first, second, _) = cases.training()
    known = first.declare()
    cases.clock.move_past(task.round().declare_by)
    with refused(ErrorCode.ROUND_CLOSED):
        second.declare()
    assert first.declare() == known


def test_without_a_game_clients_join_without_a_budget(cases: UseCases) -> None:
    task, clients = cases.training(game={"policy": "none", "horizon": 2}, privacy={"noise": False})
    for number in (1, 2):
        for client in clients:
            offer = client.offer()
            assert (offer.round_number, offer.reward_micro, offer.noise) == (number, 0, False)
            with refused(ErrorCode.OUT_OF_BOUNDS):
                client.declare(number)
            assert client.join(number).state == "joined"
            client.upload(bytes(4 * offer.dimension), number)
        task.settle()
    assert task.now.reason == "horizon_reached"
    entry = clients[0].entry()
    assert "unprotected" in entry.mechanism
    assert (entry.state, entry.proven_rho) == ("spent", None)
    assert task.result(2).paid_micro == 0
    assert cases.violations() == []


# --- updates ---------------------------------------------------------------------------------------------------------


def _silent(clients: list[ServedClient]) -> None:
    pass


def _declined(clients: list[ServedClient]) -> None:
    clients[0].decline()


def _declared(clients: list[ServedClient]) -> None:
    clients[0].declare()


REFUSED_SENDERS: dict[str, tuple[Callable[[list[ServedClient]], None], int, ErrorCode]] = {
    "without a budget": (_silent, 1, ErrorCode.BUDGET_MISSING),
    "after a decline": (_declined, 1, ErrorCode.BUDGET_MISSING),
    "before the round is announced": (_declared, 2, ErrorCode.NOT_FOUND),
}


@pytest.mark.parametrize("what", REFUSED_SENDERS)
def test_an_upload_that_may_not_be_sent_is_refused_and_leaves_nothing(cases: UseCases, what: str) -> None:
    prepare, number, code = REFUSED_SENDERS[what]
    task, clients = cases.training()
    prepare(clients)
    blobs = cases.store.blobs.digests()
    for send in (clients[0].look_up, clients[0].deliver):
        with refused(code):
            send(clients[0].update(), number)
    assert task.updates(number) == 0
    assert (cases.store.blobs.digests(), staged_files(cases)) == (blobs, [])


def test_a_client_that_was_not_selected_uploads_nothing(cases: UseCases) -> None:
    task = cases.task(rounds={"expected_clients": 4})
    *_, unselected = [task.client(labels=labels) for labels in (*((11,) * 10,) * 3, SKEWED)]
    with refused(ErrorCode.NOT_INVITED):
        unselected.upload()


def test_a_repeated_upload_gets_its_first_receipt_and_another_one_is_refused(cases: UseCases) -> None:
    task, (client, other, _) = cases.training()
    client.play()
    first = client.upload()
    cases.clock.advance(5)
    assert client.upload() == first == client.deliver(client.update())[0]
    assert task.updates() == 1
    with refused(ErrorCode.UPDATE_EXISTS):
        client.upload(other.update())


def test_bytes_of_another_client_or_round_are_refused(cases: UseCases) -> None:
    task, clients = cases.training()
    clients[0].play()
    clients[1].declare()
    with refused(ErrorCode.UPDATE_REPLAYED):
        clients[1].upload(clients[0].update())
    clients[1].upload()
    task.play(clients[2:])
    clients[0].declare(2)
    with refused(ErrorCode.UPDATE_REPLAYED):
        clients[0].upload(clients[0].update(1), 2)
    assert task.updates(2) == 0


def test_a_settled_round_repeats_its_receipts_and_accepts_nothing_new(cases: UseCases) -> None:
    task, (*three, late) = cases.training(4, game={"horizon": 3})
    late.decline()
    task.play(three)
    receipts = [client.upload() for client in three]
    task.play(three, 2)
    cases.clock.advance(10_000)
    assert [client.upload() for client in three] == receipts
    with refused(ErrorCode.ROUND_CLOSED):
        late.upload()
    with refused(ErrorCode.UPDATE_EXISTS):
        three[0].upload(late.update())
    with refused(ErrorCode.ROUND_CLOSED):
        late.declare()
    assert task.updates() == 3


def test_no_update_is_accepted_after_its_deadline(cases: UseCases) -> None:
    task, (client, *_) = cases.training()
    client.declare()
    cases.clock.move_past(task.round().deliver_by)
    with refused(ErrorCode.ROUND_CLOSED):
        client.upload()
    assert task.updates() == 0


def test_a_norm_that_no_noise_explains_is_refused_and_leaves_nothing(cases: UseCases) -> None:
    task, (client, *_) = cases.training()
    client.declare()
    honest = np.frombuffer(client.update(), dtype="<f4")
    blobs = cases.store.blobs.digests()
    for vector in (np.full_like(honest, 3e38), honest * np.float32(100)):
        with refused(ErrorCode.OUT_OF_BOUNDS):
            client.upload(vector.tobytes())
        assert (task.updates(), cases.store.blobs.digests(), staged_files(cases)) == (0, blobs, [])
    # Three times the noise is left to the noise audit.
    client.upload((honest * np.float32(3)).tobytes())
    assert task.updates() == 1


def test_without_noise_the_norm_is_limited_by_the_signal_alone(cases: UseCases) -> None:
    _, (client, *_) = cases.training(privacy={"noise": False}, game={"policy": "none"})
    client.join()
    vector = np.zeros(client.offer().dimension, dtype="<f4")
    vector[-1] = 11 * (client.offer().clip_norm or 0)
    with refused(ErrorCode.OUT_OF_BOUNDS):
        client.upload(vector.tobytes())
    vector[-1] = client.offer().clip_norm or 0
    client.upload(vector.tobytes())


def test_an_upload_makes_its_task_due_only_when_it_completes_the_round(cases: UseCases) -> None:
    task, (first, second, _) = cases.training(rounds={"min_clients": 2, "min_updates": 2})
    for client in (first, second):
        client.declare()
    # The third client may still answer until the deadline for budgets.
    assert first.deliver(first.update())[1] == set()
    cases.clock.move_past(task.round().declare_by)
    assert second.deliver(second.update())[1] == {task.task_id}


@pytest.mark.parametrize("spec", MECHANISMS, ids=lambda spec: str(spec.name))
@pytest.mark.parametrize("dimension", [1, 650, 100_000])
def test_no_honest_upload_comes_near_the_largest_norm(spec: MechanismSpec, dimension: int) -> None:
    mechanism, size, rho, rng = spec.build(), 110, 0.01, np.random.default_rng(dimension)
    largest = largest_norm(mechanism, size=size, rho=rho, dimension=dimension)
    noise = mechanism.noise_std(rho=rho, size=size) * rng.standard_normal((20, dimension))
    noise[:, 0] += mechanism.signal_bound(size=size)
    assert np.linalg.norm(noise, axis=1).max() < largest
    assert 3 * np.linalg.norm(noise[:, 1:], axis=1).max(initial=0.0) < largest


def test_an_update_that_was_read_when_the_round_had_closed_is_spent_and_not_freed(cases: UseCases) -> None:
    task, (first, second, third, late) = cases.training(4, rounds={"min_clients": 3, "min_updates": 3})
    for client in (first, second, third):
        client.play()
    late.declare()
    cases.clock.advance(10_000)
    assert task.settle()
    for _ in range(2):
        # The server has looked the upload up and read its body before the round closed.
        with refused(ErrorCode.ROUND_CLOSED):
            late.deliver(late.update())
    entry = late.entry()
    assert (entry.state, entry.digest) == ("spent_unpaid", hashlib.sha256(late.update()).hexdigest())
    assert late.ledger().spent_rho == pytest.approx(0.1 + RHO)
    assert task.events().count("update.late") == 1
    assert cases.violations() == []


def test_a_client_without_a_declared_budget_leaves_no_late_update(cases: UseCases) -> None:
    task, (first, second, third, silent) = cases.training(4, rounds={"min_clients": 3, "min_updates": 3})
    for client in (first, second, third):
        client.play()
    cases.clock.advance(10_000)
    assert task.settle()
    with refused(ErrorCode.ROUND_CLOSED):
        silent.deliver(silent.update())
    assert "update.late" not in task.events()


@pytest.mark.parametrize("defence", [{}, None])
def test_an_offer_carries_the_own_bound_of_the_client(cases: UseCases, defence: dict[str, float] | None) -> None:
    task = cases.task(rounds={"expected_clients": 3}, defence=defence)
    capped, *_ = [task.client(limits={"rho_cap": 0.04}), task.client(), task.client()]
    assert capped.offer().rho_max == pytest.approx(0.04)
    with refused(ErrorCode.OUT_OF_BOUNDS):
        capped.declare(rho=0.041)
    assert capped.declare(rho=0.04).rho == 0.04
