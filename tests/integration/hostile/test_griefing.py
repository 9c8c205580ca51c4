"""Clients that only delay: ten honest clients finish within twice their undisturbed time."""

import time
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from support.coordinators import Coordinator, ScriptedClient, play_to_the_end, running

pytestmark = [pytest.mark.live, pytest.mark.long]

ROUNDS = 24
TRAINING_S = 0.6
# Deadlines in proportion to the work, as in a task whose operator knows how long training takes.
DEADLINES = {"declare_s": 2.0, "deliver_s": 3.0}


@dataclass
class Worker(ScriptedClient):
    """An honest client whose training takes some time."""

    def upload(self, offer: dict[str, Any], data: bytes | None = None, digest: str | None = None) -> httpx.Response:
        time.sleep(TRAINING_S)
        return super().upload(offer, data, digest)


@dataclass
class Withdrawer(ScriptedClient):
    """Declares a budget and takes it back just before the deadline."""

    def play(self, offer: dict[str, Any]) -> None:
        if offer["standing"] == "invited" and self.declare(offer).is_success:
            time.sleep(max(0.0, offer["deliver_in_s"] - 0.5))
            body = {"decline": True, "reason": "owner_limit"}
            self.http.put(f"/rounds/{offer['round_number']}/budget", json=body)
        self.seen = f"{offer['round_number']}.{offer['attempt']}"


@dataclass
class Absentee(ScriptedClient):
    """Declares a budget and never delivers."""

    def play(self, offer: dict[str, Any]) -> None:
        if offer["standing"] == "invited":
            self.declare(offer)
        self.seen = f"{offer['round_number']}.{offer['attempt']}"


def task_s(coordinator: Coordinator, name: str, kinds: list[type[ScriptedClient]], **overrides: Any) -> float:
    """The seconds of a whole task with these clients. All of it is settled."""
    bounds = {"clients_max": 20}
    task_id, code = coordinator.create_task(
        name,
        game={"horizon": ROUNDS},
        rounds=DEADLINES | {"expected_clients": len(kinds)},
        selection={"rule": "all"},
        workload={"partition": None},
        bounds=bounds,
        privacy={"lifetime_rho": None},
        **overrides,
    )
    clients = [kind(coordinator.url, task_id, code, f"{name}-key-{n:010d}") for n, kind in enumerate(kinds)]
    began = time.monotonic()
    play_to_the_end(clients)
    took_s = time.monotonic() - began
    with coordinator.admin as admin:
        task = admin.get(f"/v1/tasks/{task_id}").raise_for_status().json()
    assert (task["state"], task["settled_rounds"]) == ("finished", ROUNDS)
    return took_s


@pytest.fixture(scope="module")
def undisturbed_s(coordinator: Coordinator) -> float:
    return task_s(coordinator, "undisturbed", [Worker] * 10)


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with running(tmp_path_factory.mktemp("griefing")) as live:
        yield live
        assert "0 violated" in live.audit()


@pytest.mark.parametrize("kind", [Withdrawer, Absentee])
def test_ten_honest_clients_finish_in_time(
    coordinator: Coordinator, undisturbed_s: float, kind: type[ScriptedClient]
) -> None:
    attacked_s = task_s(coordinator, kind.__name__.lower(), [*[Worker] * 10, kind])
    print(f"{kind.__name__}: {undisturbed_s:.1f} s undisturbed, {attacked_s:.1f} s attacked")
    assert attacked_s < 2 * undisturbed_s


def test_without_a_defence_a_withdrawer_stretches_every_round(coordinator: Coordinator, undisturbed_s: float) -> None:
    """The measurement can see the attack."""
    attacked_s = task_s(coordinator, "undefended", [*[Worker] * 10, Withdrawer], defence=None)
    assert attacked_s > 2 * undisturbed_s
