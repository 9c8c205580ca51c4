"""A large model on an object store: uploads and the settlement take memory for parts, not for bodies."""

import threading
from pathlib import Path

import pytest

from support.coordinators import FILE_UPDATES, ScriptedClient, running
from support.task_checks import violations

pytestmark = pytest.mark.live

# 200 MB.
DIMENSION = 50_000_000
CLIENTS = 2
LARGE = FILE_UPDATES | {"layout": {"tensors": [{"name": "weight", "shape": [10, DIMENSION // 10]}]}}
ROUNDS = {"expected_clients": CLIENTS, "min_clients": CLIENTS, "min_updates": CLIENTS}
# Two bodies at once, each with two parts of 8 MiB and its pieces; or the windows of a settlement; and some slack.
LIMIT_MB = 120.0
# The evaluation of a model has one copy of it, also with a folder.
MODEL_MB = 4 * DIMENSION / (1 << 20)


def status_mb(pid: int, name: str) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024


@pytest.mark.long
def test_uploads_of_200_mb_and_their_settlement_take_bounded_memory(tmp_path: Path, bucket_url: str) -> None:
    with running(tmp_path / "state", blobs=bucket_url) as coordinator:
        task_id, code = coordinator.create_task(game={"horizon": 1}, rounds=ROUNDS, **LARGE)
        clients = [ScriptedClient(coordinator.url, task_id, code, f"the-key-of-client-{n}") for n in range(CLIENTS)]
        for client in clients:
            client.http.timeout = 300
            client.enrol()
            client.profile().raise_for_status()
        for client in clients:
            answer = client.poll(wait=60)
            assert answer is not None
            client.unanswered = answer["round"]
            client.declare(answer["round"]).raise_for_status()
            client.update(answer["round"])
        assert coordinator.process is not None
        pid = coordinator.process.pid
        # The peak from now on. Version 0 was made in memory.
        Path(f"/proc/{pid}/clear_refs").write_text("5")
        before_mb = status_mb(pid, "VmRSS")
        threads = [threading.Thread(target=deliver, args=[client]) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(client.unanswered is None for client in clients)
        peak_mb = status_mb(pid, "VmHWM")
        while (news := clients[0].poll(wait=60)) is None or news["task_state"] == "training":
            clients[0].seen = "1.1"
        settled_mb = status_mb(pid, "VmHWM")
        print(f"{before_mb:.0f} MB before, at most {peak_mb:.0f} MB in uploads, {settled_mb:.0f} MB in the settlement")
        assert peak_mb - before_mb < LIMIT_MB
        assert settled_mb - before_mb < LIMIT_MB + MODEL_MB
        assert violations(coordinator, task_id, clients) == []


def deliver(client: ScriptedClient) -> None:
    assert client.unanswered is not None
    client.upload(client.unanswered).raise_for_status()
    client.unanswered = None
