"""A flood of small requests of one caller: honest clients finish in time, and health, readiness and metrics answer."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.coordinators import NO_TIMEOUTS, Coordinator, ScriptedClient, running
from support.http_attacks import health_s, honest_task_s, memory_mb, processor_s
from support.request_floods import flooded, http_request

pytestmark = pytest.mark.live

# Several seconds: the attack and the noise of the machine weigh the same in each of them.
ROUNDS = 30
HEALTH_PATHS = ("/healthz", "/readyz", "/metrics")
OTHER_ADDRESS = "127.0.0.2"
# A task for more clients than the digits have records for.
NO_DATA = {"dataset": "none", "partition": None}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with running(tmp_path_factory.mktemp("floods")) as coordinator:
        yield coordinator
        assert "0 violated" in coordinator.audit()


def gathered(live: Coordinator, name: str) -> list[ScriptedClient]:
    """The clients of a task whose first round is open."""
    task_id, code = live.create_task(name, rounds=NO_TIMEOUTS | {"expected_clients": 3})
    clients = [ScriptedClient(live.url, task_id, code, f"key-of-a-client-of-{name}-{n}") for n in range(3)]
    for client in clients:
        client.enrol()
        client.profile().raise_for_status()
    return clients


def small_requests(client: ScriptedClient) -> list[bytes]:
    """Small requests of an enrolled client in an open round: polls, budgets, ledgers and unknown paths."""
    news = client.poll(wait=40)
    assert news is not None
    client.declare(news["round"]).raise_for_status()
    task = f"/v1/tasks/{client.task_id}"
    return [
        http_request("GET", f"{task}/rounds/current?after=0.0&wait=0", client.token),
        http_request("PUT", f"{task}/rounds/1/budget", client.token, b'{"rho": 0.05}'),
        http_request("GET", f"{task}/clients/me/ledger", client.token),
        http_request("GET", "/v1/nothing", client.token),
    ]


def unknown_tokens() -> list[bytes]:
    """Small requests with unknown tokens, and without any."""
    unknown = [http_request("GET", "/v1/tasks/0/rounds/current", f"unknown-{n}") for n in range(200)]
    return [*unknown, http_request("GET", "/v1/nothing")]


def wrong_codes(live: Coordinator) -> list[bytes]:
    task_id, _ = live.create_task("guessed")
    body = b'{"enrolment_code": "%s.wrong-code-number-%d", "enrolment_key": "key-of-some-outsider"}'
    path = f"/v1/tasks/{task_id}/clients"
    return [http_request("POST", path, None, body % (task_id.encode(), n)) for n in range(200)]


# Without a rate of requests the fleet needs 5.9 times its time under the first attack, 5.3 times under the second;
# without a rate of new connections 3.6 times under the last.
@pytest.mark.long
@pytest.mark.parametrize("attack", ["client", "tokens", "codes", "health", "connections"])
def test_an_honest_fleet_finishes_within_twice_its_time_under_a_flood(live: Coordinator, attack: str) -> None:
    source = "127.0.0.1" if attack == "client" else OTHER_ADDRESS
    if attack == "client":
        requests = small_requests(gathered(live, "flooding")[0])
    elif attack in ("health", "connections"):
        requests = [http_request("GET", path) for path in HEALTH_PATHS]
    else:
        requests = unknown_tokens() if attack == "tokens" else wrong_codes(live)
    undisturbed = honest_task_s(live, f"calm-{attack}", horizon=ROUNDS)
    with flooded(live.url, requests, connections=16, source=source, reconnect=attack == "connections") as flood:
        disturbed = honest_task_s(live, f"flooded-{attack}", horizon=ROUNDS)
    print(f"{attack}: {undisturbed:.2f} s, flooded {disturbed:.2f} s, {memory_mb(live):.0f} MB, {flood}")
    assert disturbed < 2 * undisturbed
    assert [status for status in flood.statuses if status >= 500] == []
    assert memory_mb(live) < 400


def test_a_flood_of_one_client_costs_little_and_gets_429(tmp_path: Path) -> None:
    """Catches a coordinator without a rate: it answers thousands of requests and uses a whole processor."""
    limits = {"QIDPFL_REQUESTS_PER_S_PER_CLIENT": "20"}
    with running(tmp_path, environment=limits) as live:
        greedy, honest, _ = gathered(live, "costs")
        with flooded(live.url, small_requests(greedy), connections=16) as flood:
            # After the burst.
            time.sleep(3)
            start, begun = processor_s(live), time.monotonic()
            assert honest.http.get("/clients/me/ledger").status_code == 200
            time.sleep(3)
            used = (processor_s(live) - start) / (time.monotonic() - begun)
            answers = (greedy.http.get("/clients/me/ledger") for _ in range(100))
            refused = next(answer for answer in answers if answer.status_code == 429)
        answered = sum(count for status, count in flood.statuses.items() if status != 429)
        print(f"{used:.2f} of a processor, {flood}")
        assert used < 0.4
        assert flood.statuses[429] > 0 and flood.waits and min(flood.waits) >= 1
        assert answered < 20 * 10 + 20 * 20
        assert refused.json()["code"] == "too_many_requests" and int(refused.headers["Retry-After"]) >= 1
        assert "rate_limited" in {event["event"] for event in live.log}
        assert honest.http.get("/clients/me/ledger").status_code == 200


def test_a_new_connection_for_every_request_gets_few_answers(live: Coordinator) -> None:
    """Catches a coordinator that sets up every connection at once: it answers thousands of them."""
    requests = [http_request("GET", "/healthz")]
    with flooded(live.url, requests, connections=16, source=OTHER_ADDRESS, reconnect=True) as flood:
        time.sleep(8)
        # Other addresses do not wait.
        assert health_s(live) < 5
    # The burst, the rate, and what waits for at most half a second on 16 connections.
    assert 0 < sum(flood.statuses.values()) < 1000 + 100 * 20 + 2 * 16 * 20


def test_a_hundred_clients_of_one_address_are_not_limited(tmp_path: Path) -> None:
    """Catches a rate per address for enrolled clients: together they send far more than one address may."""
    limits = {"QIDPFL_REQUESTS_PER_S_PER_ADDRESS": "40", "QIDPFL_ENROLMENTS_PER_S": "100"}
    with running(tmp_path, environment=limits) as live:
        task_id, code = live.create_task(
            "fleet", "mnist", workload=NO_DATA, rounds=NO_TIMEOUTS | {"expected_clients": 150}
        )
        clients = [ScriptedClient(live.url, task_id, code, f"key-of-a-client-of-one-address-{n}") for n in range(100)]
        statuses: list[int] = []

        def ask(client: ScriptedClient) -> None:
            client.enrol()
            statuses.extend(client.http.get("/clients/me/ledger").status_code for _ in range(20))

        threads = [threading.Thread(target=ask, args=[client]) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert statuses == [200] * 2000


def test_health_readiness_and_metrics_answer_under_their_own_flood(live: Coordinator) -> None:
    """Catches places that health, readiness and metrics share: all of them are taken, and each gets 429."""
    requests = [http_request("GET", path) for path in HEALTH_PATHS]
    with flooded(live.url, requests, connections=200) as flood, httpx.Client(base_url=live.url, timeout=30) as http:
        time.sleep(2)
        for path in HEALTH_PATHS * 3:
            start = time.monotonic()
            assert http.get(path).status_code == 200
            assert time.monotonic() - start < 5
    assert set(flood.statuses) == {200}
    assert health_s(live) < 5
