"""The processes of the demo."""

import json
import threading
import time
from pathlib import Path
from typing import Any

from qidpfl_experiments.testbed.process import Service, free_port

from .scenarios import Scenario

_STOP_TIMEOUT_S = 30.0


class DemoProcesses:
    """A coordinator and its clients on this machine."""

    def __init__(self, folder: Path, scenario: Scenario, *, rounds: int | None, unsafe_seed: int | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.scenario = scenario
        self._unsafe_seed = unsafe_seed
        self.state_dir = folder / "coordinator"
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        overrides: dict[str, Any] = {**scenario.overrides, **({"game": {"horizon": rounds}} if rounds else {})}
        self.coordinator = Service("the coordinator", self._serve(overrides), folder / "coordinator.log")
        self.clients: list[Service] = []
        self._restarting = threading.Lock()

    def __enter__(self) -> "DemoProcesses":
        try:
            self.coordinator.wait_until_served()
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

    def dashboard(self, *, with_token: bool) -> str:
        """The link of the dashboard: with the viewer's token, or with the name of its file."""
        path = self.state_dir / "viewer.token"
        link = f"{self.url}/dashboard"
        return f"{link}#token={path.read_text().strip()}" if with_token else f"{link} (token in {path})"

    def journal(self, ordinal: int) -> Path:
        return self.folder / f"{ordinal}.journal.sqlite"

    def restart_killed(self) -> list[str]:
        """Restart killed processes and return their names."""
        with self._restarting:
            return [service.name for service in (self.coordinator, *self.clients) if service.restart_if_killed()]

    def wait_for_clients(self) -> None:
        """Wait until the clients have read the end of the task and their last payment."""
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while any(service.process.poll() is None for service in self.clients) and time.monotonic() < deadline:
            self.restart_killed()
            time.sleep(0.1)

    def _serve(self, overrides: dict[str, Any]) -> list[str]:
        preset = ["--preset", self.scenario.preset, "--task", "demo", "--overrides", json.dumps(overrides)]
        preset.append("--shared-code")
        return ["qidpfl_server", "serve", "--port", str(self._port), "--state-dir", str(self.state_dir), *preset]

    def _run(self, ordinal: int) -> list[str]:
        value = str(self.scenario.privacy_values[ordinal])
        who = ["--code-file", str(self.state_dir / "demo.code"), "--journal", str(self.journal(ordinal))]
        if self._unsafe_seed is not None:
            who += ["--unsafe-seed", str(self._unsafe_seed * self.scenario.clients + ordinal)]
        return [
            *("qidpfl_client", "run", "--server", self.url, *who),
            *("--ordinal", str(ordinal), "--privacy-value", value, "--device", "cpu", "--first-contact", "60"),
            *self.scenario.limit_options,
        ]
