"""A live coordinator process for tests, and a scripted numpy client that drives tasks through it."""

import base64
import hashlib
import json
import shutil
import socket
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np

from qidpfl_server.audit import audit
from qidpfl_server.ops.open_store import opened_store
from qidpfl_server.settings import Settings
from support.commands import ServerProcess
from support.fakes import shift_clock

_START_TIMEOUT_S = 120.0

# Rounds without timeouts: a round closes when all clients have answered, also on a slow machine.
NO_TIMEOUTS = {"declare_s": 600.0, "deliver_s": 600.0, "quiet_s": 600.0, "enrolment_window_s": 600.0}
# Overrides of a task whose models and updates are files. Those of small models are rows of the database.
FILE_UPDATES: dict[str, Any] = {
    "workload": {"network": "wide"},
    "layout": {"tensors": [{"name": "weight", "shape": [10, 2_000]}]},
}
# Later than all deadlines of a round without timeouts.
PAST_DEADLINES_S = 1300.0


@dataclass
class Coordinator:
    """A coordinator in a separate process on a free port; `sabotage` breaks it on purpose."""

    state_dir: Path
    store_url: str | None = None
    blob_dir: Path | None = None
    # The URL of a bucket; its address and credentials are variables of the test's own process.
    blobs: str | None = None
    secrets_dir: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    sabotage: Callable[[], None] | None = None
    process: ServerProcess | None = None
    url: str = ""

    def __post_init__(self) -> None:
        self._logs = Path(tempfile.mkdtemp(prefix="qidpfl-logs-"))
        weakref.finalize(self, shutil.rmtree, self._logs, ignore_errors=True)
        self._starts = 0
        self._ahead_s = 0.0

    def start(self) -> "Coordinator":
        self._starts += 1
        self.process = ServerProcess(
            ["serve", "--port", "0", *self._where(), *self.arguments],
            environment={"QIDPFL_LOG_FORMAT": "json"} | self._signing_key() | self.environment,
            stdout=self._logs / f"stdout-{self._starts}.log",
            stderr=self._log_file,
            sabotage=self.sabotage,
            clock_file=self._clock_file,
        )
        self.url = self._wait_for_address()
        return self

    def advance(self, duration_s: float) -> None:
        """Move the clock of this coordinator forward, now or before its start. It notices within five seconds."""
        self._ahead_s += duration_s
        shift_clock(self._clock_file, self._ahead_s)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.died_of()

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait()

    def died_of(self) -> int:
        """Wait for the end; the signal that ended the process."""
        assert self.process is not None
        self.url = ""
        return -self.process.wait()

    @property
    def log(self) -> list[dict[str, Any]]:
        """The events that the last start has logged so far."""
        lines = self._log_file.read_text().splitlines() if self._log_file.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def __enter__(self) -> "Coordinator":
        return self if self.url else self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop()

    @property
    def admin(self) -> httpx.Client:
        token = ((self.secrets_dir or self.state_dir) / "admin.token").read_text().strip()
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {token}"}, timeout=60)

    def create_task(self, name: str = "task", preset: str = "digits", **overrides: Any) -> tuple[str, str]:
        """A new task's id and its enrolment code for many clients."""
        rounds = NO_TIMEOUTS | overrides.pop("rounds", {})
        body = {"name": name, "preset": preset, "overrides": overrides | {"rounds": rounds}, "single_use_codes": 0}
        with self.admin as http:
            answer = http.post("/v1/tasks", json=body).raise_for_status().json()
        return answer["task"]["task_id"], answer["enrolment_codes"][0]

    def audit(self) -> str:
        """The report of `qidpfl-server audit`, from this process; raises if an invariant is broken."""
        settings = Settings(
            state_dir=self.state_dir, store_url=self.store_url, blob_dir=self.blob_dir, blobs=self.blobs
        )
        with opened_store(settings) as store:
            report = audit(store)
        said = "\n".join(report.lines())
        assert not report.violations, said
        return said

    def _where(self) -> list[str]:
        where = ["--state-dir", str(self.state_dir)]
        where += ["--store-url", self.store_url] if self.store_url else []
        where += ["--blobs", self.blobs] if self.blobs else []
        return where + (["--blob-dir", str(self.blob_dir)] if self.blob_dir else [])

    def _signing_key(self) -> dict[str, str]:
        """Coordinators that share a blob folder share the signing key too: beside it, or in the folder of secrets."""
        if self.secrets_dir is not None:
            return {"QIDPFL_SECRETS_DIR": str(self.secrets_dir)}
        return {} if self.blob_dir is None else {"QIDPFL_SIGNING_KEY": str(self.blob_dir.parent / "signing.key")}

    @property
    def _clock_file(self) -> Path:
        return self._logs / "clock"

    @property
    def _log_file(self) -> Path:
        return self._logs / f"stderr-{self._starts}.log"

    def _wait_for_address(self) -> str:
        assert self.process is not None
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            for event in self.log:
                if event["event"] == "listening":
                    url: str = event["url"]
                    return url
            time.sleep(0.02)
        raise RuntimeError(f"the coordinator does not listen: {self._log_file.read_text()}")


def running(state_dir: Path, **options: Any) -> Coordinator:
    """A coordinator for a `with` block: started at its beginning, stopped at its end."""
    return Coordinator(state_dir, **options)


@dataclass
class ScriptedClient:
    """A client without any training: it answers as announced and uploads noise of the right size."""

    url: str
    task_id: str
    code: str
    key: str
    labels: tuple[int, ...] = (11,) * 10
    privacy_value: float | None = 1.0
    token: str = ""
    seen: str = "0.0"
    sent: dict[int, bytes] = field(default_factory=dict)
    client_id: str = ""
    unanswered: dict[str, Any] | None = None
    # The address after a lost connection ("" while there is none); by default always `url`.
    locate: Callable[[], str] | None = None
    # What the server has told this client: digests per round, and the announcements of each round and attempt.
    receipts: dict[int, set[str]] = field(default_factory=dict)
    offers: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=f"{self.url}/v1/tasks/{self.task_id}", timeout=60)
        weakref.finalize(self, self.http.close)

    def enrol(self) -> None:
        body = {"enrolment_code": self.code, "enrolment_key": self.key}
        answer = self.http.post("/clients", json=body).raise_for_status().json()
        self.token, self.client_id = answer["token"], answer["client_id"]
        self.http.headers["Authorization"] = f"Bearer {self.token}"

    def profile(self) -> httpx.Response:
        body = {
            "label_counts": self.labels,
            "size": sum(self.labels),
            "privacy_value": self.privacy_value,
            "histogram_rho": 0.1,
        }
        return self.http.put("/clients/me/profile", json=body)

    def poll(self, wait: float = 10.0) -> dict[str, Any] | None:
        answer = self.http.get("/rounds/current", params={"after": self.seen, "wait": wait}).raise_for_status()
        if answer.status_code == 204:
            return None
        news: dict[str, Any] = answer.json()
        if offer := news["round"]:
            self.offers.setdefault(f"{offer['round_number']}.{offer['attempt']}", []).append(offer)
        return news

    def declare(self, offer: dict[str, Any]) -> httpx.Response:
        return self.http.put(f"/rounds/{offer['round_number']}/budget", json={"rho": budget_in(offer)})

    def update(self, offer: dict[str, Any]) -> bytes:
        """Noise of the declared size; made once per round, as a real client must."""
        number = offer["round_number"]
        if number not in self.sent:
            size = sum(self.labels)
            std = 2**0.5 / (size * budget_in(offer) ** 0.5)
            rng = np.random.default_rng([number, *self.key.encode()])
            self.sent[number] = (std * rng.standard_normal(offer["dimension"])).astype("<f4").tobytes()
        return self.sent[number]

    def upload(self, offer: dict[str, Any], data: bytes | None = None, digest: str | None = None) -> httpx.Response:
        body = self.update(offer) if data is None else data
        headers = {"Content-Digest": digest or digest_header(body), "Content-Type": "application/octet-stream"}
        answer = self.http.put(f"/rounds/{offer['round_number']}/update", content=body, headers=headers)
        if answer.is_success:
            self.receipts.setdefault(offer["round_number"], set()).add(answer.json()["digest"])
        return answer

    def play(self, offer: dict[str, Any]) -> None:
        """Answer one round. Steps that were already done may be repeated."""
        if offer["standing"] == "invited":
            self.declare(offer).raise_for_status()
            self.unanswered = offer
            self.upload(offer).raise_for_status()
            self.unanswered = None
        self.seen = f"{offer['round_number']}.{offer['attempt']}"

    def run(self, *, patience_s: float = 60.0) -> dict[str, Any]:
        """Take part until the task has ended, across restarts of the coordinator."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            try:
                if not self.token:
                    self.enrol()
                self.profile().raise_for_status()
                self._ask_again()
                while (answer := self.poll()) is None or answer["task_state"] in ("enrolling", "training"):
                    if answer and answer["round"]:
                        self.play(answer["round"])
                return answer
            except (httpx.TransportError, httpx.HTTPStatusError) as error:
                if isinstance(error, httpx.HTTPStatusError) and error.response.status_code not in (410, 429, 503):
                    raise
                time.sleep(0.1)
                self._follow(deadline)
        raise TimeoutError("the task did not end in time")

    def _ask_again(self) -> None:
        """Repeat an upload whose answer was lost, before anything else."""
        if self.unanswered is not None:
            answer = self.upload(self.unanswered)
            if answer.status_code != 410:
                answer.raise_for_status()
            self.unanswered = None

    def _follow(self, deadline: float) -> None:
        while self.locate is not None and time.monotonic() < deadline:
            if url := self.locate():
                self.http.base_url = f"{url}/v1/tasks/{self.task_id}"
                return
            time.sleep(0.1)


@dataclass
class WaitingClient(ScriptedClient):
    """A scripted client that waits for the event `may_deliver` before it answers a round."""

    may_deliver: threading.Event = field(default_factory=threading.Event)

    def play(self, offer: dict[str, Any]) -> None:
        self.may_deliver.wait(240.0)
        super().play(offer)


def play_to_the_end(clients: list[ScriptedClient]) -> None:
    """Let all clients take part at the same time until the task has ended."""
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def budget_in(offer: dict[str, Any]) -> float:
    """The budget of a scripted client: always the same, within the bound of the offer; in a menu its base."""
    largest: float = offer.get("rho_max", 1.0)
    wanted: float = offer.get("base_rho", 0.05)
    return min(wanted, largest)


def digest_header(data: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:"


@contextmanager
def connected(coordinator: Coordinator) -> Iterator[socket.socket]:
    """A plain connection, for requests that no HTTP library would send."""
    address = urlsplit(coordinator.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        yield connection


def until_closed(connection: socket.socket) -> bytes:
    """All bytes until the other side closes; fails if it does not close within a minute."""
    received = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            received += piece
    return received
