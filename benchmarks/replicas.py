"""Measures 1, 2 and 3 coordinators on one PostgreSQL and one object store, and one of three that is killed.

    python benchmarks/replicas.py
    python benchmarks/replicas.py --tasks 8 --clients 10 --parameters 7850,1663370

Clients without training play whole rounds of several tasks at once. Each client has one connection to one of the
replicas; after a lost connection or an answer that asks to wait it goes on at the next replica. The killed replica is
not started again. All of this shares the processors of one machine: more replicas show what sharing a store costs and
what a failure costs, not what more machines gain.
"""

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinator import temporary_postgres
from load import RECORDS, RHO, Update, quick_event_loop, task_body
from servers import Connection, Coordinator, empty_database, processor_ms, running_coordinator

# The object store of the tests.
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.peers.seaweedfs import BUCKET, NoSeaweedFS, SeaweedFS

_TITLES = (
    "replicas",
    "parameters",
    "rounds/s",
    "uploads/s",
    "budget p50 / p99, ms",
    "model p50 / p99, ms",
    "upload p50 / p99, ms",
    "longest wait, s",
    "processor ms per upload",
)
_AGAIN_AFTER_S = 0.05
_PATIENCE_S = 120.0
# Answers after which the same request is repeated, as the API says.
_WAIT = (429, 503)


@dataclass
class Timings:
    """The seconds of all answered requests by their kind, with the waits for another replica."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def shown(self, kind: str) -> str:
        known = sorted(self.seconds[kind])
        return f"{1e3 * statistics.median(known):.1f} / {1e3 * known[int(0.99 * (len(known) - 1))]:.1f}"

    @property
    def longest(self) -> float:
        return max(max(known) for known in self.seconds.values())


class Client:
    """One client: whole rounds over one connection, at another replica if its own does not answer."""

    def __init__(self, ports: Sequence[int], first: int, timings: Timings) -> None:
        self._ports = ports
        self._at = first
        self._timings = timings
        self._connection: Connection | None = None
        self._headers = ""

    async def enrol(self, base: str, code: str, ordinal: int) -> None:
        """Enrol and store the profile."""
        self._base = base
        body = {"enrolment_code": code, "enrolment_key": f"benchmark-client-{ordinal:04d}"}
        connection = await self._connected()
        answer = await connection.json("POST", f"{base}/clients", body)
        self._headers = f"Authorization: Bearer {answer['token']}\r\n"
        profile = {"label_counts": [RECORDS // 10] * 10, "size": RECORDS, "privacy_value": 1.0, "histogram_rho": 0.01}
        await connection.json("PUT", f"{base}/clients/me/profile", profile, self._headers)

    async def play(self, update: Update, first: int, rounds: int) -> None:
        """Play these rounds, until the announcement of the one after them."""
        for number in range(first, first + rounds):
            path = f"{self._base}/rounds/{number}"
            declared = f'{{"rho": {RHO}}}'.encode()
            await self._call("budget", "PUT", f"{path}/budget", declared, "Content-Type: application/json\r\n")
            await self._call("model", "GET", f"{self._base}/models/{number - 1}")
            body, digest = update.of_round(number)
            headers = f"Content-Digest: sha-256=:{digest}:\r\nContent-Type: application/octet-stream\r\n"
            await self._call("upload", "PUT", f"{path}/update", body, headers)
            await self.announced(number + 1)

    async def announced(self, number: int) -> None:
        """Wait for the announcement of a round."""
        after = f"{number - 1}.1" if number > 1 else "0.0"
        status = 204
        while status == 204:
            status = await self._call(None, "GET", f"{self._base}/rounds/current?after={after}&wait=10")

    async def _call(
        self, kind: str | None, method: str, path: str, body: "bytes | bytearray" = b"", headers: str = ""
    ) -> int:
        """Repeat a request until a replica answers it. All requests of a round may be repeated."""
        start = time.perf_counter()
        while True:
            try:
                connection = await self._connected()
                status, answer = await connection.call(method, path, body, self._headers + headers)
            except OSError:
                self._connection = None
                self._at += 1
                status, answer = 503, b"no connection"
            if status < 300:
                break
            if status not in _WAIT or time.perf_counter() - start > _PATIENCE_S:
                raise RuntimeError(f"{method} {path}: {status} {answer.decode()}")
            await asyncio.sleep(_AGAIN_AFTER_S)
        if kind is not None:
            self._timings.seconds[kind].append(time.perf_counter() - start)
        return status

    async def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = await Connection(self._ports[self._at % len(self._ports)]).open()
        return self._connection


@dataclass(frozen=True)
class Case:
    """What is played. `killed`: one replica is killed in the middle."""

    replicas: int
    parameters: int
    killed: bool
    tasks: int
    clients: int
    rounds: int

    @property
    def name(self) -> str:
        return f"{self.replicas}, one killed" if self.killed else str(self.replicas)


async def measure(case: Case, servers: Sequence[Coordinator]) -> list[str]:
    """Play a case; the cells of its row in the table."""
    ports, timings, last = [server.port for server in servers], Timings(), case.rounds + 1
    groups: list[list[Client]] = []
    for number in range(case.tasks):
        control = await Connection(ports[0]).open()
        # One round more than is played, so that every played round is followed by an announcement.
        body = task_body(case.clients, case.parameters, last + 1)
        admin = f"Authorization: Bearer {servers[0].admin_token}\r\n"
        task = await control.json("POST", "/v1/tasks", body, admin)
        control.close()
        base, code = f"/v1/tasks/{task['task']['task_id']}", task["enrolment_codes"][0]
        groups.append([Client(ports, number + ordinal, timings) for ordinal in range(case.clients)])
        await asyncio.gather(*(client.enrol(base, code, ordinal) for ordinal, client in enumerate(groups[-1])))
    # Each client marks the bytes of its own update before it sends them.
    played_by = [(client, Update(k, case.parameters, last)) for group in groups for k, client in enumerate(group)]

    async def rounds(first: int, count: int) -> None:
        await asyncio.gather(*(client.play(update, first, count) for client, update in played_by))

    await asyncio.gather(*(client.announced(1) for client, _ in played_by))
    await rounds(1, 1)
    timings.seconds.clear()
    before, start = [processor_ms(server.pid) for server in servers], time.perf_counter()
    half = case.rounds // 2
    await rounds(2, half)
    spent = sum(processor_ms(server.pid) for server in servers) - sum(before)
    at_half = [processor_ms(server.pid) for server in servers]
    if case.killed:
        asyncio.get_running_loop().call_later(0.05, os.kill, servers[-1].pid, signal.SIGKILL)
    await rounds(2 + half, case.rounds - half)
    seconds = time.perf_counter() - start
    alive = servers[:-1] if case.killed else servers
    spent += sum(processor_ms(server.pid) - known for server, known in zip(alive, at_half, strict=False))
    played = case.tasks * case.rounds
    return [
        case.name,
        f"{case.parameters:,}",
        f"{played / seconds:.1f}",
        f"{played * case.clients / seconds:.0f}",
        *(timings.shown(kind) for kind in ("budget", "model", "upload")),
        f"{timings.longest:.2f}",
        "–" if case.killed else f"{spent / (played * case.clients):.1f}",
    ]


def run(case: Case, folder: Path, postgres: str, objects: SeaweedFS) -> list[str]:
    """Start the replicas of a case on an empty database and an empty prefix, play it and audit the store."""
    folder.mkdir()
    command = [sys.executable, "-m", "qidpfl_server"]
    subprocess.run([*command, "keys", "new", "--out", folder / "secrets"], check=True, stdout=subprocess.DEVNULL)
    with ExitStack() as stack:
        store = stack.enter_context(empty_database(postgres))
        blobs = ["--blobs", f"s3://{BUCKET}/{folder.name}"]
        os.environ |= objects.environment() | {"QIDPFL_SECRETS_DIR": str(folder / "secrets"), "QIDPFL_DRAIN_S": "0"}
        servers = [
            stack.enter_context(running_coordinator(folder / f"replica-{k}", store, *blobs, tokens=folder / "secrets"))
            for k in range(case.replicas)
        ]
        with quick_event_loop() as runner:
            cells = runner.run(measure(case, servers))
        audit = [*command, "audit", "--state-dir", str(folder / "replica-0"), "--store-url", store, *blobs]
        said: Any = subprocess.run(audit, capture_output=True, text=True, check=False)
        if said.returncode:
            raise RuntimeError(f"the audit found violations:\n{said.stdout}{said.stderr}")
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=4, help="tasks that are played at the same time")
    parser.add_argument("--clients", type=int, default=10, help="clients of each task")
    parser.add_argument("--parameters", default="7850,1663370", help="lengths of the models, with commas")
    parser.add_argument("--rounds", type=int, default=20, help="measured rounds of each task, for the shortest model")
    options = parser.parse_args()
    lengths = [int(length) for length in options.parameters.split(",")]
    print(*(f"| {' | '.join(cells)} |" for cells in (_TITLES, ["---"] * len(_TITLES))), sep="\n", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        postgres = stack.enter_context(temporary_postgres())
        try:
            (folder / "objects").mkdir()
            objects = SeaweedFS(folder / "objects").start()
        except NoSeaweedFS as reason:
            sys.exit(f"this benchmark needs an object store: {reason}")
        stack.callback(objects.kill)
        for length in lengths:
            # A long model needs fewer rounds for a steady figure.
            rounds = max(4, options.rounds * min(lengths) // length, options.rounds // 4 if length > 10**5 else 0)
            for replicas, killed in ((1, False), (2, False), (3, False), (3, True)):
                case = Case(replicas, length, killed, options.tasks, options.clients, rounds)
                name = f"{length}-{replicas}-{int(killed)}"
                print(f"| {' | '.join(run(case, folder / name, postgres, objects))} |", flush=True)


if __name__ == "__main__":
    main()
