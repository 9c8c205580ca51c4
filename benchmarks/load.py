"""Plays the rounds of many clients without training against one server, and measures the server.

The benchmarks run this in a process of its own: `python benchmarks/load.py JSON`. Every client asks for the
announcement (long poll), declares a budget, downloads the model and uploads an update. The coordinator and the bare
server of `floor.py` get the same requests. The vectors and their digests exist before the clock starts. The clock
starts when all clients have the announcement of round 2, and stops when all have that of the round after the last
measured one.
"""

import asyncio
import base64
import hashlib
import json
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from servers import Connection, peak_memory_mib, processor_ms

RECORDS = 3000
# Far below what the defence lets a client bid: the limit falls with the number of rounds.
RHO = 0.0001


@dataclass(frozen=True)
class Plan:
    """What is played, and against which server. A server without a token has no tasks and no clients to enrol."""

    port: int
    pid: int
    clients: int
    dimension: int
    rounds: int
    admin_token: str | None = None
    # What the task has other than the preset.
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """The cost of a round: the mean of all measured rounds."""

    seconds: float
    processor_ms: float
    load_processor_ms: float
    peak_mib: float


def play(plan: Plan) -> Measured:
    """Play the plan in a process of its own."""
    command = [sys.executable, str(Path(__file__)), json.dumps(asdict(plan))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Measured(**json.loads(done.stdout))


def task_body(clients: int, dimension: int, rounds: int) -> dict[str, Any]:
    """The preset for MNIST with its defence. Only the layout, the number of clients and the length are others."""
    labels = 10
    tensors = [{"name": "weight", "shape": [labels, dimension // labels - 1]}, {"name": "bias", "shape": [labels]}]
    least = min(clients, 3)
    return {
        "name": f"benchmark-{uuid.uuid4().hex[:8]}",
        "single_use_codes": 0,
        "preset": "mnist",
        "overrides": {
            "workload": {"dataset": "none", "partition": None},
            "layout": {"tensors": tensors},
            "game": {"horizon": rounds},
            "selection": {"rule": "all"},
            "rounds": {"expected_clients": clients, "min_clients": least, "min_updates": least},
        },
    }


Session = tuple[Connection, str]


async def enrol(port: int, base: str, code: str, ordinal: int) -> Session:
    """Enrol one client and store its profile."""
    connection = await Connection(port).open()
    body = {"enrolment_code": code, "enrolment_key": f"benchmark-client-{ordinal:04d}"}
    answer = await connection.json("POST", f"{base}/clients", body)
    credentials = f"Authorization: Bearer {answer['token']}\r\n"
    profile = {"label_counts": [RECORDS // 10] * 10, "size": RECORDS, "privacy_value": 1.0, "histogram_rho": 0.01}
    await connection.json("PUT", f"{base}/clients/me/profile", profile, credentials)
    return connection, credentials


class Update:
    """The upload of one client: noise of the declared size, which the audit of the norm accepts."""

    def __init__(self, ordinal: int, dimension: int, rounds: int) -> None:
        deviation = 2**0.5 / (RECORDS * RHO**0.5)
        noise = np.random.default_rng(ordinal).standard_normal(dimension, dtype=np.float32)
        noise *= np.float32(deviation)
        self._body = bytearray(noise.astype("<f4", copy=False).tobytes())
        self._digests = [self._digest(number) for number in range(1, rounds + 1)]

    def of_round(self, number: int) -> tuple[bytearray, str]:
        """Return the bytes and their digest."""
        self._mark(number)
        return self._body, self._digests[number - 1]

    def _mark(self, number: int) -> None:
        """Make the bytes those of this round: the server refuses repeated bytes as a replay.

        One number changes, so little that the audit of the norm accepts the update after thousands of rounds.
        """
        struct.pack_into("<f", self._body, 0, number * 1e-6)

    def _digest(self, number: int) -> str:
        self._mark(number)
        return base64.b64encode(hashlib.sha256(self._body).digest()).decode()


@contextmanager
def quick_event_loop() -> Iterator[asyncio.Runner]:
    """An event loop of uvloop if it is installed: the load then costs less."""
    try:
        import uvloop
    except ImportError:
        factory = None
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner


async def measure(plan: Plan) -> Measured:
    """Play one round more than the plan asks for before the clock starts, and leave the last one unplayed."""
    last = plan.rounds + 2
    updates = [Update(ordinal, plan.dimension, last) for ordinal in range(plan.clients)]
    base, sessions = await (enrolled(plan, last) if plan.admin_token else unknown(plan))
    await asyncio.gather(*(announced(base, session, 1) for session in sessions))
    await asyncio.gather(*(run_round(base, s, u, 1) for s, u in zip(sessions, updates, strict=True)))
    start, server, own = time.perf_counter(), processor_ms(plan.pid), time.process_time()

    async def client(session: Session, update: Update) -> None:
        for number in range(2, last):
            await run_round(base, session, update, number)

    await asyncio.gather(*map(client, sessions, updates))
    seconds = time.perf_counter() - start
    return Measured(
        seconds=seconds / plan.rounds,
        processor_ms=(processor_ms(plan.pid) - server) / plan.rounds,
        load_processor_ms=(time.process_time() - own) * 1e3 / plan.rounds,
        peak_mib=peak_memory_mib(plan.pid),
    )


async def enrolled(plan: Plan, rounds: int) -> tuple[str, list[Session]]:
    control = await Connection(plan.port).open()
    admin = f"Authorization: Bearer {plan.admin_token}\r\n"
    body = task_body(plan.clients, plan.dimension, rounds)
    for part, values in plan.overrides.items():
        body["overrides"][part] = body["overrides"].get(part, {}) | values
    task = await control.json("POST", "/v1/tasks", body, admin)
    base = f"/v1/tasks/{task['task']['task_id']}"
    code = task["enrolment_codes"][0]
    return base, await asyncio.gather(*(enrol(plan.port, base, code, k) for k in range(plan.clients)))


async def unknown(plan: Plan) -> tuple[str, list[Session]]:
    connections = [await Connection(plan.port).open() for _ in range(plan.clients)]
    return "/v1/tasks/benchmark", [(connection, "") for connection in connections]


async def run_round(base: str, session: Session, update: Update, number: int) -> None:
    """Play one round of one client, until it has the announcement of the next one."""
    connection, credentials = session
    await connection.json("PUT", f"{base}/rounds/{number}/budget", {"rho": RHO}, credentials)
    await demand(connection, "GET", f"{base}/models/{number - 1}", headers=credentials)
    body, digest = update.of_round(number)
    headers = f"{credentials}Content-Digest: sha-256=:{digest}:\r\nContent-Type: application/octet-stream\r\n"
    await demand(connection, "PUT", f"{base}/rounds/{number}/update", body, headers)
    await announced(base, session, number + 1)


async def announced(base: str, session: Session, number: int) -> None:
    """Wait for the announcement of the first attempt of a round. A second attempt would not be a measurement."""
    connection, credentials = session
    after = f"{number - 1}.1" if number > 1 else "0.0"
    answer = None
    while answer is None or answer["task_state"] == "enrolling":
        answer = await connection.json("GET", f"{base}/rounds/current?after={after}&wait=30", headers=credentials)
    offer = answer["round"]
    if offer is None or (offer["round_number"], offer["attempt"]) != (number, 1):
        raise RuntimeError(f"expected the first attempt of round {number}, not {answer}")


async def demand(
    connection: Connection, method: str, path: str, body: "bytes | bytearray" = b"", headers: str = ""
) -> None:
    status, answer = await connection.call(method, path, body, headers)
    if status != 200:
        raise RuntimeError(f"{method} {path}: {status} {answer.decode()}")


if __name__ == "__main__":
    with quick_event_loop() as runner:
        result = runner.run(measure(Plan(**json.loads(sys.argv[1]))))
    print(json.dumps(asdict(result)))
