"""What experiments compare with, in a live coordinator: rewards written down beforehand, clients chosen blindly."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.coordinators import NO_TIMEOUTS, Coordinator, ScriptedClient, play_to_the_end

pytestmark = pytest.mark.live

SCHEDULE = [3_000_000, 500_000, 9_000_000]


def test_a_schedule_is_paid_to_clients_that_were_chosen_blindly(tmp_path: Path) -> None:
    overrides: dict[str, Any] = {
        "game": {
            "policy": "fixed",
            "horizon": 3,
            "reward_schedule_micro": SCHEDULE,
            "reward_range": {"minimum_micro": 1_000_000, "maximum_micro": 8_000_000},
        },
        "selection": {"rule": "random", "random_clients": 3, "seed": 5},
        "rounds": NO_TIMEOUTS | {"expected_clients": 6, "min_clients": 2, "min_updates": 2},
    }
    with Coordinator(tmp_path) as coordinator:
        task_id, code = coordinator.create_task(**overrides)
        play_to_the_end([ScriptedClient(coordinator.url, task_id, code, f"key-of-client-{n:05d}") for n in range(6)])
        with coordinator.admin as http:
            clients = http.get(f"/v1/tasks/{task_id}/clients").json()
            rounds = [http.get(f"/v1/tasks/{task_id}/rounds/{number}").json() for number in (1, 2, 3)]
        assert "0 violated" in coordinator.audit()
    kept = {client["ordinal"] for client in clients if client["state"] == "selected"}
    assert kept == set(np.random.RandomState(5).permutation(6)[:3].tolist())
    assert [held["reward_micro"] for held in rounds] == [3_000_000, 1_000_000, 8_000_000]
    assert [{entry["ordinal"] for entry in held["clients"]} for held in rounds] == [kept] * 3
