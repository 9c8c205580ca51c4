"""Random kills and pauses of coordinators and clients during a set of tasks: nothing acknowledged is lost.

The clients that are killed are real ones with a journal. Scripted ones stay alive and remember every receipt.
"""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from qidpfl_client.api import TaskApi
from qidpfl_client.journal.journal import Journal
from qidpfl_client.journal.ledger import read_ledger
from support.coordinators import NO_TIMEOUTS, Coordinator, ScriptedClient
from support.faults import broken_rules, client_faults
from support.forked_clients import ForkedClient
from support.peers.balancer import balanced
from support.task_checks import task_violations

pytestmark = pytest.mark.live

HORIZON = 4
SCRIPTED = 2
REAL = 2
PATIENCE_S = 240.0
ROUNDS = NO_TIMEOUTS | dict.fromkeys(("expected_clients", "min_clients", "min_updates"), SCRIPTED + REAL)


@dataclass
class Task:
    """One task of the set, with all its clients."""

    task_id: str
    scripted: list[ScriptedClient]
    real: list[ForkedClient]
    runs: list[Future[dict[str, Any]]]

    @property
    def has_ended(self) -> bool:
        return all(run.done() for run in self.runs) and all(
            client.child is not None and client.child.exitcode == 0 for client in self.real
        )


@dataclass
class Soak:
    """Coordinators and tasks under random faults. `kills` counts what was killed, `pauses` how often one was paused."""

    coordinators: list[Coordinator]
    folder: Path
    address: str
    rng: random.Random
    threads: ThreadPoolExecutor
    tasks: list[Task] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    pauses: int = 0
    pause_lengths: tuple[float, ...] = (0.2, 1.0, 6.0)
    # Faults happen while it is held, so that a task is created in between.
    quiet: threading.Lock = field(default_factory=threading.Lock)

    def live(self) -> list[str]:
        return [url for one in self.coordinators if (url := one.url)]

    def add_task(self) -> Task:
        with self.quiet:
            number = len(self.tasks)
            task_id, code = self.coordinators[0].create_task(f"task-{number}", game={"horizon": HORIZON}, rounds=ROUNDS)
            url = self.coordinators[0].url
            scripted = [
                ScriptedClient(url, task_id, code, f"key-of-scripted-{number}-{n}", locate=self.locate)
                for n in range(SCRIPTED)
            ]
            journals = [self.folder / f"journal-{number}-{n}.sqlite" for n in range(REAL)]
            real = [ForkedClient(self.address, code, path, sabotage=client_faults.come_back_soon) for path in journals]
            for client in real:
                client.start()
            runs = [self.threads.submit(client.run, patience_s=PATIENCE_S) for client in scripted]
            task = Task(task_id, scripted, real, runs)
            self.tasks.append(task)
            return task

    def locate(self) -> str:
        return self.rng.choice(self.live() or [""])

    def fault(self) -> None:
        """One random fault: kill a coordinator or a client and start it again, or pause a coordinator for a while."""
        with self.quiet:
            playing = [client for task in self.tasks if not task.has_ended for client in task.real]
            kind = self.rng.random()
            if kind < 0.15:
                self.pause(self.rng.choice(self.coordinators), self.rng.choice(self.pause_lengths))
            elif kind < 0.6 or not playing:
                victim = self.rng.choice(self.coordinators)
                victim.kill()
                self.kills["coordinator"] += 1
                victim.start()
            else:
                client = self.rng.choice(playing)
                client.kill()
                self.kills["client"] += 1
                client.start()

    def pause(self, coordinator: Coordinator, duration_s: float) -> None:
        process = coordinator.process
        assert process is not None
        self.pauses += 1
        os.kill(process.pid, signal.SIGSTOP)

        def resume() -> None:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)

        if len(self.coordinators) == 1:
            time.sleep(duration_s)
            resume()
        else:
            # The others go on, and may be killed meanwhile.
            threading.Timer(duration_s, resume).start()

    def run(self, *, kills: int, tasks_at_once: int) -> None:
        """Keep some tasks alive until so many kills have happened, then let all of them end."""
        while self.kills.total() < kills:
            while sum(not task.has_ended for task in self.tasks) < tasks_at_once:
                self.add_task()
            time.sleep(self.rng.uniform(0.0, 0.6))
            self.fault()
        deadline = time.monotonic() + PATIENCE_S
        while not all(task.has_ended for task in self.tasks):
            assert time.monotonic() < deadline, [client.said[-500:] for task in self.tasks for client in task.real]
            time.sleep(0.05)

    def violations(self) -> list[str]:
        coordinator = self.coordinators[0]
        found: list[str] = []
        for task in self.tasks:
            ids = []
            for client in task.real:
                with Journal(client.journal, read_only=True) as journal:
                    member = journal.membership(task.task_id)
                    assert member is not None and member.client_id is not None
                    ids.append(member.client_id)
                    found += lost_receipts(coordinator, journal, task.task_id, member.token or "")
            found += task_violations(coordinator, task.task_id, task.scripted, ids)
            found += [f"task {task.task_id} ended as {run.result()}" for run in task.runs if run.exception()]
        report = coordinator.audit()
        print(report.splitlines()[-1])
        return found if "0 violated" in report else [*found, report]

    @property
    def receipts(self) -> int:
        return sum(len(digests) for task in self.tasks for one in task.scripted for digests in one.receipts.values())


def lost_receipts(coordinator: Coordinator, journal: Journal, task_id: str, token: str) -> Iterator[str]:
    """What a journal has as acknowledged or paid, and the coordinator does not have."""
    with httpx.Client(base_url=coordinator.url, timeout=60) as http:
        theirs = TaskApi(http, task_id=task_id, token=token).ledger()
    stored = {entry.release: entry.digest for entry in theirs.entries}
    for entry in journal.entries(task_id):
        if entry.acknowledged and entry.digest is not None and stored.get(entry.release) != entry.digest:
            yield f"{journal.path.name}: {entry.release} was acknowledged, {stored.get(entry.release)} is stored"
    if (earned := read_ledger(journal).earned_micro) != theirs.earned_micro:
        yield f"{journal.path.name} has earned {earned}, the coordinator has paid {theirs.earned_micro}"


def coordinators_on(store: str, request: pytest.FixtureRequest, folder: Path) -> list[Coordinator]:
    """One coordinator on SQLite, three on PostgreSQL with one blob folder and the same tokens."""
    if store == "sqlite":
        return [Coordinator(folder / "a").start()]
    url, blobs = request.getfixturevalue("postgres_url"), folder / "blobs"
    first = Coordinator(folder / "a", store_url=url, blob_dir=blobs).start()
    others = [Coordinator(folder / name, store_url=url, blob_dir=blobs) for name in "bc"]
    for other in others:
        other.state_dir.mkdir()
        for name in ("admin.token", "viewer.token"):
            (other.state_dir / name).write_text((first.state_dir / name).read_text())
            (other.state_dir / name).chmod(0o600)
    return [first, *(other.start() for other in others)]


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
@pytest.mark.parametrize(
    ("kills", "tasks_at_once"), [(10, 1), pytest.param(110, 3, marks=pytest.mark.long)], ids=["short", "long"]
)
def test_random_kills_lose_no_receipt_and_the_audit_is_clean(
    store: str, kills: int, tasks_at_once: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Catches anything that is acknowledged before it is durable, settled twice, paid twice or not at all."""
    seed = int(os.environ.get("QIDPFL_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    print(f"QIDPFL_TEST_SEED={seed}")
    coordinators = coordinators_on(store, request, tmp_path)
    with ExitStack() as stack, ThreadPoolExecutor(64) as threads:
        for coordinator in coordinators:
            stack.enter_context(coordinator)
        address = stack.enter_context(balanced(lambda: [one.url for one in coordinators if one.url]))
        soak = Soak(coordinators, tmp_path, address, random.Random(seed), threads)
        if kills < 100:
            soak.pause_lengths = (0.2, 1.0)
        started = time.monotonic()
        soak.run(kills=kills, tasks_at_once=tasks_at_once)
        print(
            f"{store}: {dict(soak.kills)} killed, {soak.pauses} pauses, {len(soak.tasks)} tasks,"
            f" {soak.receipts} receipts, {time.monotonic() - started:.0f} s"
        )
        assert soak.violations() == []
        assert soak.receipts == len(soak.tasks) * SCRIPTED * HORIZON


def test_a_soak_finds_receipts_of_a_coordinator_that_acknowledges_too_early(tmp_path: Path) -> None:
    """The check itself can fail: with this seeded bug a kill loses what was acknowledged."""
    coordinator = Coordinator(tmp_path / "a", sabotage=broken_rules.acknowledge_uploads_before_the_commit).start()
    with coordinator:
        task_id, code = coordinator.create_task(rounds=ROUNDS)
        clients = [ScriptedClient(coordinator.url, task_id, code, f"the-key-of-client-{n}") for n in range(4)]
        for client in clients:
            client.enrol()
            client.profile().raise_for_status()
        news = clients[0].poll(wait=60)
        assert news is not None
        clients[0].declare(news["round"]).raise_for_status()
        assert clients[0].upload(news["round"]).is_success
        assert coordinator.died_of() == signal.SIGKILL
        coordinator.sabotage = None
        coordinator.start()
        said = task_violations(coordinator, task_id, clients[:1], ())
        assert any("were acknowledged, None is stored" in line for line in said)
