"""`Coordinator`: the tasks of a coordinator that runs elsewhere, or in a testbed on this machine."""

import time
from pathlib import Path

from qidpfl_client.api import AdminApi, Retries, TlsFiles, connect
from qidpfl_shared.protocol.messages import TaskSummary

from .errors import InvalidTask
from .progress import TaskProgress
from .run import Run
from .task import Task

_POLL_S = 0.5
# A viewer of a task that takes hours survives a restart of the coordinator.
_RETRIES = Retries(attempts=20, timeout_s=120.0, wait_initial_s=0.2, wait_max_s=2.0, jitter_s=0.2)


class Coordinator:
    """A coordinator, by its address and the token of its admin; a viewer's token suffices to read.

    Args:
        url: the address, such as https://host:8443.
        token: the token of the admin or of a viewer.
        server_ca: the CA of its certificate in PEM; None: the CAs of the system.
        insecure: allow plain http to another machine.
        progress: show how far a task is while this waits for it.

    The calls raise the errors of `qidpfl_client.errors`; each is one readable line.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        server_ca: Path | str | None = None,
        insecure: bool = False,
        progress: bool = True,
    ) -> None:
        self.server_ca = None if server_ca is None else Path(server_ca)
        self.insecure = insecure
        self._progress = progress
        tls = None if self.server_ca is None else TlsFiles(server_ca=self.server_ca)
        self._http = connect(url, insecure=insecure, tls=tls)
        self.api = AdminApi(self._http, token=token, retries=_RETRIES)

    def __enter__(self) -> "Coordinator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    @property
    def url(self) -> str:
        """Its address."""
        return self.api.server

    def __repr__(self) -> str:
        return f"Coordinator({self.url})"

    def tasks(self) -> list[TaskSummary]:
        """All tasks, oldest first."""
        return self.api.tasks()

    def create(self, task: Task, *, name: str, codes: int | None = None) -> tuple[str, ...]:
        """Create a task and return its enrolment codes, which are shown only once: give one to each owner.

        `codes`: how many; None: one for each expected client; 0: one code for many clients of a testbed.
        """
        created = self.api.create_task(name, preset=task.preset, overrides=task.overrides, single_use_codes=codes)
        return created.enrolment_codes

    def read(self, name: str) -> Run:
        """The present state of a task, by its name or id."""
        return Run.read(self.api, self._task_id(name))

    def wait(self, name: str) -> Run:
        """Wait until a task has ended, and show how far it is."""
        task_id = self._task_id(name)
        with TaskProgress(self.api, task_id, shown=self._progress) as progress:
            while not (task := self.api.task(task_id)).state.ended:
                progress.show(task)
                time.sleep(_POLL_S)
            progress.show(task)
        return Run.read(self.api, task_id)

    def stop(self, name: str) -> None:
        """End a task. What was paid stays paid."""
        self.api.stop(self._task_id(name))

    def free_name(self, wanted: str) -> str:
        """The wanted name, or the first of `wanted-2`, `wanted-3` and so on that no task has."""
        taken = {task.name for task in self.tasks()}
        names = (wanted, *(f"{wanted}-{number}" for number in range(2, len(taken) + 3)))
        return next(name for name in names if name not in taken)

    def _task_id(self, name: str) -> str:
        tasks = self.tasks()
        found = [task.task_id for task in tasks if name in (task.name, task.task_id)]
        if not found:
            known = ", ".join(task.name for task in tasks) or "none"
            raise InvalidTask(f"{self.url} has no task {name!r}; it has {known}")
        return found[0]
