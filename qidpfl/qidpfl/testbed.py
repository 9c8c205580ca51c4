"""`Testbed`: runs tasks with clients on this machine, each as real processes that talk HTTP."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from qidpfl_client.errors import ClientError
from qidpfl_experiments.testbed.process import AuditFailed, ProcessEnded
from qidpfl_experiments.testbed.services import Fleets, LocalServices, Placement

from .coordinator import Coordinator
from .errors import RunFailed
from .progress import TaskProgress
from .run import Run
from .task import Task


class Testbed:
    """A coordinator and clients on this machine; or, with `coordinator`, only clients.

    Args:
        clients: the number of clients. A task from a preset is divided into as many shards.
        coordinator: take part in tasks of this coordinator instead of starting one.
        rules: files with custom rewards or selections; see docs/own-rules.md.
        data_dir: the folder of the data sets; None: a cache, downloaded once.
        device: auto, cpu, cuda, cuda:N or mps.
        privacy_value: of all clients, LOW:HIGH for uniform draws, or another form of `qidpfl-client fleet`.
        seed: of privacy values and behaviours; not of the noise.
        folder: keep state, journals and logs here; None: a temporary folder, removed at the end.
        tensorboard: also write every round as event files into this folder; see docs/tracking.md.
        mlflow: also write every round to this tracking URI of MLflow.
        progress: show how far a task is.

    The clients accept what a preset suggests as limits, also mechanisms without a proof: a testbed is for public data.
    """

    # pytest would take the name for that of a test class.
    __test__ = False

    def __init__(
        self,
        clients: int = 10,
        *,
        coordinator: Coordinator | None = None,
        rules: Sequence[Path | str] = (),
        data_dir: Path | str | None = None,
        device: str = "auto",
        privacy_value: str = "0.95:1.05",
        seed: int = 0,
        folder: Path | str | None = None,
        tensorboard: Path | str | None = None,
        mlflow: str | None = None,
        progress: bool = True,
    ) -> None:
        self._clients = clients
        self._remote = coordinator
        self._folder = None if folder is None else Path(folder)
        self._rules = tuple(map(Path, rules))
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._tensorboard = None if tensorboard is None else Path(tensorboard)
        self._device, self._privacy_value, self._seed = device, privacy_value, seed
        self._mlflow, self._progress = mlflow, progress
        self._closing = ExitStack()

    def __enter__(self) -> "Testbed":
        with ExitStack() as stack, _readable():
            work = self._folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qidpfl-")))
            placement = Placement(
                work=work,
                data_dir=self._data_dir,
                device=self._device,
                rules=self._rules,
                tensorboard=self._tensorboard,
                mlflow=self._mlflow,
            )
            if self._remote is None:
                self._services = stack.enter_context(LocalServices(placement))
                self._fleets: Fleets = self._services
                token = self._services.token()
                self.coordinator = stack.enter_context(Coordinator(self._services.url, token, progress=self._progress))
            else:
                work.mkdir(parents=True, exist_ok=True)
                self.coordinator = self._remote
                self._fleets = Fleets(placement, self._remote.url, connection=_connection(self._remote))
                stack.callback(self._fleets.stop_fleets)
            self._closing = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    @property
    def dashboard(self) -> str:
        """The link of the live dashboard. It contains a viewer's token when the coordinator runs here."""
        link = f"{self.coordinator.url}/dashboard"
        return link if self._remote is not None else f"{link}#token={self._services.token('viewer')}"

    def run(self, task: Task, *, name: str | None = None) -> Run:
        """Run a task to its end. A task that fails is returned too: see its state and reason.

        Raises:
            InvalidTask: it cannot have this number of clients.
            RunFailed: a process ended with an error; the message has its last line.
        """
        fitted = task.for_clients(self._clients)
        api = self.coordinator.api
        name = self.coordinator.free_name(name or task.preset)
        created = api.create_task(name, preset=fitted.preset, overrides=fitted.overrides, single_use_codes=0)
        task_id = created.task.task_id
        try:
            with _readable(), TaskProgress(api, task_id, shown=self._progress) as progress:
                self._fleets.run_fleet(
                    task_id,
                    codes=created.enrolment_codes,
                    clients=self._clients,
                    arguments=self._arguments(fitted),
                    watch=progress.look,
                )
                progress.show(api.task(task_id))
        except BaseException:
            # An interrupted cell of a notebook leaves no task behind that waits for clients.
            with suppress(ClientError):
                api.stop(task_id)
            raise
        return Run.read(api, task_id)

    def audit(self) -> str:
        """Check every invariant of the coordinator's store; its summary.

        Raises:
            RunFailed: a check is violated, or the coordinator runs elsewhere.
        """
        if self._remote is not None:
            raise RunFailed("only the operator of a coordinator can audit it: qidpfl-server audit")
        with _readable():
            return self._services.audit()

    def _arguments(self, task: Task) -> list[str]:
        privacy, bounds = task.spec.privacy, task.spec.bounds
        limits = {
            "--lifetime-rho": privacy.lifetime_rho or 1e6,
            "--rho-cap": bounds.rho_max,
            "--histogram-rho": privacy.histogram_rho,
        }
        given = [part for name, value in limits.items() if value is not None for part in (name, str(value))]
        return ["--privacy-value", self._privacy_value, "--seed", str(self._seed), *given]


def _connection(coordinator: Coordinator) -> list[str]:
    """The options of the clients for the way to a coordinator elsewhere."""
    ca = [] if coordinator.server_ca is None else ["--server-ca", str(coordinator.server_ca)]
    return ca + (["--insecure"] if coordinator.insecure else [])


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except (ProcessEnded, AuditFailed) as error:
        raise RunFailed(str(error)) from None
