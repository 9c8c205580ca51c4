"""Coordinators that start fast: forked from a process that has already imported everything, then on their own."""

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from qidpfl_server.audit import audit
from qidpfl_server.ops.open_store import opened_store
from qidpfl_server.settings import Settings
from support.coordinators import Coordinator

_PATIENCE_S = 120.0
_forks = multiprocessing.get_context("forkserver")
PRELOADED = [__name__, "qidpfl_server.__main__", "sklearn.datasets", "psycopg"]
_forks.set_forkserver_preload(PRELOADED)


@dataclass
class ForkedCoordinator(Coordinator):
    """A coordinator in a process of its own, with all that a started one does; `sabotage` breaks it on purpose."""

    sabotage: Callable[[], None] | None = None
    child: BaseProcess | None = None
    starts: int = 0

    def start(self) -> "ForkedCoordinator":
        self.state_dir.mkdir(parents=True, exist_ok=True)
        self.starts += 1
        log = self.state_dir / f"stderr-{self.starts}.log"
        arguments = ["serve", "--port", "0", *self._where(), *self.arguments]
        environment = {"QIDPFL_LOG_FORMAT": "json"} | self.environment
        self.child = _forks.Process(target=_serve, args=(arguments, environment, log, self.sabotage), daemon=True)
        self.child.start()
        self.url = self._listening_at(log)
        return self

    def died_of(self) -> int | None:
        """Wait for the end; the signal that ended the process."""
        assert self.child is not None
        self.child.join(_PATIENCE_S)
        self.url = ""
        return None if self.child.exitcode is None else -self.child.exitcode

    def kill(self) -> None:
        assert self.child is not None
        self.child.kill()
        self.died_of()

    def stop(self) -> int:
        assert self.child is not None
        self.child.terminate()
        self.child.join(_PATIENCE_S)
        assert self.child.exitcode is not None
        return self.child.exitcode

    def audit(self) -> str:
        """The report of `qidpfl-server audit`, from this process; raises if an invariant is broken."""
        settings = Settings(state_dir=self.state_dir, store_url=self.store_url, blob_dir=self.blob_dir)
        with opened_store(settings) as store:
            report = audit(store)
        said = "\n".join(report.lines())
        assert not report.violations, said
        return said

    def __enter__(self) -> "ForkedCoordinator":
        return self if self.url else self.start()

    def __exit__(self, *_: object) -> None:
        if self.child is not None and self.child.is_alive():
            self.stop()

    def _listening_at(self, log: Path) -> str:
        assert self.child is not None
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline and self.child.is_alive():
            for line in log.read_text().splitlines() if log.exists() else ():
                if '"listening"' in line and line.endswith("}"):
                    url: str = json.loads(line)["url"]
                    return url
            time.sleep(0.02)
        raise RuntimeError(f"the coordinator does not listen: {log.read_text() if log.exists() else 'no word'}")


def _serve(
    arguments: Sequence[str], environment: dict[str, str], log: Path, sabotage: Callable[[], None] | None
) -> None:
    from qidpfl_server.__main__ import main

    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(descriptor, sys.stderr.fileno())
    if sabotage is not None:
        sabotage()
    sys.argv = ["qidpfl-server", *arguments]
    main()
