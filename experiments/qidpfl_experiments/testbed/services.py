"""The live services of a testbed: a coordinator for all tasks, and one fleet of clients per task."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from qidpfl_client.api import AdminApi, Retries, connect

from .process import AuditFailed, ProcessEnded, Service, audit, free_port

# Long enough for a restart of a coordinator that was killed.
RETRIES = Retries(attempts=20, timeout_s=120.0, wait_initial_s=0.2, wait_max_s=2.0, jitter_s=0.2)
_POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Folders, device, rules files and tracking of a testbed."""

    work: Path
    data_dir: Path | None = None
    device: str = "auto"
    rules: tuple[Path, ...] = ()
    tensorboard: Path | None = None
    mlflow: str | None = None

    @property
    def data_options(self) -> list[str]:
        """Options for the data folder of coordinator and clients."""
        return [] if self.data_dir is None else ["--data-dir", str(self.data_dir)]

    @property
    def rules_options(self) -> list[str]:
        """Options for the rules files of the coordinator and its audit."""
        return [part for path in self.rules for part in ("--rules", str(path))]

    @property
    def tracking_options(self) -> list[str]:
        """Options for the trackers to which the coordinator writes."""
        board = [] if self.tensorboard is None else ["--tensorboard", str(self.tensorboard)]
        return board + ([] if self.mlflow is None else ["--mlflow", self.mlflow])


class Fleets:
    """Fleets of clients on this machine that take part in the tasks of one coordinator."""

    def __init__(self, placement: Placement, url: str, *, connection: Sequence[str] = ()) -> None:
        """`connection`: options of the clients for the way to the coordinator, such as its CA."""
        self._placement = placement
        self.url = url
        self._connection = connection
        self._stopping = threading.Event()

    @property
    def data_dir(self) -> Path | None:
        """The folder of the data sets; None: the default."""
        return self._placement.data_dir

    def journals(self, name: str) -> Path:
        """The folder with the client journals of a fleet."""
        return self._placement.work / "journals" / name

    def journal(self, name: str, ordinal: int) -> Path:
        """The journal of one client."""
        return self.journals(name) / f"client-{ordinal:05d}.sqlite"

    def run_fleet(
        self,
        name: str,
        *,
        codes: Sequence[str],
        clients: int,
        arguments: Sequence[str],
        watch: Callable[[], object] = lambda: None,
    ) -> None:
        """Run a fleet until its task has ended, and call `watch` now and then. Killed processes are restarted."""
        self.journals(name).mkdir(parents=True, exist_ok=True)
        code_file = self._placement.work / f"{name}.code"
        code_file.touch(mode=0o600)
        code_file.write_text("\n".join(codes))
        fleet = Service(f"the fleet of {name}", self._fleet(name, code_file, clients, arguments), self._log(name))
        try:
            while fleet.process.poll() != 0:
                if self._stopping.wait(_POLL_S):
                    raise ProcessEnded(f"the fleet of {name} was stopped")
                fleet.restart_if_killed()
                self._keep_coordinator()
                watch()
        finally:
            fleet.stop()
            code_file.unlink()

    @property
    def stopping(self) -> bool:
        """Whether fleets are being stopped before their tasks have ended."""
        return self._stopping.is_set()

    def stop_fleets(self) -> None:
        """Stop all fleets."""
        self._stopping.set()

    def _keep_coordinator(self) -> None:
        """Restart the coordinator if it was killed. Only the owner of its process can."""

    def _fleet(self, name: str, code_file: Path, clients: int, arguments: Sequence[str]) -> list[str]:
        return [
            *("qidpfl_client", "fleet", "--server", self.url, "--clients", str(clients)),
            *("--code-file", str(code_file), "--journals", str(self.journals(name))),
            *("--device", self._placement.device, "--accept-unproven", "--first-contact", "60"),
            *self._connection,
            *self._placement.data_options,
            *arguments,
        ]

    def _log(self, name: str) -> Path:
        return self._placement.work / f"{name}.log"


class LocalServices(Fleets):
    """A coordinator on this machine, and the fleets that take part in its tasks."""

    def __init__(self, placement: Placement) -> None:
        self._state = placement.work / "coordinator"
        self._port = free_port()
        super().__init__(placement, f"http://127.0.0.1:{self._port}")
        self._restarting = threading.Lock()

    def __enter__(self) -> "LocalServices":
        self._placement.work.mkdir(parents=True, exist_ok=True)
        self._coordinator = Service("the coordinator", self._serve(), self._placement.work / "coordinator.log")
        try:
            self._coordinator.wait_until_served()
            self._http: httpx.Client = connect(self.url, connections=16)
        except BaseException:
            self._coordinator.stop()
            raise
        self.api = AdminApi(self._http, token=self.token(), retries=RETRIES)
        self._stop_interrupted_tasks()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_fleets()
        self._http.close()
        self._coordinator.stop()

    def token(self, role: str = "admin") -> str:
        """The token of the admin, or of the viewer."""
        return (self._state / f"{role}.token").read_text().strip()

    def audit(self) -> str:
        """Audit the coordinator. After a violation its state is kept."""
        try:
            return audit(self._state, rules_options=self._placement.rules_options)
        except AuditFailed as error:
            raise AuditFailed(f"{error}; its state is kept in {self._placement.work}") from None

    def _stop_interrupted_tasks(self) -> None:
        for task in self.api.tasks():
            if not task.state.ended:
                self.api.stop(task.task_id)

    def _keep_coordinator(self) -> None:
        with self._restarting:
            if self._coordinator.restart_if_killed():
                time.sleep(_POLL_S)

    def _serve(self) -> list[str]:
        return [
            *("qidpfl_server", "serve", "--port", str(self._port), "--state-dir", str(self._state)),
            *self._placement.data_options,
            *self._placement.rules_options,
            *self._placement.tracking_options,
        ]
