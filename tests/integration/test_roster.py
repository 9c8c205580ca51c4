"""What admin and viewer see of the clients, and how an admin puts one out."""

from pathlib import Path

import httpx
import pytest

from support.coordinators import ScriptedClient, running

pytestmark = pytest.mark.live

SKEWED = (55, 55, 0, 0, 0, 0, 0, 0, 0, 0)


def test_the_roster_shows_everybody_and_a_client_that_is_put_out_is_locked_out(tmp_path: Path) -> None:
    with running(tmp_path) as coordinator, coordinator.admin as admin:
        task_id, code = coordinator.create_task(game={"horizon": 2}, rounds={"expected_clients": 5})
        labels = [(11,) * 10, (11,) * 10, (11,) * 10, (11,) * 10, SKEWED]
        clients = [
            ScriptedClient(coordinator.url, task_id, code, f"key-of-client-{n}-xx", labels=counts)
            for n, counts in enumerate(labels)
        ]
        clients[0].enrol()
        before = admin.get(f"/v1/tasks/{task_id}/clients").raise_for_status().json()
        assert [(one["ordinal"], one["state"], one["size"]) for one in before] == [(0, "enrolled", None)]
        for client in clients:
            client.enrol()
            client.profile().raise_for_status()

        roster = admin.get(f"/v1/tasks/{task_id}/clients").raise_for_status().json()
        assert [one["state"] for one in roster] == ["selected"] * 4 + ["refused"]
        assert [one["label_distance"] for one in roster] == [0.0] * 4 + [1.6]
        assert roster[0]["label_counts"] == [11] * 10 and roster[0]["privacy_value"] == 1.0

        gone = clients[0]
        assert admin.delete(f"/v1/tasks/{task_id}/clients/{gone.client_id}").status_code == 204
        assert gone.http.get("/clients/me/ledger").status_code == 401
        assert admin.delete(f"/v1/tasks/{task_id}/clients/nobody").json()["code"] == "not_found"
        _play_on(clients[1:4])
        result = admin.get(f"/v1/tasks/{task_id}/rounds/2").raise_for_status().json()
        assert [one["ordinal"] for one in result["clients"]] == [1, 2, 3]
    assert "0 violated" in coordinator.audit()


def _play_on(clients: list[ScriptedClient]) -> None:
    for _ in range(2):
        for client in clients:
            offer = client.poll()
            assert offer is not None
            client.play(offer["round"])
    end = clients[0].poll()
    assert end is not None and end["task_state"] == "finished"
    assert httpx.codes.is_success(clients[0].http.get("/clients/me/ledger").status_code)
