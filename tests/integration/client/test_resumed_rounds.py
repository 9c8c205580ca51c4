"""A round that was void when its task failed and was settled after a resume is paid in the journals of its clients."""

import threading
from pathlib import Path

import httpx
import pytest

from qidpfl_client.api import TaskApi, connect
from qidpfl_client.journal.journal import Journal
from qidpfl_client.journal.ledger import JournalLedger, read_ledger
from qidpfl_client.participant.runner import run_until_finished
from qidpfl_shared.protocol.ledger import SpendState
from support.coordinators import NO_TIMEOUTS, Coordinator
from support.faults import failing_steps
from support.peers.hostile_coordinator import CODE, HostileCoordinator, serving
from support.synthetic_clients import enrolment

pytestmark = pytest.mark.live

CLIENTS = 3


def take_part(url: str, code: str, path: Path) -> JournalLedger:
    """Run a client until its task has ended."""
    with connect(url) as http, Journal(path) as journal:
        run_until_finished(enrolment(http, code, journal, moved=True), patience_s=60, first_contact_s=10)
        return read_ledger(journal)


def all_take_part(url: str, code: str, folder: Path) -> list[JournalLedger]:
    ledgers: dict[int, JournalLedger] = {}

    def run(number: int) -> None:
        ledgers[number] = take_part(url, code, folder / f"journal-{number}.sqlite")

    threads = [threading.Thread(target=run, args=[number]) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    return [ledgers[number] for number in range(CLIENTS)]


def paid_by(coordinator: Coordinator, task_id: str, path: Path) -> int:
    with Journal(path, read_only=True) as journal, httpx.Client(base_url=coordinator.url, timeout=60) as http:
        membership = journal.membership(task_id)
        assert membership is not None
        return TaskApi(http, task_id=task_id, token=membership.token).ledger().earned_micro


@pytest.mark.parametrize("horizon", [1, 2])
def test_journals_have_the_payment_of_a_resumed_round(tmp_path: Path, horizon: int) -> None:
    """Catches a journal that never looks at an unpaid round again: it then lacks what the coordinator has paid.

    With one round the task has ended again before any client is back.
    """
    coordinator = Coordinator(tmp_path / "state", sabotage=failing_steps.fail_soon)
    with coordinator.start():
        task_id, code = coordinator.create_task(
            game={"horizon": horizon}, rounds=NO_TIMEOUTS | {"expected_clients": CLIENTS}
        )
        failed = all_take_part(coordinator.url, code, tmp_path)
        coordinator.stop()
        coordinator.sabotage = None
        coordinator.start()
        with coordinator.admin as admin:
            admin.post(f"/v1/tasks/{task_id}/resume").raise_for_status()
        resumed = all_take_part(coordinator.url, code, tmp_path)
        for number, (before, after) in enumerate(zip(failed, resumed, strict=True)):
            paid = paid_by(coordinator, task_id, tmp_path / f"journal-{number}.sqlite")
            assert [entry.state for entry in before.entries[1:]] == [SpendState.SPENT_UNPAID]
            assert [entry.state for entry in after.entries[1:]] == [SpendState.SPENT] * horizon
            assert (before.earned_micro, after.earned_micro) == (0, paid) and paid > 0
            # The same release: nothing was charged twice.
            assert before.entries[1].digest == after.entries[1].digest
        assert "0 violated" in coordinator.audit()


def test_an_update_that_a_failing_task_did_not_take_is_sent_after_the_resume(tmp_path: Path) -> None:
    """Catches a client that drops the bytes at the end of a failed task: it can deliver nothing after the resume."""
    path = tmp_path / "journal.sqlite"
    with serving(HostileCoordinator(update_statuses=[410, 410], fails_at_410=True)) as coordinator:
        before = take_part(coordinator.url, CODE, path)
        coordinator.failed = False
        after = take_part(coordinator.url, CODE, path)
    assert [entry.state for entry in before.entries[1:]] == [SpendState.SPENT]
    assert [entry.state for entry in after.entries[1:]] == [SpendState.SPENT] * 3
    assert before.entries[1].digest == after.entries[1].digest
    assert len(coordinator.received) == 5 and len(set(coordinator.received)) == 3
    assert after.earned_micro == 3 * coordinator.payment_micro
