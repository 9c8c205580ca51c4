"""The sweep removes blobs that are not needed, and none that is served, audited, trained from or being uploaded."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from qidpfl_server.audit import audit
from qidpfl_server.errors import RequestRefused
from qidpfl_server.ops.export import read_export
from qidpfl_server.ops.open_store import opened_store
from qidpfl_server.service.retention import kept_digests, sweep
from qidpfl_server.settings import Settings
from qidpfl_server.store.blobs import FolderBlobs
from qidpfl_server.store.store import Store
from support.coordinators import FILE_UPDATES, NO_TIMEOUTS, Coordinator, ScriptedClient, play_to_the_end
from support.faults.failing_steps import sweep_all_the_time

pytestmark = pytest.mark.live

Result = TypeVar("Result")
HORIZON = 5
KEPT = 2
CLIENTS = 3
HOUR_S = 3600.0


@contextmanager
def store_of(coordinator: Coordinator) -> Iterator[Store]:
    where = Settings(
        state_dir=coordinator.state_dir, store_url=coordinator.store_url, blob_dir=coordinator.state_dir / "blobs"
    )
    with opened_store(where) as store:
        yield store


def gathered(coordinator: Coordinator, **overrides: Any) -> list[ScriptedClient]:
    """The clients of a task that keeps its last two rounds; the first round is open."""
    rounds = NO_TIMEOUTS | {"expected_clients": CLIENTS, "min_clients": CLIENTS, "min_updates": CLIENTS}
    retention = {"last_rounds": KEPT}
    task_id, code = coordinator.create_task(game={"horizon": HORIZON}, rounds=rounds, retention=retention, **overrides)
    clients = [ScriptedClient(coordinator.url, task_id, code, f"the-key-of-client-{n}") for n in range(CLIENTS)]
    for client in clients:
        client.enrol()
        client.profile().raise_for_status()
    return clients


def play_round(clients: list[ScriptedClient]) -> None:
    """All clients answer the open round; returns when it is settled."""
    for client in clients:
        answer = client.poll(wait=60)
        assert answer is not None
        client.play(answer["round"])
    while clients[0].poll(wait=60) is None:
        pass


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("overrides", [{}, FILE_UPDATES], ids=["rows", "files"])
def test_a_live_task_is_swept_after_every_round_and_continues(
    store_url: str, tmp_path: Path, overrides: dict[str, Any]
) -> None:
    with Coordinator(tmp_path, store_url=store_url) as coordinator, store_of(coordinator) as store:
        clients = gathered(coordinator, **overrides)
        removed = []
        for _ in range(HORIZON):
            play_round(clients)
            removed.append(sweep(store, grace_s=0))
        # A round's updates, the model it started from and its momentum; version 0 has none.
        assert removed == [0, 0, CLIENTS + 1, CLIENTS + 2, CLIENTS + 2]
        assert sweep(store, grace_s=0) == 0
        report = audit(store)
        assert report.violations == []
        (said,) = report.not_checkable
        assert said.endswith("models before version 3 and updates of rounds up to 3 are not kept")
        rows = store.read(lambda tx: set(tx.small_blobs.writes()))
        assert names(tmp_path / "blobs" / "objects") | rows == store.read(kept_digests)
        with coordinator.admin as http:
            task = http.get(f"/v1/tasks/{clients[0].task_id}").json()
            assert (task["state"], task["settled_rounds"]) == ("finished", HORIZON)
            versions = {v: http.get(f"/v1/tasks/{task['task_id']}/models/{v}").status_code for v in range(HORIZON + 1)}
        assert versions == {0: 404, 1: 404, 2: 404, 3: 200, 4: 200, 5: 200}
        with pytest.raises(RequestRefused, match="versions 3 to 5 are kept"):
            read_export(store, clients[0].task_id, version=2)
        assert read_export(store, clients[0].task_id, version=3).version == 3
        # A repeat gets its receipt also after the bytes were deleted.
        for number in range(1, HORIZON + 1):
            assert clients[0].upload({"round_number": number}).status_code == 200


def test_a_coordinator_sweeps_old_orphans_and_leaves_young_ones(postgres_url: str, tmp_path: Path) -> None:
    """Also young ones in staging: another coordinator may write them."""
    folder = FolderBlobs(tmp_path / "blobs")
    old, young = folder.put(b"unreferenced"), folder.put(b"may be referenced soon")
    with folder.stage() as forgotten, folder.stage() as arriving:
        forgotten.write(b"never published")
        arriving.write(b"more of me is on its way")
        for path in (tmp_path / "blobs" / "objects" / old, forgotten.path):
            os.utime(path, (time.time() - 2 * HOUR_S,) * 2)
        with Coordinator(tmp_path, store_url=postgres_url, blob_dir=tmp_path / "blobs") as coordinator:
            deadline = time.monotonic() + 60
            while (folder.has(old) or forgotten.path.exists()) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert names(tmp_path / "blobs" / "objects") == {young}
            assert names(tmp_path / "blobs" / "staging") == {arriving.path.name}
            assert "0 violated" in coordinator.audit()


def test_a_coordinator_whose_clock_is_ahead_of_its_file_system_sweeps_no_acknowledged_upload(tmp_path: Path) -> None:
    """Its uploads look older than the grace period from the moment they are written."""
    coordinator = Coordinator(tmp_path, sabotage=sweep_all_the_time)
    coordinator.advance(2 * HOUR_S)
    with coordinator:
        rounds = {"expected_clients": CLIENTS, "min_clients": CLIENTS, "min_updates": CLIENTS}
        task_id, code = coordinator.create_task(game={"horizon": 20}, rounds=rounds)
        clients = [ScriptedClient(coordinator.url, task_id, code, f"the-key-of-client-{n}") for n in range(CLIENTS)]
        play_to_the_end(clients)
        answer = clients[0].poll()
        assert answer is not None and answer["reason"] == "horizon_reached"
        assert "0 violated" in coordinator.audit()
        assert not [event for event in coordinator.log if event["event"] == "sweep_failed"]


def test_an_upload_that_a_killed_coordinator_has_left_is_swept_at_the_next_start(tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path, environment={"QIDPFL_FAILPOINT": "upload.blob_staged:1"})
    with coordinator:
        rounds = NO_TIMEOUTS | {"expected_clients": CLIENTS}
        task_id, code = coordinator.create_task(game={"horizon": 1}, rounds=rounds, **FILE_UPDATES)
        clients = [ScriptedClient(coordinator.url, task_id, code, f"the-key-of-client-{n}") for n in range(CLIENTS)]
        for client in clients:
            client.enrol()
            client.profile().raise_for_status()
        answer = clients[0].poll(wait=60)
        assert answer is not None
        clients[0].declare(answer["round"]).raise_for_status()
        with pytest.raises(httpx.TransportError):
            clients[0].upload(answer["round"])
        assert coordinator.died_of() == signal.SIGKILL
        staging = tmp_path / "blobs" / "staging"
        assert len(names(staging)) == 1
        coordinator.environment = {}
        coordinator.start()
        deadline = time.monotonic() + 60
        while names(staging) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert names(staging) == set()
        assert "0 violated" in coordinator.audit()
