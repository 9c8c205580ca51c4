"""Kill a client at every failpoint and during an upload; after a restart it releases nothing twice."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from qidpfl_client.journal.journal import Journal
from support.client_checks import client_violations
from support.coordinators import NO_TIMEOUTS, Coordinator, WaitingClient
from support.faults import client_faults
from support.forked_clients import ForkedClient
from support.peers.recording_proxy import Moment, RecordingProxy, recording

pytestmark = pytest.mark.live

HORIZON = 3
SCRIPTED = 2
# Every step here happens because all clients have answered, never because of a deadline.
# An upload that does not fit into the buffers of a connection.
LARGE = {"workload": {"network": "wide"}, "layout": {"tensors": [{"name": "weight", "shape": [10, 100_000]}]}}
ONCE = ("client.enrolled", "client.profile_journaled", "client.profile_sent")
EVERY_ROUND = ("client.reserved", "client.declared", "client.noised", "client.journaled", "client.sent")


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with Coordinator(tmp_path_factory.mktemp("coordinator")) as live:
        yield live


@dataclass
class Scene:
    """A task with scripted clients that wait for the client under test, which speaks through a proxy."""

    coordinator: Coordinator
    proxy: RecordingProxy
    client: ForkedClient
    task_id: str
    others: list[Future[dict[str, Any]]]
    others_may_deliver: threading.Event

    def played_on(self) -> list[str]:
        """Start the client again without faults, finish the task, and return what is wrong."""
        self.proxy.interfere = lambda _: None
        self.client.failpoint, self.client.sabotage = "", None
        self.client.start()
        self.others_may_deliver.set()
        assert self.client.ended_with() == 0, self.client.said
        assert [other.result()["task_state"] for other in self.others] == ["finished"] * SCRIPTED
        return self.violations()

    def violations(self) -> list[str]:
        return client_violations(self.coordinator, self.proxy, self.client.journal, self.task_id)


Stage = Callable[..., Scene]


@pytest.fixture
def stage(coordinator: Coordinator, tmp_path: Path) -> Iterator[Stage]:
    with ExitStack() as opened:
        proxy = opened.enter_context(recording(coordinator.url))
        threads = opened.enter_context(ThreadPoolExecutor(SCRIPTED))

        def staged(**overrides: Any) -> Scene:
            rounds = NO_TIMEOUTS | {"expected_clients": SCRIPTED + 1, "min_clients": 3, "min_updates": 3}
            task_id, code = coordinator.create_task(
                f"task-{uuid4().hex}", game={"horizon": HORIZON}, rounds=rounds, **overrides
            )
            may_deliver = threading.Event()
            may_deliver.set()
            others = [
                WaitingClient(coordinator.url, task_id, code, f"the-key-of-client-{n}", may_deliver=may_deliver)
                for n in range(SCRIPTED)
            ]
            for other in others:
                opened.enter_context(other.http)
            client = ForkedClient(proxy.url, code, tmp_path / "journal.sqlite")
            runs = [threads.submit(other.run, patience_s=120.0) for other in others]
            return Scene(coordinator, proxy, client, task_id, runs, may_deliver)

        yield staged


@pytest.mark.parametrize(
    ("name", "hit"),
    [
        *((name, 1) for name in (*ONCE, *EVERY_ROUND)),
        *(pytest.param(name, 3, marks=pytest.mark.long) for name in EVERY_ROUND),
    ],
)
def test_a_client_killed_at_any_failpoint_continues_where_it_was(name: str, hit: int, stage: Stage) -> None:
    scene = stage()
    scene.client.failpoint = f"{name}:{hit}"
    assert scene.client.start().ended_with() == -signal.SIGKILL
    assert scene.played_on() == []


@pytest.mark.parametrize("name", ONCE)
def test_a_late_duplicate_of_the_enrolment_does_not_lock_the_client_out(name: str, stage: Stage) -> None:
    """The duplicate comes when the client has its token, has journaled its profile, or has sent it."""
    scene = stage()
    scene.client.failpoint = f"{name}:1"
    assert scene.client.start().ended_with() == -signal.SIGKILL
    with Journal(scene.client.journal, read_only=True) as journal:
        (membership,) = journal.memberships()
    duplicate = {"enrolment_code": scene.client.code, "enrolment_key": membership.enrolment_key}
    answer = httpx.post(f"{scene.coordinator.url}/v1/tasks/{scene.task_id}/clients", json=duplicate, timeout=60)
    assert answer.status_code == (409 if name == "client.profile_sent" else 201)
    assert scene.played_on() == []


@pytest.mark.parametrize("moment", Moment)
def test_a_client_killed_while_it_uploads_sends_the_same_bytes_again(moment: Moment, stage: Stage) -> None:
    scene = stage(**LARGE)
    killed_in(scene, moment)
    sent = [digest for digests in scene.proxy.digests.values() for digest in digests]
    assert len(sent) == 1
    assert scene.played_on() == []
    assert [digest for digests in scene.proxy.digests.values() for digest in digests][:2] == 2 * sent


def test_a_client_that_is_not_killed_has_no_fault(stage: Stage) -> None:
    assert stage().played_on() == []


def killed_in(scene: Scene, moment: Moment) -> None:
    def kill(now: Moment) -> None:
        if now is moment:
            scene.client.kill()
            # The connection of the killed client is closed too.
            raise ConnectionResetError

    scene.proxy.interfere = kill
    assert scene.client.start().ended_with() == -signal.SIGKILL


def test_a_client_that_draws_its_noise_again_is_caught(stage: Stage) -> None:
    scene = stage()
    scene.client.sabotage = client_faults.noise_again_and_overwrite_the_journal
    killed_in(scene, Moment.MID_BODY)
    scene.proxy.interfere = lambda _: None
    assert scene.client.start().ended_with() == 0
    assert any("round/1: 2 different updates left" in said for said in scene.violations())


def test_the_journal_refuses_a_second_update_of_a_round_before_it_leaves(stage: Stage) -> None:
    scene = stage()
    scene.client.sabotage = client_faults.noise_again_instead_of_sending_again
    killed_in(scene, Moment.MID_BODY)
    scene.proxy.interfere = lambda _: None
    assert scene.client.start().ended_with() == 1
    assert "round/1 of task" in scene.client.said and "is not reserved" in scene.client.said
    assert scene.played_on() == []


def test_a_second_client_on_a_symlink_to_the_journal_releases_nothing(stage: Stage) -> None:
    scene = stage()
    scene.others_may_deliver.clear()
    scene.client.start()
    while not scene.proxy.digests:
        assert scene.client.child is not None and scene.client.child.is_alive()
        time.sleep(0.01)
    link = scene.client.journal.with_name("link.sqlite")
    link.symlink_to(scene.client.journal)
    second = ForkedClient(scene.proxy.url, scene.client.code, link).start()
    assert second.ended_with() == 1
    assert f"{link} is in use by another process" in second.said
    scene.others_may_deliver.set()
    assert scene.client.ended_with() == 0, scene.client.said
    assert scene.violations() == []


def test_a_client_that_writes_its_journal_after_sending_is_caught(stage: Stage) -> None:
    scene = stage()
    scene.client.sabotage = client_faults.write_down_after_sending
    killed_in(scene, Moment.MID_BODY)
    assert any("round/1: 2 different updates left" in said for said in scene.played_on())


def test_a_client_that_trusts_an_old_copy_of_its_journal_is_caught(stage: Stage) -> None:
    scene = stage()
    restore(scene, "client.noised:1", "client.sent:1")
    scene.client.sabotage = client_faults.read_no_ledger_of_the_coordinator
    scene.proxy.interfere = lambda _: scene.others_may_deliver.set()
    scene.client.start().ended_with()
    assert any("round/1: 2 different updates left" in said for said in scene.violations())


def test_an_older_copy_of_the_journal_that_knows_its_reservation_does_not_release_the_round_again(
    stage: Stage,
) -> None:
    scene = stage()
    restore(scene, "client.noised:1", "client.sent:1")
    assert scene.played_on() == []
    assert "round/1: the coordinator already has this release; the client does not repeat it" in scene.client.said


@pytest.mark.parametrize(
    "backup_at", ["client.profile_sent:1", pytest.param("client.declared:1", marks=pytest.mark.long)]
)
def test_an_older_copy_of_the_journal_that_lacks_a_release_stops_and_charges_nothing(
    backup_at: str, stage: Stage
) -> None:
    """The client cannot tell an older copy from a coordinator that invents releases."""
    scene = stage()
    restore(scene, backup_at, "client.sent:2")
    with Journal(scene.client.journal, read_only=True) as journal:
        before = journal.entries()
    assert scene.client.start().ended_with() == 1
    assert "is an older copy: use the newest one" in scene.client.said
    with Journal(scene.client.journal, read_only=True) as journal:
        assert journal.entries() == before
    assert [len(set(digests)) for digests in scene.proxy.digests.values()] == [1, 1]
    with scene.coordinator.admin as http:
        http.post(f"/v1/tasks/{scene.task_id}/stop").raise_for_status()


def restore(scene: Scene, backup_at: str, lost_at: str) -> None:
    """Put the journal back to what it was at one moment, after the client went on to another."""
    journal = scene.client.journal
    if lost_at == "client.sent:1":
        # The round of the lost release is still open when the client comes back.
        scene.others_may_deliver.clear()
    scene.client.failpoint = backup_at
    assert scene.client.start().ended_with() == -signal.SIGKILL
    with Journal(journal):
        # Opened and closed: everything is in one file.
        pass
    older = journal.read_bytes()
    scene.client.failpoint = lost_at
    assert scene.client.start().ended_with() == -signal.SIGKILL
    for suffix in ("-wal", "-shm"):
        journal.with_name(f"{journal.name}{suffix}").unlink()
    journal.write_bytes(older)
    scene.client.failpoint = ""


def test_an_older_copy_that_does_not_know_the_profile_makes_no_other(stage: Stage) -> None:
    scene = stage()
    restore(scene, "client.profile_journaled:1", "client.sent:1")
    with Journal(scene.client.journal) as journal:
        (known,) = journal.memberships()
        journal.save_membership(replace(known, profile=None))
    assert scene.client.start().ended_with() == 1
    assert "is an older copy: it does not know the profile" in scene.client.said
    assert len(scene.proxy.digests) == 1
    scene.others_may_deliver.set()
    with scene.coordinator.admin as http:
        http.post(f"/v1/tasks/{scene.task_id}/stop").raise_for_status()


def test_a_lost_journal_makes_a_new_client_and_no_second_release_of_the_old_one(stage: Stage) -> None:
    scene = stage()
    scene.client.failpoint = "client.journaled:1"
    assert scene.client.start().ended_with() == -signal.SIGKILL
    scene.client.journal.unlink()
    scene.client.failpoint = ""
    # The task is training and accepts no new client: the client ends and has released nothing.
    assert scene.client.start().ended_with() == 1
    assert "The task does not take new clients now" in scene.client.said
    assert scene.proxy.digests == {}
    with scene.coordinator.admin as http:
        http.post(f"/v1/tasks/{scene.task_id}/stop").raise_for_status()
