"""Ray: each cell is a task on a cluster, or on a cluster of this machine that lives as long as the run."""

import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..cell_job import run_encoded
from .engine import EngineUnavailable
from .remote import ClusterJob, JobFailed, WorkerLost

LOCAL = "local"
_ASK_S = 0.1
_CONNECT_S = 10.0
_CANCEL_S = 20.0


class RayCluster:
    """A connection to Ray, which ends with the block."""

    def __init__(self, address: str | None, *, cpus: int, gpus: int, say: Callable[[str], None]) -> None:
        """`address`: None for that in RAY_ADDRESS, or without it for a new cluster on this machine.

        Raises `EngineUnavailable`.
        """
        # Ray reports its use over the network unless told otherwise.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError:
            raise EngineUnavailable("Ray is not installed: pip install 'qidpfl-experiments[ray]'") from None
        self._ray: Any = ray
        where = address or os.environ.get("RAY_ADDRESS") or LOCAL
        own = {"include_dashboard": False} if where == LOCAL else {}
        handler = signal.getsignal(signal.SIGTERM)
        try:
            _check_address(where)
            ray.init(address=where, log_to_driver=False, logging_level="ERROR", **own)
        except Exception as error:
            # Ray has no common class for a wrong address, a cluster that is away and one of another version.
            signal.signal(signal.SIGTERM, handler)
            raise EngineUnavailable(f"Ray at {where} cannot be used: {error}") from error
        # Ray ends the process at SIGTERM; here a run is stopped in order.
        signal.signal(signal.SIGTERM, handler)
        try:
            self._check(where, cpus, gpus, say)
        except BaseException:
            ray.shutdown()
            raise
        self._function: Any = ray.remote(run_encoded)
        # A worker that is lost is reported here, and its cell started again by the engine, as on every cluster.
        self._options = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": 0}

    def __enter__(self) -> "RayCluster":
        return self

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()

    def _check(self, where: str, cpus: int, gpus: int, say: Callable[[str], None]) -> None:
        """Refuse cells that a cluster of this machine can never run. Another cluster may grow: it is only told."""
        has = self._ray.cluster_resources()
        for name, wanted in (("CPU", cpus), ("GPU", gpus)):
            if wanted > has.get(name, 0):
                line = f"a cell needs {wanted} {name}, and Ray at {where} has {has.get(name, 0):g}"
                if where == LOCAL:
                    raise EngineUnavailable(line)
                say(f"{line}: cells wait until it has more")

    def submit(self, text: str, *, name: str, folder: Path) -> ClusterJob:
        try:
            return _RayTask(self._ray, self._function.options(name=name, **self._options).remote(text))
        except self._ray.exceptions.RayError as error:
            raise JobFailed(f"{name} cannot be submitted: {error}") from error


def _check_address(where: str) -> None:
    """Raise `OSError` if nothing listens there: Ray would try for many minutes."""
    found = re.fullmatch(r"(?:ray://)?\[?([^/]+?)\]?:([0-9]+)", where)
    if found is not None:
        socket.create_connection((found[1], int(found[2])), timeout=_CONNECT_S).close()


class _RayTask:
    label = "a task of Ray"

    def __init__(self, ray: Any, reference: Any) -> None:
        self._ray = ray
        self._reference = reference

    def outcome(self) -> str | None:
        errors = self._ray.exceptions
        try:
            returned: str = self._ray.get(self._reference, timeout=_ASK_S)
        except errors.GetTimeoutError:
            return None
        except errors.RayTaskError as error:
            raise JobFailed(str(error)) from error
        except (errors.RayError, ConnectionError) as error:
            raise WorkerLost(f"{type(error).__name__}: {error}") from error
        return returned

    def cancel(self) -> None:
        """Interrupt the worker, which then stops its services; kill it if it does not answer."""
        self._ray.cancel(self._reference)
        ended, _ = self._ray.wait([self._reference], timeout=_CANCEL_S)
        if not ended:
            self._ray.cancel(self._reference, force=True)
