"""Settlement: pay, void, retry, set aside, reject by the noise audit, end the task."""

from pathlib import Path

import numpy as np
import pytest

from qidpfl_server.domain import Round
from qidpfl_server.errors import RequestRefused, UnreadableBlob
from qidpfl_server.service.rounds import settlement
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import TaskState
from support.use_cases import ServedTask, UseCases


def past_delivery(task: ServedTask) -> None:
    """Move the clock past the deadline of the open round, and settle."""
    task.cases.clock.move_past(_open_round(task).deliver_by)
    assert task.settle()


def past_declaration(task: ServedTask) -> None:
    """Move the clock past the deadline for budgets, and settle."""
    task.cases.clock.move_past(_open_round(task).declare_by)
    assert task.settle()


def _open_round(task: ServedTask) -> Round:
    latest = task.cases.read(lambda tx: tx.rounds.latest(task.task_id))
    assert latest is not None
    return latest


def test_a_round_is_not_settled_before_all_clients_have_answered(cases: UseCases) -> None:
    task, clients = cases.training()
    for client in clients[:2]:
        client.play()
    assert not task.settle()
    clients[2].play()
    assert task.settle() and not task.settle()


def test_a_round_pays_its_whole_reward_to_the_clients_that_delivered(cases: UseCases) -> None:
    task, clients = cases.training(game={"horizon": 1})
    task.play(clients)
    settled = task.result()
    assert set(task.payments()) == {client.client_id for client in clients}
    assert (settled.paid_micro, settled.kept_micro) == (settled.reward_micro, 0)
    assert [client.entry().payment_micro for client in clients] == [*task.payments().values()]
    assert task.now.reason == "horizon_reached"
    assert cases.violations() == []


def test_a_client_that_does_not_deliver_raises_no_payment_of_the_others(cases: UseCases) -> None:
    task, clients = cases.training(5, rounds={"min_clients": 3}, game={"horizon": 1})
    for client in clients:
        client.declare()
    for client in clients[:3]:
        client.upload()
    past_delivery(task)
    assert task.now.state is TaskState.FINISHED
    settled = task.result()
    fair = settled.reward_micro / 5
    payments = [part.payment_micro for part in settled.clients or ()]
    assert payments[3:] == [0, 0]
    assert all(fair - 1 <= payment <= fair + 1 for payment in payments[:3])
    assert settled.kept_micro == settled.reward_micro - sum(payments) > 0
    assert cases.violations() == []


def test_a_void_round_is_retried_with_the_same_terms_and_pays_each_client_once(cases: UseCases) -> None:
    task, (*two, slow) = cases.training(game={"horizon": 1})
    first = slow.offer()
    receipts = [(client.declare(), client.upload()) for client in two]
    slow.declare()
    past_delivery(task)
    again = slow.offer()
    assert (again.round_number, again.attempt) == (1, 2)
    for name in ("reward_micro", "total", "model_version", "model_digest", "standing"):
        assert getattr(again, name) == getattr(first, name)
    assert again.deliver_by > first.deliver_by
    assert [(client.declare(), client.upload()) for client in two] == receipts
    with pytest.raises(RequestRefused, match=ErrorCode.BUDGET_DECLARED.value):
        slow.declare(rho=0.06)
    assert task.result().paid_micro == 0
    slow.upload()
    assert task.settle()
    settled = task.result()
    assert (settled.paid_micro, settled.kept_micro) == (settled.reward_micro, 0)
    assert len(task.payments()) == 3
    assert cases.violations() == []


def test_after_the_last_attempt_the_task_fails_and_ledgers_show_unpaid_budgets(cases: UseCases) -> None:
    task, (*two, silent) = cases.training(rounds={"max_attempts": 2})
    for client in two:
        client.play()
    silent.declare()
    past_delivery(task)
    assert silent.offer().attempt == 2
    past_delivery(task)
    assert task.now.state is TaskState.FAILED
    assert task.now.reason == "too_few_updates: round 1 after 2 attempts"
    assert [client.entry().state for client in (*two, silent)] == ["spent_unpaid", "spent_unpaid", "freed"]
    assert (task.result().state, task.payments()) == ("void", {})
    assert cases.violations() == []


def test_a_silent_client_is_set_aside_and_comes_back_by_a_poll(cases: UseCases) -> None:
    task, (*three, silent) = cases.training(4, rounds={"set_aside_after": 1})
    for client in three:
        client.play()
    past_declaration(task)
    with pytest.raises(RequestRefused, match=r"not_invited.*set_aside"):
        silent.declare(2)
    assert silent.offer().standing == "set_aside"
    task.play(three, 2)
    assert silent.offer().standing == "invited"
    task.play([*three, silent], 3)
    assert task.result(3).updates == 4
    assert cases.violations() == []


def test_a_client_that_declines_is_never_set_aside(cases: UseCases) -> None:
    task, (*three, declining) = cases.training(4, rounds={"set_aside_after": 1})
    declining.decline()
    task.play(three)
    assert declining.offer().standing == "invited"


def test_an_upload_without_noise_is_rejected_unpaid_and_kept(cases: UseCases) -> None:
    task, (*three, cheat) = cases.training(4, privacy={"audit": "reject"}, game={"horizon": 1})
    cheat.declare()
    vector = np.zeros(cheat.offer().dimension, dtype="<f4")
    vector[-1] = 0.25
    receipt = cheat.upload(vector.tobytes())
    task.play(three)
    settled = task.result()
    seen = {part.ordinal: part for part in settled.clients or ()}
    assert (seen[3].verdict, seen[3].accepted, seen[3].payment_micro) == ("too_little_noise", False, 0)
    assert all(seen[ordinal].accepted and seen[ordinal].payment_micro > 0 for ordinal in range(3))
    assert settled.kept_micro == pytest.approx(settled.reward_micro / 4, abs=1)
    assert cheat.entry().state == "spent_unpaid"
    assert cases.store.blobs.has(receipt.digest)
    assert cases.violations() == []


def test_a_task_ends_when_the_next_reward_does_not_fit_its_total(cases: UseCases) -> None:
    task, clients = cases.training(
        game={"policy": "fixed", "fixed_reward_micro": 10_000_000},
        bounds={"reward_max_micro": 10_000_000, "reward_total_micro": 15_000_000},
    )
    task.play(clients)
    assert (task.now.state, task.now.reason) == (TaskState.FINISHED, "budget_exhausted")
    assert task.result().paid_micro == 10_000_000
    assert cases.violations() == []


def test_an_upload_that_comes_during_a_settlement_is_not_lost(cases: UseCases, monkeypatch: pytest.MonkeyPatch) -> None:
    """The closing transaction sees that the round has changed, and the next try includes the upload."""
    task, (*three, late) = cases.training(4, game={"horizon": 1})
    late.declare()
    for client in three:
        client.play()
    evaluate = settlement._evaluate

    def with_an_upload(*arguments: object) -> object:
        late.upload()
        return evaluate(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(settlement, "_evaluate", with_an_upload)
    cases.clock.advance(1)
    task.stop()
    assert task.result().updates == 4
    assert len(task.payments()) == 4
    assert cases.violations() == []


def test_a_damaged_update_is_an_error_that_leaves_the_round_open(cases: UseCases) -> None:
    """The scheduler tries again: another coordinator, or a later read, may find the bytes sound."""
    task, clients = cases.training()
    receipts = []
    for client in clients:
        client.declare()
        receipts.append(client.upload())
    path = Path(cases.store.blobs.place) / "objects" / receipts[0].digest
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(UnreadableBlob, match="does not match its digest"):
        task.settle()
    assert (task.now.state, task.result().state) == (TaskState.TRAINING, "open")


def test_a_model_that_cannot_be_evaluated_is_trained_without_a_score(cases: UseCases) -> None:
    layout = {"tensors": [{"name": "theirs", "shape": [100]}]}
    task, clients = cases.training(workload={"network": "theirs"}, layout=layout, game={"horizon": 1})
    task.play(clients)
    settled = task.result()
    assert (settled.state, settled.accuracy, settled.loss) == ("settled", None, None)
