"""The processes of the demo: started, started again when they are killed, and stopped afterwards."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from scenarios import Scenario

_STARTUP_S = 60.0
_GOODBYE_S = 30.0
_MOST_STARTS = 5


class ProcessEnded(Exception):
    """A process of the demo ended though it should not have."""


class Service:
    """A command that is started again when somebody kills it."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name = name
        self.log = log
        self._command = command
        self._starts = 0
        self.start()

    def start(self) -> None:
        # Ten processes on a few cores: more threads in each would only get in each other's way.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "QIDPFL_LOG_FORMAT": "json"}
        self._starts += 1
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )

    def revive(self) -> bool:
        """Start it again if a signal ended it; raise if it gave up by itself."""
        status = self.process.poll()
        if status is None or status == 0:
            return False
        # A positive status is its own decision, a negative one the signal that ended it.
        if status > 0 or self._starts >= _MOST_STARTS:
            raise ProcessEnded(f"{self.name} ended with {status}: {self.last_line()}")
        self.start()
        return True

    def last_line(self) -> str:
        lines = self.log.read_text().strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_GOODBYE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Testbed:
    """A coordinator and its clients on this machine."""

    def __init__(self, folder: Path, scenario: Scenario, *, rounds: int | None, unsafe_seed: int | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.scenario = scenario
        self._unsafe_seed = unsafe_seed
        self.state_dir = folder / "coordinator"
        self._port = _free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        overrides: dict[str, Any] = {**scenario.overrides, **({"game": {"horizon": rounds}} if rounds else {})}
        self.coordinator = Service("the coordinator", self._serve(overrides), folder / "coordinator.log")
        self.clients: list[Service] = []
        self._reviving = threading.Lock()

    def __enter__(self) -> "Testbed":
        try:
            self._wait_until_served()
            for ordinal in range(self.scenario.clients):
                self.clients.append(Service(f"client {ordinal}", self._run(ordinal), self.folder / f"{ordinal}.log"))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for service in (*self.clients, self.coordinator):
            if service.process.poll() is None:
                service.process.terminate()
        for service in (*self.clients, self.coordinator):
            service.stop()

    def admin_token(self) -> str:
        return (self.state_dir / "admin.token").read_text().strip()

    def journal(self, ordinal: int) -> Path:
        return self.folder / f"{ordinal}.journal.sqlite"

    def revive(self) -> list[str]:
        """Start again what was killed; their names."""
        with self._reviving:
            return [service.name for service in (self.coordinator, *self.clients) if service.revive()]

    def wait_for_clients(self) -> None:
        """Let the clients read the end of the task and their last payment."""
        deadline = time.monotonic() + _GOODBYE_S
        while any(service.process.poll() is None for service in self.clients) and time.monotonic() < deadline:
            self.revive()
            time.sleep(0.1)

    def audit(self) -> str:
        command = [sys.executable, "-m", "qidpfl_server", "audit", "--state-dir", str(self.state_dir)]
        done = subprocess.run(command, capture_output=True, text=True)
        return (done.stdout + done.stderr).strip().splitlines()[-1]

    def _serve(self, overrides: dict[str, Any]) -> list[str]:
        preset = ["--preset", self.scenario.preset, "--task", "demo", "--overrides", json.dumps(overrides)]
        return ["qidpfl_server", "serve", "--port", str(self._port), "--state-dir", str(self.state_dir), *preset]

    def _run(self, ordinal: int) -> list[str]:
        value = str(self.scenario.privacy_values[ordinal])
        who = ["--code-file", str(self.state_dir / "demo.code"), "--journal", str(self.journal(ordinal))]
        if self._unsafe_seed is not None:
            who += ["--unsafe-seed", str(self._unsafe_seed * self.scenario.clients + ordinal)]
        return [
            *("qidpfl_client", "run", "--server", self.url, *who),
            *("--ordinal", str(ordinal), "--privacy-value", value, "--device", "cpu", "--first-contact", "60"),
        ]

    def _wait_until_served(self) -> None:
        deadline = time.monotonic() + _STARTUP_S
        while '"listening"' not in self.coordinator.log.read_text():
            if self.coordinator.process.poll() is not None or time.monotonic() > deadline:
                raise ProcessEnded(f"the coordinator does not start: {self.coordinator.last_line()}")
            time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
