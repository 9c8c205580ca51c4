"""Measures the processor time of a live coordinator for each of the four operations that a client makes in a round.

The same number of requests goes to a bare FastAPI route in the same run; the benchmark prints the ratios. The processor
time of the server process, of all its threads, hardly depends on the load of the machine. The time in which a round
opens and settles is left out.
"""

import argparse
import asyncio
import base64
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

RECORDS = 3000
RHO = 1e-4
OPERATIONS = ("announcement", "budget", "model", "update", "bare")

BARE = """
import fastapi, pydantic, sys, uvicorn
app = fastapi.FastAPI()
class Answer(pydantic.BaseModel):
    round_number: int
    text: str
@app.get("/{task_id}/{number}")
async def get(task_id: str, number: int) -> Answer:
    return Answer(round_number=number, text=task_id)
class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print(self.servers[0].sockets[0].getsockname()[1], flush=True)
Server(uvicorn.Config(app, port=0, lifespan="off", log_level="error", access_log=False)).run()
"""


class Connection:
    """HTTP/1.1 over one persistent connection, with as little work as possible in this process."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self) -> "Connection":
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def call(self, method: str, path: str, body: bytes = b"", headers: str = "") -> bytes:
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        self._writer.write(head.encode() + body)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        length = next((int(line.split(":")[1]) for line in lines if line.startswith("content-length")), 0)
        answer = await self._reader.readexactly(length)
        if int(lines[0].split()[1]) >= 400:
            raise RuntimeError(f"{method} {path}: {lines[0]} {answer.decode()}")
        return answer

    async def json(self, method: str, path: str, body: Any = None, headers: str = "") -> Any:
        data = b"" if body is None else json.dumps(body).encode()
        answer = await self.call(method, path, data, f"Content-Type: application/json\r\n{headers}")
        return json.loads(answer) if answer else None


class Costs:
    """Processor microseconds of two processes by operation."""

    def __init__(self) -> None:
        self.spent_us = dict.fromkeys(OPERATIONS, 0.0)

    @contextmanager
    def of(self, operation: str, pid: int) -> Iterator[None]:
        """Add the processor time of the `with` block."""
        start = processor_us(pid)
        yield
        self.spent_us[operation] += processor_us(pid) - start


def processor_us(pid: int) -> float:
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e3


@contextmanager
def started(command: list[str], ready: Callable[[subprocess.Popen[str]], int]) -> Iterator[tuple[int, int]]:
    """A server process; yields its id and its port."""
    environment = os.environ | {"QIDPFL_LOG_FORMAT": "json", "QIDPFL_REQUESTS_PER_S_PER_CLIENT": "1000"}
    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        yield process.pid, ready(process)
    finally:
        process.terminate()
        process.wait()


def listening_port(process: subprocess.Popen[str]) -> int:
    assert process.stderr is not None
    line = next(line for line in process.stderr if "listening" in line)
    return int(json.loads(line)["url"].rsplit(":", 1)[1])


def printed_port(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


async def measure(clients: int, parameters: int, rounds: int) -> Costs:
    costs = Costs()
    with (
        tempfile.TemporaryDirectory() as folder,
        started(["-m", "qidpfl_server", "serve", "--port", "0", "--state-dir", folder], listening_port) as here,
        started(["-c", BARE], printed_port) as bare,
    ):
        admin = f"Authorization: Bearer {(Path(folder) / 'admin.token').read_text().strip()}\r\n"
        control = await Connection(here[1]).open()
        created = await control.json("POST", "/v1/tasks", task_body(clients, parameters, rounds), admin)
        base, code = f"/v1/tasks/{created['task']['task_id']}", created["enrolment_codes"][0]
        sessions = [await enrol(here[1], base, code, ordinal) for ordinal in range(clients)]
        plain = [await Connection(bare[1]).open() for _ in sessions]
        std = 2**0.5 / (RECORDS * RHO**0.5)
        for number in range(1, rounds + 1):
            vectors = [
                (std * np.random.default_rng((number, k)).standard_normal(parameters)).astype("<f4").tobytes()
                for k in range(clients)
            ]
            await play(base, sessions, vectors, number, costs, here[0])
            with costs.of("bare", bare[0]):
                await asyncio.gather(*(one.call("GET", f"/task/{number}") for one in plain))
    return costs


Session = tuple[Connection, str]


async def enrol(port: int, base: str, code: str, ordinal: int) -> Session:
    connection = await Connection(port).open()
    body = {"enrolment_code": code, "enrolment_key": f"benchmark-client-{ordinal:04d}"}
    answer = await connection.json("POST", f"{base}/clients", body)
    credentials = f"Authorization: Bearer {answer['token']}\r\n"
    profile = {"label_counts": [RECORDS // 10] * 10, "size": RECORDS, "privacy_value": 1.0, "histogram_rho": 0.01}
    await connection.json("PUT", f"{base}/clients/me/profile", profile, credentials)
    return connection, credentials


async def play(
    base: str, sessions: list[Session], vectors: list[bytes], number: int, costs: Costs, server: int
) -> None:
    """One round, one operation of all clients after the other."""
    known = f"after={number - 1}.1&wait=30" if number > 1 else "wait=30"

    async def measured(operation: str, call: Callable[[Connection, str, bytes], Awaitable[bytes]]) -> None:
        with costs.of(operation, server):
            await asyncio.gather(*(call(*session, vector) for session, vector in zip(sessions, vectors, strict=True)))

    async def upload(connection: Connection, credentials: str, vector: bytes) -> bytes:
        digest = base64.b64encode(hashlib.sha256(vector).digest()).decode()
        headers = f"{credentials}Content-Digest: sha-256=:{digest}:\r\nContent-Type: application/octet-stream\r\n"
        return await connection.call("PUT", f"{base}/rounds/{number}/update", vector, headers)

    # The first client waits for the round to open.
    await sessions[0][0].call("GET", f"{base}/rounds/current?{known}", headers=sessions[0][1])
    current = f"{base}/rounds/current?{known}"
    await measured("announcement", lambda one, credentials, _: one.call("GET", current, headers=credentials))
    budget = f"{base}/rounds/{number}/budget"
    await measured(
        "budget",
        lambda one, credentials, _: one.call(
            "PUT", budget, json.dumps({"rho": RHO}).encode(), f"Content-Type: application/json\r\n{credentials}"
        ),
    )
    model = f"{base}/models/{number - 1}"
    await measured("model", lambda one, credentials, _: one.call("GET", model, headers=credentials))
    await measured("update", upload)


def task_body(clients: int, parameters: int, rounds: int) -> dict[str, Any]:
    tensors = [{"name": "weight", "shape": [10, parameters // 10 - 1]}, {"name": "bias", "shape": [10]}]
    return {
        "name": "benchmark",
        "single_use_codes": 0,
        "preset": "mnist",
        "overrides": {
            "workload": {"dataset": "none", "partition": None},
            "layout": {"tensors": tensors},
            "game": {"horizon": rounds},
            "selection": {"rule": "all"},
            "rounds": {"expected_clients": clients},
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--parameters", type=int, default=7_850)
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    costs = asyncio.run(measure(options.clients, options.parameters, options.rounds))
    requests = options.clients * options.rounds
    print("  operation      processor µs per request   ratio to a bare FastAPI route")
    for operation, spent in costs.spent_us.items():
        print(f"  {operation:12s}  {spent / requests:12,.0f}  {spent / costs.spent_us['bare']:12.2f}")


if __name__ == "__main__":
    main()
