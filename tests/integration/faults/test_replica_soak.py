"""A soak of three replicas on PostgreSQL and an object store: all of them are killed, paused and started again."""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.commands import server_command
from support.coordinators import FILE_UPDATES, NO_TIMEOUTS, Coordinator, ScriptedClient
from support.databases import restart
from support.faults.failing_steps import an_hour_ahead
from support.peers.seaweedfs import BUCKET, NoSeaweedFS, SeaweedFS
from support.task_checks import task_violations

pytestmark = pytest.mark.live

CLIENTS = 3
ROUNDS = NO_TIMEOUTS | dict.fromkeys(("expected_clients", "min_clients", "min_updates"), CLIENTS)
PATIENCE_S = 600.0


@dataclass
class Task:
    task_id: str
    clients: list[ScriptedClient]
    runs: list[Future[dict[str, Any]]]

    @property
    def has_ended(self) -> bool:
        return all(run.done() for run in self.runs)


@dataclass
class Replicas:
    """Coordinators under random faults. `outages` are faults of what they depend on, by name."""

    coordinators: list[Coordinator]
    rng: random.Random
    threads: ThreadPoolExecutor
    outages: dict[str, Callable[[], None]]
    longest_pause_s: float
    tasks: list[Task] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    resuming: list[threading.Timer] = field(default_factory=list)

    def locate(self) -> str:
        return self.rng.choice([one.url for one in self.coordinators if one.url] or [""])

    def ready(self) -> Coordinator:
        """A coordinator that answers now; another one may be paused."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for one in self.coordinators:
                with suppress(httpx.TransportError):
                    if one.url and httpx.get(f"{one.url}/readyz", timeout=2).status_code == 200:
                        return one
        raise TimeoutError("no coordinator is ready")

    def add_task(self, horizon: int) -> None:
        through = self.ready()
        name = f"task-{len(self.tasks)}"
        task_id, code = through.create_task(name, game={"horizon": horizon}, rounds=ROUNDS, **FILE_UPDATES)
        clients = [
            ScriptedClient(through.url, task_id, code, f"the-key-of-{name}-{n}", locate=self.locate)
            for n in range(CLIENTS)
        ]
        for client in clients:
            client.http.timeout = httpx.Timeout(15)
        self.tasks.append(
            Task(task_id, clients, [self.threads.submit(one.run, patience_s=PATIENCE_S) for one in clients])
        )

    def fault(self) -> None:
        """One random fault."""
        kinds = {"kill": 4, "pause": 3, "stop": 2} | dict.fromkeys(self.outages, 1)
        (kind,) = self.rng.choices(list(kinds), list(kinds.values()))
        victim = self.rng.choice(self.coordinators)
        assert victim.process is not None
        self.faults[kind] += 1
        if kind == "kill":
            victim.kill()
            restarted(victim)
        elif kind == "stop":
            # A process that is paused handles the signal when it goes on.
            os.kill(victim.process.pid, signal.SIGCONT)
            victim.url = ""
            assert victim.stop() == 0
            restarted(victim)
        elif kind == "pause":
            self.pause(victim.process.pid, self.rng.uniform(self.longest_pause_s / 3, self.longest_pause_s))
        else:
            self.outages[kind]()

    def pause(self, pid: int, duration_s: float) -> None:
        os.kill(pid, signal.SIGSTOP)

        def resume() -> None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        self.resuming.append(threading.Timer(duration_s, resume))
        self.resuming[-1].start()

    def run(self, *, faults: int, tasks: int, horizon: int, at_once: int) -> None:
        while self.faults.total() < faults or len(self.tasks) < tasks:
            while sum(not task.has_ended for task in self.tasks) < at_once:
                self.add_task(horizon)
            time.sleep(self.rng.uniform(0.0, 1.0))
            self.fault()
        for timer in self.resuming:
            timer.join()
        for task in self.tasks:
            for run in task.runs:
                run.result(PATIENCE_S)

    def violations(self) -> list[str]:
        through = self.ready()
        found = [one for task in self.tasks for one in task_violations(through, task.task_id, task.clients)]
        report = through.audit()
        return found if "0 violated" in report else [*found, report]


@pytest.fixture
def own_objects(tmp_path: Path) -> Iterator[SeaweedFS]:
    """An object store that this test alone uses and kills."""
    (tmp_path / "objects").mkdir()
    try:
        objects = SeaweedFS(tmp_path / "objects")
    except NoSeaweedFS as reason:
        pytest.skip(str(reason))
    objects.start()
    yield objects
    objects.kill()


def restarted(coordinator: Coordinator) -> None:
    """Start a coordinator as a supervisor does: again, if it ends because what it depends on is away."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            coordinator.start()
            return
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def pid_of(objects: SeaweedFS) -> int:
    assert objects.process is not None
    return objects.process.pid


def killed_and_started(objects: SeaweedFS) -> None:
    objects.kill()
    objects.start()


@pytest.mark.parametrize(
    ("faults", "tasks", "horizon", "longest_pause_s"),
    [(8, 1, 6, 1.5), pytest.param(200, 25, 20, 30.0, marks=pytest.mark.long)],
    ids=["short", "long"],
)
def test_replicas_lose_nothing_and_settle_nothing_twice(
    faults: int,
    tasks: int,
    horizon: int,
    longest_pause_s: float,
    postgres_url: str,
    own_objects: SeaweedFS,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seed = int(os.environ.get("QIDPFL_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    print(f"QIDPFL_TEST_SEED={seed}")
    for name, value in own_objects.environment().items():
        monkeypatch.setenv(name, value)
    server_command("keys", "new", "--out", tmp_path / "secrets")
    coordinators = [
        Coordinator(
            tmp_path / name,
            store_url=postgres_url,
            blobs=f"s3://{BUCKET}/soak",
            secrets_dir=tmp_path / "secrets",
            environment={"QIDPFL_DRAIN_S": "0.3"},
            # Its deadlines follow the database.
            sabotage=an_hour_ahead if name == "c" else None,
        )
        for name in "abc"
    ]
    with ExitStack() as stack, ThreadPoolExecutor(16) as threads:
        for coordinator in coordinators:
            stack.enter_context(coordinator)
        replicas = Replicas(
            coordinators,
            random.Random(seed),
            threads,
            outages={"database": lambda: restart(postgres_url, "immediate")},
            longest_pause_s=longest_pause_s,
        )
        replicas.outages |= {
            "objects_killed": lambda: killed_and_started(own_objects),
            "objects_paused": lambda: replicas.pause(pid_of(own_objects), longest_pause_s),
        }
        start = time.monotonic()
        replicas.run(faults=faults, tasks=tasks, horizon=horizon, at_once=1 if faults < 100 else 3)
        uploads = sum(len(one.receipts) for task in replicas.tasks for one in task.clients)
        print(
            f"{dict(replicas.faults)}, {len(replicas.tasks) * horizon} rounds, {uploads} acknowledged uploads,"
            f" {time.monotonic() - start:.0f} s"
        )
        assert uploads == len(replicas.tasks) * horizon * CLIENTS
        assert replicas.violations() == []
