"""Measures how soon waiting long polls are answered when a round opens, and what they cost while they wait.

A live coordinator process, ten enrolled clients, one connection for each long poll. The round opens when the last
client uploads; the time counts from the receipt of that upload, so it includes the settlement of the round before. The
connections come from several loopback addresses, because one address has few ports.
"""

import argparse
import base64
import hashlib
import http.client
import json
import os
import re
import resource
import select
import socket
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

CLIENTS = 10
PARAMETERS = 7_850
RECORDS = 3000
RHO = 1e-4
PER_ADDRESS = 5_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--polls", type=int, default=10_000, help="long polls that wait at the same time")
    parser.add_argument("--rounds", type=int, default=3, help="how often they wait for a round")
    options = parser.parse_args()
    count = raise_file_limit(options.polls)
    print("  polls  answered  last answer s  processor s    threads     file handles   memory MiB, idle and waiting")
    with tempfile.TemporaryDirectory() as folder, coordinator(Path(folder), count) as server:
        clients = enrolled(server, options.rounds)
        idle = Usage.of(server.pid)
        polls = [polling_socket(server.port, index) for index in range(count)]
        for number in range(1, options.rounds + 1):
            result = wait_and_open(server, clients, polls, number)
            waiting = result.waiting
            print(
                f"  {len(polls):5d}  {result.answered:8d}  {result.seconds:13.2f}  {result.processor_s:11.2f}"
                f"  {idle.threads:4d} {waiting.threads:4d}  {idle.files:7d} {waiting.files:7d}"
                f"  {idle.memory_mib:10.0f} {waiting.memory_mib:7.0f}"
            )


def raise_file_limit(polls: int) -> int:
    """Allow this process a file for each poll; return how many polls the coordinator can hold.

    The coordinator keeps files for uploads and for itself.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = 1 << 20
    possible = min(polls, max(hard - 1_400, hard // 2 - 200))
    if possible < polls:
        print(f"this machine allows {hard} open files: {possible} polls instead of {polls}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (possible + 1000, hard))
    return possible


@dataclass(frozen=True)
class Server:
    pid: int
    port: int
    folder: Path


@contextmanager
def coordinator(folder: Path, polls: int) -> Iterator[Server]:
    limits = {
        "QIDPFL_LOG_FORMAT": "json",
        "QIDPFL_MAX_CONNECTIONS": str(polls + 100),
        "QIDPFL_MAX_CONNECTIONS_PER_ADDRESS": str(polls + 100),
        # Ten clients stand for many.
        "QIDPFL_MAX_REQUESTS_PER_CLIENT": str(polls),
        "QIDPFL_REQUESTS_PER_S_PER_CLIENT": str(polls),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "qidpfl_server", "serve", "--port", "0", "--state-dir", str(folder)],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | limits,
    )
    assert process.stderr is not None
    try:
        line = next(line for line in process.stderr if "listening" in line)
        yield Server(process.pid, int(json.loads(line)["url"].rsplit(":", 1)[1]), folder)
    finally:
        process.terminate()
        process.wait()


@dataclass(frozen=True)
class Usage:
    """What a process holds."""

    threads: int
    files: int
    memory_mib: float

    @classmethod
    def of(cls, pid: int) -> "Usage":
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        files = len(os.listdir(f"/proc/{pid}/fd"))
        return cls(int(status["Threads"]), files, int(status["VmRSS"].split()[0]) / 1024)


def processor_s(pid: int) -> float:
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


class Client:
    """An enrolled client with a connection of its own."""

    def __init__(self, port: int, base: str, code: str, ordinal: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self.base, self.headers = base, {"Content-Type": "application/json"}
        body = {"enrolment_code": code, "enrolment_key": f"benchmark-client-{ordinal:04d}"}
        self.token = self.call("POST", "/clients", body)["token"]
        self.headers["Authorization"] = f"Bearer {self.token}"
        profile = {"label_counts": [RECORDS // 10] * 10, "size": RECORDS, "privacy_value": 1.0, "histogram_rho": 0.01}
        self.call("PUT", "/clients/me/profile", profile)

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body)
        self._connection.request(method, self.base + path, data, self.headers | (headers or {}))
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status >= 400:
            raise RuntimeError(f"{method} {path}: {text.decode()}")
        return json.loads(text) if text else None

    def upload(self, number: int) -> None:
        noise = np.random.default_rng((number, *self.token.encode())).standard_normal(PARAMETERS)
        data = (2**0.5 / (RECORDS * RHO**0.5) * noise).astype("<f4").tobytes()
        digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
        headers = {"Content-Digest": f"sha-256=:{digest}:", "Content-Type": "application/octet-stream"}
        self.call("PUT", f"/rounds/{number}/update", data, headers)


def enrolled(server: Server, rounds: int) -> list[Client]:
    tensors = [{"name": "weight", "shape": [10, PARAMETERS // 10 - 1]}, {"name": "bias", "shape": [10]}]
    task = {
        "name": "benchmark",
        "single_use_codes": 0,
        "preset": "mnist",
        "overrides": {
            "workload": {"dataset": "none", "partition": None},
            "layout": {"tensors": tensors},
            "game": {"horizon": rounds + 1},
            "selection": {"rule": "all"},
            "rounds": {"expected_clients": CLIENTS, "declare_s": 600.0, "deliver_s": 600.0},
        },
    }
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    admin = (server.folder / "admin.token").read_text().strip()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {admin}"}
    connection.request("POST", "/v1/tasks", json.dumps(task), headers)
    answer = connection.getresponse()
    created = json.loads(answer.read())
    if answer.status != 201:
        raise RuntimeError(created)
    base = f"/v1/tasks/{created['task']['task_id']}"
    return [Client(server.port, base, created["enrolment_codes"][0], ordinal) for ordinal in range(CLIENTS)]


def polling_socket(port: int, index: int) -> socket.socket:
    address = f"127.0.0.{2 + index // PER_ADDRESS}"
    return socket.create_connection(("127.0.0.1", port), source_address=(address, 0))


@dataclass(frozen=True)
class Result:
    answered: int
    seconds: float
    processor_s: float
    waiting: Usage


def wait_and_open(server: Server, clients: list[Client], polls: list[socket.socket], number: int) -> Result:
    """Let all polls wait for the round after `number`, play `number`, and read the answers."""
    while clients[0].call("GET", f"/rounds/current?after={number - 1}.1&wait=30") is None:
        pass
    for client in clients:
        client.call("PUT", f"/rounds/{number}/budget", {"rho": RHO})
    for client in clients[1:]:
        client.upload(number)
    for index, poll in enumerate(polls):
        client = clients[index % CLIENTS]
        path = f"{client.base}/rounds/current?after={number}.1&wait=60"
        poll.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {client.token}\r\n\r\n".encode())
    wait_for_polls(server, len(polls))
    waiting, spent = Usage.of(server.pid), processor_s(server.pid)
    clients[0].upload(number)
    start = time.monotonic()
    answered, last = read_answers(polls, number + 1)
    return Result(answered, last - start, processor_s(server.pid) - spent, waiting)


def wait_for_polls(server: Server, polls: int) -> None:
    """Return when the coordinator counts all long polls."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    while True:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        if float(next(line.split()[1] for line in lines if line.startswith("qidpfl_long_polls "))) == polls:
            return
        time.sleep(0.2)


def read_answers(polls: list[socket.socket], number: int) -> tuple[int, float]:
    """Read one answer from each connection: how many announce this round, and when the last one came."""
    waiting = {poll.fileno(): poll for poll in polls}
    ready = select.epoll()
    for file in waiting:
        ready.register(file, select.EPOLLIN)
    received: dict[int, bytes] = {}
    answered, wanted, last = 0, f'"round_number":{number},'.encode(), time.monotonic()
    while waiting:
        for file, _ in ready.poll():
            received[file] = answer = received.get(file, b"") + waiting[file].recv(65536)
            head, _, body = answer.partition(b"\r\n\r\n")
            length = re.search(rb"content-length: ([0-9]+)", head)
            if length is not None and len(body) < int(length[1]):
                continue
            answered += wanted in body
            ready.unregister(file)
            del waiting[file]
        last = time.monotonic()
    ready.close()
    return answered, last


if __name__ == "__main__":
    main()
