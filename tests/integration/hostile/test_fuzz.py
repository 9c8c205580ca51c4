"""Thousands of random requests: never a 5xx, bounded memory, and honest clients that finish in time."""

import json
import random
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import pytest

from support.coordinators import Coordinator, ScriptedClient, connected, running
from support.http_attacks import check_speed_often, health_s, honest_task_s, memory_mb, repeated

pytestmark = pytest.mark.live

METHODS = ("GET", "PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS")
# Most requests are valid HTTP: others do not get past the parser.
ODD_SHARE = 0.03
# Operations that exist, and some that do not.
OPERATIONS = (
    ("POST", "/v1/tasks"),
    ("GET", "/v1/tasks/{task}"),
    ("POST", "/v1/tasks/{task}/clients"),
    ("PUT", "/v1/tasks/{task}/clients/me/profile"),
    ("GET", "/v1/tasks/{task}/clients/me/selection"),
    ("GET", "/v1/tasks/{task}/clients/me/ledger"),
    ("DELETE", "/v1/tasks/{task}/clients/x"),
    ("GET", "/v1/tasks/{task}/rounds/current?after=0.0&wait=0"),
    ("GET", "/v1/tasks/{task}/rounds/1"),
    ("PUT", "/v1/tasks/{task}/rounds/1/budget"),
    ("PUT", "/v1/tasks/{task}/rounds/1/update"),
    ("GET", "/v1/tasks/{task}/models"),
    ("GET", "/v1/tasks/{task}/models/0"),
    ("GET", "/v1/tasks/{task}/models/0.safetensors"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
    ("GET", "/%00"),
    ("OPTIONS", "*"),
    ("GET", "//"),
    ("GET", "http://x/"),
    ("GET", "/\xff"),
)
LAST = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
WORDS = (
    "rho",
    "size",
    "label_counts",
    "enrolment_code",
    "enrolment_key",
    "decline",
    "join",
    "reason",
    "\u0000",
    "\ud800",
)


@dataclass
class Fuzzer:
    """Sends random requests and collects the statuses of their answers."""

    coordinator: Coordinator
    task_id: str
    token: str
    rng: random.Random
    statuses: Counter[int] = field(default_factory=Counter)

    def send(self, count: int) -> None:
        """Send this many requests, several on each connection."""
        while count > 0:
            batch = min(count, self.rng.randint(1, 8))
            count -= batch
            data = b"".join(self.request() for _ in range(batch)) + LAST
            with connected(self.coordinator) as connection, suppress(OSError):
                connection.settimeout(0.3)
                connection.sendall(data)
                self.collect(connection)

    def collect(self, connection: socket.socket) -> None:
        received, deadline = b"", time.monotonic() + 2
        try:
            while time.monotonic() < deadline and (piece := connection.recv(65536)):
                received += piece
        except OSError:
            pass
        self.statuses.update(int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", received))

    def request(self) -> bytes:
        rng = self.rng
        if rng.random() < ODD_SHARE:
            return rng.randbytes(rng.randint(1, 300))
        method, path = rng.choice(OPERATIONS)
        path = path.format(task=self.odd(("0", "f" * 64, "..%2f"), self.task_id))
        body = self.body()
        headers = {
            "Host": "x",
            "Authorization": rng.choice((*[f"Bearer {self.token}"] * 4, "Bearer x", "Basic x", "")),
            "Content-Type": rng.choice(("application/json", "application/json", "application/octet-stream", "")),
            "Content-Digest": rng.choice(("sha-256=:AAAA:", "sha-256=:" + "A" * 43 + "=:", "")),
            "Content-Encoding": rng.choice(("identity", "identity", "identity", "gzip")),
            "Content-Length": str(self.odd((0, len(body) + 1, -1, 10**18), len(body))),
            "If-None-Match": rng.choice(("*", '"x"', "")),
        }
        names = rng.sample(sorted(headers), rng.randint(3, len(headers)))
        lines = "".join(f"{name}: {headers[name]}\r\n" for name in {*names, "Content-Length"} if headers[name])
        method = str(self.odd(("FETCH", "CONNECT", "get", "", *METHODS), method))
        head = f"{method} {path} HTTP/{self.odd(('1.0', '2.0'), '1.1')}\r\n{lines}\r\n"
        return head.encode("latin-1") + body

    def odd(self, odd: Sequence[object], usual: object) -> object:
        return self.rng.choice(odd) if self.rng.random() < ODD_SHARE else usual

    def body(self) -> bytes:
        kind = self.rng.random()
        if kind < 0.3:
            return b""
        if kind < 0.5:
            return self.rng.randbytes(self.rng.choice((1, 100, 2600, 20_000)))
        return json.dumps(self.value(3)).encode()

    def value(self, depth: int) -> object:
        rng = self.rng
        if depth == 0 or rng.random() < 0.3:
            return rng.choice((0, -1, 10**30, 1e308, float("nan"), True, None, "x" * rng.randint(0, 50), 0.05))
        if rng.random() < 0.5:
            return [self.value(depth - 1) for _ in range(rng.randint(0, 5))]
        return {rng.choice(WORDS): self.value(depth - 1) for _ in range(rng.randint(0, 5))}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with running(tmp_path_factory.mktemp("attacked"), sabotage=check_speed_often) as coordinator:
        yield coordinator
        assert "0 violated" in coordinator.audit()


@pytest.fixture(scope="module")
def unlimited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    """A coordinator whose rates let all random requests through: else most of them get 429 and test nothing."""
    rates = {"QIDPFL_REQUESTS_PER_S_PER_CLIENT": "100000", "QIDPFL_REQUESTS_PER_S_PER_ADDRESS": "100000"}
    with running(tmp_path_factory.mktemp("fuzz"), environment=rates, sabotage=check_speed_often) as coordinator:
        yield coordinator
        assert "0 violated" in coordinator.audit()


def enrolled(live: Coordinator, name: str) -> ScriptedClient:
    # A model that does not fit into the buffers of a connection.
    layout = {"tensors": [{"name": "wide", "shape": [5_000_000]}]}
    workload = {"dataset": "none", "network": "wide"}
    task_id, code = live.create_task(name, rounds={"expected_clients": 3}, workload=workload, layout=layout)
    client = ScriptedClient(live.url, task_id, code, f"key-of-the-client-of-{name}")
    client.enrol()
    return client


@pytest.mark.parametrize("count", [400, pytest.param(12_000, marks=pytest.mark.long)])
def test_random_requests_cause_no_server_error(unlimited: Coordinator, count: int) -> None:
    client = enrolled(unlimited, f"fuzzed-{count}")
    fuzzer = Fuzzer(unlimited, client.task_id, client.token, random.Random(count))
    fuzzer.send(count)
    print(dict(sorted(fuzzer.statuses.items())))
    assert sum(fuzzer.statuses.values()) > count / 2
    assert fuzzer.statuses[429] < count / 10
    assert [status for status in fuzzer.statuses if status >= 500] == []
    assert [event for event in unlimited.log if event["event"] in ("internal_error", "library")] == []
    assert memory_mb(unlimited) < 400
    assert health_s(unlimited) < 5


# --- honest clients during each attack -------------------------------------------------------------------------------


def pipelining(live: Coordinator, client: ScriptedClient) -> None:
    with connected(live) as connection:
        connection.settimeout(0.2)
        connection.sendall(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n" * 36_000)


def large_bodies(live: Coordinator, client: ScriptedClient) -> None:
    keys = ",".join(f'"k{number}":1' for number in range(150_000))
    client.http.put("/clients/me/profile", content=f"{{{keys}}}", headers={"Content-Type": "application/json"})


def idle_connections(live: Coordinator, client: ScriptedClient) -> None:
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(connected(live))


def unread_downloads(live: Coordinator, client: ScriptedClient) -> None:
    head = f"GET /v1/tasks/{client.task_id}/models/0 HTTP/1.1\r\nHost: x\r\n"
    head += f"Authorization: Bearer {client.token}\r\n\r\n"
    with ExitStack() as stack:
        for _ in range(512):
            stack.enter_context(connected(live)).sendall(head.encode())
        time.sleep(2)


def wrong_codes(live: Coordinator, client: ScriptedClient) -> None:
    body = {"enrolment_code": f"{client.task_id}.{random.random()}"[2:], "enrolment_key": "x" * 20}
    for _ in range(20):
        client.http.post("/clients", json=body)


def random_bytes(live: Coordinator, client: ScriptedClient) -> None:
    Fuzzer(live, client.task_id, client.token, random.Random()).send(20)


# Enough for several seconds: the attack and the noise of the machine weigh the same in each of them.
ROUNDS = 30
ATTACKS = (pipelining, large_bodies, idle_connections, unread_downloads, wrong_codes, random_bytes)


@pytest.mark.long
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_honest_fleet_finishes_within_twice_its_time(
    live: Coordinator, attack: Callable[[Coordinator, ScriptedClient], None]
) -> None:
    client = enrolled(live, f"attacked-by-{attack.__name__}".replace("_", "-"))

    def attack_once() -> None:
        attack(live, client)
        time.sleep(0.05)

    name = attack.__name__.replace("_", "-")
    undisturbed = honest_task_s(live, f"calm-{name}", horizon=ROUNDS)
    with repeated(attack_once):
        disturbed = honest_task_s(live, f"attacked-{name}", horizon=ROUNDS)
    print(f"{name}: {undisturbed:.2f} s, under attack {disturbed:.2f} s, {memory_mb(live):.0f} MB")
    assert disturbed < 2 * undisturbed
    assert memory_mb(live) < 400
