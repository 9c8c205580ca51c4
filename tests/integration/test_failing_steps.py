"""A step that fails: what may pass is waited for, what nobody foresaw ends the task after some tries, in good order."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import failing_steps
from support.coordinators import NO_TIMEOUTS, Coordinator, ScriptedClient

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


def test_a_round_that_can_never_be_settled_fails_its_task_with_a_reason(store_url: str, tmp_path: Path) -> None:
    hindrance = failing_steps.settle_never_and_hurry
    coordinator = Coordinator(tmp_path, store_url=store_url, sabotage=hindrance)
    with coordinator.start():
        clients = gathered(coordinator)
        played(clients)
        end = end_of(clients[0])
        assert end["task_state"] == "failed"
        assert end["reason"] == "step_failed: round 1 failed 6 times with Unforeseen"
        entry = clients[0].http.get("/clients/me/ledger").json()["entries"][-1]
        assert (entry["state"], entry["payment_micro"]) == ("spent_unpaid", None)
        with coordinator.admin as http:
            held = http.get(f"/v1/tasks/{clients[0].task_id}/rounds/1").json()
        assert (held["state"], held["paid_micro"]) == ("void", 0)
        assert "0 violated" in coordinator.audit()
        failures = [line for line in coordinator.log if line["event"] == "step_failed"]
        assert len(failures) == 6
        assert all("with a detail for the log only" in line["exception"] for line in failures)
        assert [line["task"] for line in coordinator.log if line["event"] == "task_failed"] == [clients[0].task_id]


def test_a_selection_that_can_never_be_made_fails_its_task_with_a_reason(tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path, sabotage=failing_steps.select_never)
    with coordinator.start():
        clients = gathered(coordinator, expected_clients=None, quiet_s=1.0)
        end = end_of(clients[0])
        assert (end["task_state"], end["reason"]) == (
            "failed",
            "step_failed: the selection failed 6 times with Unforeseen",
        )
        assert "0 violated" in coordinator.audit()


@pytest.mark.parametrize(
    "hindrance",
    [failing_steps.settle_at_the_fourth_try, failing_steps.settle_with_a_sick_disk],
    ids=["a fault that goes away", "a disk that is away for long"],
)
def test_a_step_that_succeeds_in_the_end_costs_nothing(hindrance: Callable[[], None], tmp_path: Path) -> None:
    with Coordinator(tmp_path, sabotage=hindrance).start() as coordinator:
        clients = gathered(coordinator)
        for _ in range(2):
            played(clients)
        assert end_of(clients[0])["reason"] == "horizon_reached"
        assert "0 violated" in coordinator.audit()


def test_one_coordinator_that_cannot_settle_does_not_fail_what_the_other_settles(
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
