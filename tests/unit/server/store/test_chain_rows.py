"""The chain inside the store: writes that fail, writes that share a commit, a missing key, and repeated receipts."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from qidpfl_server.errors import CoordinatorError, DamagedState
from qidpfl_server.ops.signing import record_key
from qidpfl_server.store.guarded import budget_subject
from qidpfl_server.store.store import Store
from qidpfl_server.store.transaction import Transaction
from qidpfl_shared.protocol.chain import checked
from qidpfl_shared.protocol.signatures import SigningKey, verify_message
from support.use_cases import UseCases


def kinds(cases: UseCases, task_id: str) -> list[str]:
    return [entry.kind for entry in cases.read(lambda tx: list(checked(tx.chain.entries(task_id))))]


def test_a_write_that_fails_leaves_no_entry_and_no_gap(cases: UseCases) -> None:
    """Catches a head that is remembered although its entries were rolled back: the next entry would not follow."""
    task, clients = cases.training()
    before = kinds(cases, task.task_id)

    def fail(tx: Transaction) -> None:
        tx.events.add(task.task_id, "task.forged", at=1)
        tx.chain.flush()
        raise RuntimeError("after the flush")

    with pytest.raises(RuntimeError):
        cases.write(fail)
    assert kinds(cases, task.task_id) == before
    clients[0].declare()
    assert kinds(cases, task.task_id) == [*before, "budget.declared"]
    assert not cases.violations()


def test_a_failure_does_not_disturb_the_chain_of_others_in_the_same_commit(cases: UseCases) -> None:
    task, _ = cases.training()
    entered, go_on = threading.Event(), threading.Event()

    def wait(tx: Transaction) -> None:
        entered.set()
        assert go_on.wait(60)

    def add(kind: str, *, fails: bool) -> None:
        def work(tx: Transaction) -> None:
            tx.events.add(task.task_id, kind, at=1)
            if fails:
                tx.chain.flush()
                raise RuntimeError(kind)

        cases.write(work)

    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(cases.write, wait)
        assert entered.wait(60)
        several = [threads.submit(add, f"task.{n}", fails=n == 1) for n in range(3)]
        while cases.store._waiting.qsize() < 3:
            threading.Event().wait(0.001)
        go_on.set()
        first.result()
        assert [one.exception() is None for one in several] == [True, False, True]
    assert sorted(kinds(cases, task.task_id)[-2:]) == ["event.task.0", "event.task.2"]
    assert not cases.violations()


def test_a_process_without_the_key_cannot_extend_a_signed_chain(cases: UseCases, store: Store) -> None:
    """Catches a command that would leave heads without a signature, which the audit takes for tampering."""
    key = SigningKey.new()
    task, clients = cases.training()
    record_key(store, key)
    store.key = None
    with pytest.raises(CoordinatorError, match="QIDPFL_SIGNING_KEY"):
        clients[0].declare()
    store.key = key
    clients[0].declare()
    head = cases.read(lambda tx: tx.chain.signed_head(task.task_id))
    assert head is not None
    verify_message(key.public_key, head)
    assert not cases.violations()
    with pytest.raises(DamagedState, match="share one signing key"):
        record_key(store, SigningKey.new())


def test_a_withdrawal_has_its_own_entry_and_each_repeat_its_own_receipt(cases: UseCases) -> None:
    task, clients = cases.training()
    declared = clients[0].declare()
    declined = clients[0].decline()
    assert declared.chain is not None and declined.chain is not None
    assert clients[0].decline() == declined
    assert declared.chain.sequence < declined.chain.sequence
    subject = budget_subject(1, clients[0].client_id)
    assert cases.read(lambda tx: tx.chain.position(task.task_id, subject)) == declined.chain


def test_one_upload_adds_one_entry_and_a_repeat_none(cases: UseCases) -> None:
    """Bounds the chain: a client that repeats its requests must not make it longer."""
    task, clients = cases.training()
    clients[0].declare()
    before = len(kinds(cases, task.task_id))
    first = clients[0].upload()
    assert len(kinds(cases, task.task_id)) == before + 1
    assert clients[0].upload() == first == clients[0].deliver(clients[0].update())[0]
    clients[0].declare()
    assert len(kinds(cases, task.task_id)) == before + 1
