"""A flood of small requests of one caller: honest clients finish in time, and health, readiness and metrics answer."""

import time
from collections.abc import Iterator

import httpx
import pytest

from support.coordinators import NO_TIMEOUTS, Coordinator, ScriptedClient, running
from support.http_attacks import honest_task_s, memory_mb
from support.request_floods import flooded, http_request

pytestmark = pytest.mark.live

# Several seconds: the attack and the noise of the machine weigh the same in each of them.
ROUNDS = 30
OPEN_PATHS = ("/healthz", "/readyz", "/metrics")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with running(tmp_path_factory.mktemp("floods")) as coordinator:
        yield coordinator
        assert "0 violated" in coordinator.audit()


def small_requests(live: Coordinator, name: str) -> list[bytes]:
    """Small requests of an enrolled client whose round is open: polls, budgets, ledgers and unknown paths."""
    task_id, code = live.create_task(name, rounds=NO_TIMEOUTS | {"expected_clients": 3})
    clients = [ScriptedClient(live.url, task_id, code, f"key-of-a-client-of-{name}-{n}") for n in range(3)]
    for client in clients:
        client.enrol()
        client.profile().raise_for_status()
    news = clients[0].poll(wait=40)
    assert news is not None
    clients[0].declare(news["round"]).raise_for_status()
    task, token = f"/v1/tasks/{task_id}", clients[0].token
    return [
        http_request("GET", f"{task}/rounds/current?after=0.0&wait=0", token),
        http_request("PUT", f"{task}/rounds/1/budget", token, b'{"rho": 0.05}'),
        http_request("GET", f"{task}/clients/me/ledger", token),
        http_request("GET", "/v1/nothing", token),
    ]


def outsiders_requests() -> list[bytes]:
    """Small requests without a token, and with unknown ones."""
    unknown = [http_request("GET", "/v1/tasks/0/rounds/current", f"unknown-{n}") for n in range(200)]
    return [*unknown, http_request("GET", "/v1/nothing")]


@pytest.mark.parametrize("caller", ["client", "outsider"])
def test_an_honest_fleet_finishes_within_twice_its_time_under_a_flood(live: Coordinator, caller: str) -> None:
    requests = small_requests(live, "flooding") if caller == "client" else outsiders_requests()
    undisturbed = honest_task_s(live, f"calm-{caller}", horizon=ROUNDS)
    with flooded(live.url, requests, connections=16) as flood:
        disturbed = honest_task_s(live, f"flooded-{caller}", horizon=ROUNDS)
    print(f"{caller}: {undisturbed:.2f} s, flooded {disturbed:.2f} s, {memory_mb(live):.0f} MB, {flood}")
    assert disturbed < 2 * undisturbed
