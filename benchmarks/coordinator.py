"""Measures the seconds per round of a live coordinator without training, and compares it with a bare upload handler.

The bare handler streams, hashes, writes and syncs the same bytes without budgets, payments or a database. The benchmark
prints the ratios and the peak memory of the coordinator. The processor time of an upload is that of the server process
and hardly depends on the load of the machine; the seconds do.
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
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SIZES = [(clients, dimension) for dimension in (7_850, 1_663_370) for clients in (10, 100)]
RECORDS = 3000

BARE = """
import asyncio, hashlib, os, pathlib, sys, uvicorn
folder = pathlib.Path(sys.argv[1])
def finish(file, path, name):
    file.flush(); os.fsync(file.fileno()); file.close(); os.replace(path, folder / name)
    descriptor = os.open(folder, os.O_RDONLY); os.fsync(descriptor); os.close(descriptor)
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    path = folder / f"{id(scope)}.part"
    digest, file, more = hashlib.sha256(), open(path, "wb"), True
    while more:
        message = await receive()
        digest.update(message["body"]); file.write(message["body"]); more = message.get("more_body", False)
    await asyncio.to_thread(finish, file, path, digest.hexdigest())
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})
class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print(self.servers[0].sockets[0].getsockname()[1], flush=True)
Server(uvicorn.Config(app, port=0, lifespan="off", log_level="error", access_log=False)).run()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each measurement")
    parser.add_argument("--store-url", help="measure on this store instead of SQLite")
    options = parser.parse_args()
    print("                               uploads of a round, seconds      processor ms per upload")
    print("  clients  parameters   s/round   here    bare   ratio           here    bare   ratio      peak memory")
    for clients, dimension in SIZES:
        result = asyncio.run(measure(clients, dimension, options.rounds, options.store_url))
        here, bare = result.here, result.bare
        print(
            f"  {clients:7d}  {dimension:10,d}  {result.round_s:8.3f}  {compared(here.seconds, bare.seconds)}"
            f"     {compared(here.processor_ms / clients, bare.processor_ms / clients)}  {result.peak_mib:11.0f} MiB"
        )


def compared(here: float, bare: float) -> str:
    return f"{here:7.3f} {bare:7.3f} {here / bare:7.2f}"


@dataclass
class Cost:
    """The mean cost of the uploads of a round in a server."""

    pid: int
    rounds: int
    seconds: float = 0.0
    processor_ms: float = 0.0

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Add the cost of the `with` block."""
        start, processor_ms = time.perf_counter(), self._processor_ms()
        yield
        self.seconds += (time.perf_counter() - start) / self.rounds
        self.processor_ms += (self._processor_ms() - processor_ms) / self.rounds

    def _processor_ms(self) -> float:
        threads = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e6


@dataclass(frozen=True)
class Result:
    round_s: float
    here: Cost
    bare: Cost
    peak_mib: float


class Connection:
    """HTTP/1.1 over one persistent connection, with as little work as possible in this process."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self) -> "Connection":
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def call(self, method: str, path: str, body: bytes = b"", headers: str = "") -> tuple[int, bytes]:
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        self._writer.write(head.encode() + body)
        await self._writer.drain()
        answer = await self._reader.readuntil(b"\r\n\r\n")
        lines = answer.decode().lower().split("\r\n")
        length = next((int(line.split(":")[1]) for line in lines if line.startswith("content-length")), 0)
        return int(lines[0].split()[1]), await self._reader.readexactly(length)

    async def json(self, method: str, path: str, body: Any = None, headers: str = "") -> Any:
        data = b"" if body is None else json.dumps(body).encode()
        status, answer = await self.call(method, path, data, f"Content-Type: application/json\r\n{headers}")
        if status >= 400:
            raise RuntimeError(f"{method} {path}: {status} {answer.decode()}")
        return json.loads(answer) if answer else None


async def measure(clients: int, dimension: int, rounds: int, store_url: str | None) -> Result:
    """Measure the coordinator, then the bare handler with the same bytes."""
    std = 2**0.5 / (RECORDS * 0.002**0.5)
    vectors = [(std * np.random.default_rng(k).standard_normal(dimension)).astype("<f4") for k in range(clients)]
    with tempfile.TemporaryDirectory() as folder:
        round_s, here, peak_mib = await measure_coordinator(Path(folder), vectors, rounds, store_url)
    with tempfile.TemporaryDirectory() as folder:
        bare = await measure_bare(Path(folder), vectors, rounds)
    return Result(round_s, here, bare, peak_mib)


async def measure_coordinator(
    folder: Path, vectors: list[Any], rounds: int, store_url: str | None
) -> tuple[float, Cost, float]:
    where = ["--state-dir", str(folder), *(["--store-url", store_url] if store_url else [])]
    process = subprocess.Popen(
        [sys.executable, "-m", "qidpfl_server", "serve", "--port", "0", *where],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"QIDPFL_LOG_FORMAT": "json"},
    )
    assert process.stderr is not None
    try:
        line = next(line for line in process.stderr if "listening" in line)
        port = int(json.loads(line)["url"].rsplit(":", 1)[1])
        admin = f"Authorization: Bearer {(folder / 'admin.token').read_text().strip()}\r\n"
        control = await Connection(port).open()
        task = await control.json("POST", "/v1/tasks", task_body(len(vectors), vectors[0].size, rounds), admin)
        base = f"/v1/tasks/{task['task']['task_id']}"
        code = task["enrolment_codes"][0]
        sessions = await asyncio.gather(*(enrol(port, base, code, k) for k in range(len(vectors))))
        start = time.perf_counter()
        cost = Cost(process.pid, rounds)
        for number in range(1, rounds + 1):
            await run_round(base, sessions, vectors, number, cost)
        await wait_until_ended(sessions[0], base, rounds)
        return (time.perf_counter() - start) / rounds, cost, peak_memory_mib(process.pid)
    finally:
        process.terminate()
        process.wait()


def task_body(clients: int, dimension: int, rounds: int) -> dict[str, Any]:
    labels = 10
    tensors = [{"name": "weight", "shape": [labels, dimension // labels - 1]}, {"name": "bias", "shape": [labels]}]
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


Session = tuple[Connection, str]


async def enrol(port: int, base: str, code: str, ordinal: int) -> Session:
    connection = await Connection(port).open()
    body = {"enrolment_code": code, "enrolment_key": f"benchmark-client-{ordinal:04d}"}
    answer = await connection.json("POST", f"{base}/clients", body)
    credentials = f"Authorization: Bearer {answer['token']}\r\n"
    profile = {"label_counts": [RECORDS // 10] * 10, "size": RECORDS, "privacy_value": 1.0, "histogram_rho": 0.01}
    await connection.json("PUT", f"{base}/clients/me/profile", profile, credentials)
    return connection, credentials


async def run_round(base: str, sessions: list[Session], vectors: list[Any], number: int, cost: Cost) -> None:
    """Run one round of all clients. Only the uploads are added to the cost."""

    async def prepare(session: Session) -> None:
        connection, credentials = session
        query = f"?after={number - 1}.1&wait=30" if number > 1 else "?wait=30"
        await connection.json("GET", f"{base}/rounds/current{query}", headers=credentials)
        await connection.json("PUT", f"{base}/rounds/{number}/budget", {"rho": 0.002}, credentials)

    async def upload(session: Session, vector: Any) -> None:
        connection, credentials = session
        # The first number changes in every round because the server rejects repeated bytes as a replay.
        body = np.concatenate([[np.float32(number) * 1e-3], vector[1:]]).astype("<f4").tobytes()
        digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
        headers = f"{credentials}Content-Digest: sha-256=:{digest}:\r\nContent-Type: application/octet-stream\r\n"
        status, answer = await connection.call("PUT", f"{base}/rounds/{number}/update", body, headers)
        if status != 200:
            raise RuntimeError(f"{status} {answer.decode()}")

    await asyncio.gather(*map(prepare, sessions))
    with cost.measured():
        await asyncio.gather(*map(upload, sessions, vectors))


async def wait_until_ended(session: Session, base: str, rounds: int) -> None:
    connection, credentials = session
    while True:
        path = f"{base}/rounds/current?after={rounds}.1&wait=5"
        status, answer = await connection.call("GET", path, headers=credentials)
        if status == 200 and json.loads(answer)["task_state"] not in ("enrolling", "training"):
            return


async def measure_bare(folder: Path, vectors: list[Any], rounds: int) -> Cost:
    process = subprocess.Popen([sys.executable, "-c", BARE, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        connections = [await Connection(port).open() for _ in vectors]
        cost = Cost(process.pid, rounds)
        for number in range(1, rounds + 1):

            async def upload(connection: Connection, vector: Any, number: int = number) -> None:
                body = np.concatenate([[np.float32(number) * 1e-3], vector[1:]]).astype("<f4").tobytes()
                base64.b64encode(hashlib.sha256(body).digest())
                await connection.call("PUT", "/", body)

            with cost.measured():
                await asyncio.gather(*map(upload, connections, vectors))
        return cost
    finally:
        process.terminate()
        process.wait()


def peak_memory_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


if __name__ == "__main__":
    main()
