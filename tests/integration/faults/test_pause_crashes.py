"""Kill the coordinator while an admin pauses or resumes a task: the change is stored whole or not at all."""

import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from qidpfl_shared.failpoints import PAUSE_FAILPOINTS
from support.coordinators import NO_TIMEOUTS, Coordinator, ScriptedClient, play_to_the_end
from support.task_checks import violations

pytestmark = pytest.mark.live

HORIZON = 3
CLIENTS = 3


@pytest.mark.parametrize("store_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)], indirect=True)
@pytest.mark.parametrize("name", PAUSE_FAILPOINTS)
def test_a_kill_during_a_pause_or_its_end_leaves_a_clean_store(name: str, store_url: str, tmp_path: Path) -> None:
    action, _, place = name.partition(".")
    is_stored = place == "after_commit"
    coordinator = Coordinator(tmp_path, store_url=store_url)
    with coordinator.start():
        clients = enrolled(coordinator)
        task_id = clients[0].task_id
        play_round(clients)
        if action == "resume":
            change(coordinator, task_id, "pause").raise_for_status()
            play_round(clients)
        killed_by(coordinator, task_id, name, action)
        is_paused = is_stored if action == "pause" else not is_stored
        assert state_of(coordinator, task_id) == (is_paused, events_of(action, is_stored=is_stored))
        assert "0 violated" in coordinator.audit()
        # The admin had no answer and repeats the call. A repeat of a stored change adds no event.
        change(coordinator, task_id, action).raise_for_status()
        assert state_of(coordinator, task_id) == (action == "pause", events_of(action, is_stored=True))
        change(coordinator, task_id, "resume").raise_for_status()
        play_to_the_end(clients)
        assert violations(coordinator, task_id, clients) == []


def enrolled(coordinator: Coordinator) -> list[ScriptedClient]:
    rounds = NO_TIMEOUTS | {"expected_clients": CLIENTS, "min_clients": CLIENTS, "min_updates": CLIENTS}
    task_id, code = coordinator.create_task(game={"horizon": HORIZON}, rounds=rounds)
    clients = [
        ScriptedClient(coordinator.url, task_id, code, f"the-key-of-client-{n}", locate=lambda: coordinator.url)
        for n in range(CLIENTS)
    ]
    for client in clients:
        client.enrol()
        client.profile().raise_for_status()
    return clients


def play_round(clients: list[ScriptedClient]) -> None:
    for client in clients:
        news = client.poll()
        assert news is not None
        client.play(news["round"])


def change(coordinator: Coordinator, task_id: str, action: str) -> httpx.Response:
    with coordinator.admin as http:
        return http.post(f"/v1/tasks/{task_id}/{action}")


def killed_by(coordinator: Coordinator, task_id: str, name: str, action: str) -> None:
    """Start the coordinator with a failpoint, ask for the change, see it die, and start it again."""
    coordinator.stop()
    coordinator.environment = {"QIDPFL_FAILPOINT": name}
    coordinator.start()
    with pytest.raises(httpx.TransportError):
        change(coordinator, task_id, action)
    assert coordinator.died_of() == signal.SIGKILL
    coordinator.environment = {"QIDPFL_FAILPOINT": ""}
    coordinator.start()


def state_of(coordinator: Coordinator, task_id: str) -> tuple[bool, list[str]]:
    """Whether the task is paused, and the events of pauses."""
    with coordinator.admin as http:
        progress: dict[str, Any] = http.get(f"/v1/tasks/{task_id}/progress").raise_for_status().json()
        kinds = []
        with http.stream("GET", f"/v1/tasks/{task_id}/events") as feed:
            events = (
                json.loads(line.removeprefix("data: ")) for line in feed.iter_lines() if line.startswith("data: ")
            )
            for event in events:
                kinds.append(event["kind"])
                if event["id"] == progress["last_event"]:
                    break
    return progress["paused"], [kind for kind in kinds if kind in ("task.paused", "task.resumed")]


def events_of(action: str, *, is_stored: bool) -> list[str]:
    if action == "pause":
        return ["task.paused"] if is_stored else []
    return ["task.paused", "task.resumed"] if is_stored else ["task.paused"]
