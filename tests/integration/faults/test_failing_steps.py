"""A step that fails: transient errors are retried without limit, unexpected ones fail the task after six tries."""

from pathlib import Path
from typing import Any

import pytest

from support.coordinators import NO_TIMEOUTS, Coordinator, ScriptedClient
from support.faults import failing_steps

pytestmark = pytest.mark.live


def gathered(coordinator: Coordinator, **rounds: Any) -> list[ScriptedClient]:
    rules = NO_TIMEOUTS | {"expected_clients": 3} | rounds
    task_id, code = coordinator.create_task(game={"horizon": 2}, rounds=rules)
    clients = [ScriptedClient(coordinator.url, task_id, code, f"the-key-of-client-{n}") for n in range(3)]
    for client in clients:
        client.enrol()
        client.profile().raise_for_status()
    return clients


def played(clients: list[ScriptedClient]) -> None:
    for client in clients:
        answer = client.poll(wait=60)
        assert answer is not None
        client.play(answer["round"])


def end_of(client: ScriptedClient) -> dict[str, Any]:
    while (answer := client.poll(wait=60)) is None or answer["task_state"] in ("enrolling", "training"):
        pass
    return answer


def test_a_coordinator_that_cannot_settle_does_not_fail_a_task_that_another_settles(
    postgres_url: str, tmp_path: Path
) -> None:
    blobs = tmp_path / "blobs"
    sick = Coordinator(tmp_path / "a", store_url=postgres_url, blob_dir=blobs, sabotage=failing_steps.settle_never)
    sound = Coordinator(tmp_path / "b", store_url=postgres_url, blob_dir=blobs)
    with sick.start(), sound.start():
        clients = gathered(sick)
        for _ in range(2):
            played(clients)
        assert end_of(clients[0])["reason"] == "horizon_reached"
        assert "0 violated" in sound.audit()
