"""Clients that start fast: forked from a process that has already imported everything."""

import multiprocessing
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from qidpfl_client.api import connect
from qidpfl_client.journal.journal import Journal
from qidpfl_client.owner import Owner
from qidpfl_client.participant.runner import run_until_finished
from qidpfl_client.participant.token_rotation import TokenRotation
from support.commands import PRELOADED
from support.synthetic_clients import TESTBED_OWNER, enrolment

_PATIENCE_S = 120.0
_forks = multiprocessing.get_context("forkserver")
# One fork server serves coordinators and clients: the last call sets the imports for both.
_forks.set_forkserver_preload([*PRELOADED, __name__])


@dataclass
class ForkedClient:
    """A client on synthetic records in a separate process; `sabotage` breaks it on purpose."""

    server: str
    code: str
    journal: Path
    owner: Owner = TESTBED_OWNER
    failpoint: str = ""
    sabotage: Callable[[], None] | None = None
    rotate_every_s: float | None = None
    child: BaseProcess | None = None

    def start(self) -> "ForkedClient":
        log = self.journal.with_suffix(".log")
        arguments = (
            self.server,
            self.code,
            self.journal,
            self.owner,
            self.failpoint,
            log,
            self.sabotage,
            self.rotate_every_s,
        )
        self.child = _forks.Process(target=_take_part, args=arguments, daemon=True)
        self.child.start()
        return self

    def kill(self) -> None:
        """Kill it and wait until it is dead. Any thread may call this: it does not read the exit code."""
        child = self.child
        assert child is not None
        child.kill()
        wait([child.sentinel], _PATIENCE_S)

    def ended_with(self) -> int | None:
        """Wait for the end; its exit code, or the negative signal."""
        assert self.child is not None
        self.child.join(_PATIENCE_S)
        return self.child.exitcode

    @property
    def said(self) -> str:
        return self.journal.with_suffix(".log").read_text()


def _take_part(
    server: str,
    code: str,
    path: Path,
    owner: Owner,
    failpoint: str,
    log: Path,
    sabotage: Callable[[], None] | None,
    rotate_every_s: float | None,
) -> None:
    os.environ["QIDPFL_FAILPOINT"] = failpoint
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, sys.stderr.fileno())
    if sabotage is not None:
        sabotage()

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    options: dict[str, Any] = {"owner": owner, "report": report}
    rotation = None if rotate_every_s is None else TokenRotation(every_s=rotate_every_s, report=report)
    with connect(server) as http, Journal(path) as journal:
        joining = enrolment(http, code, journal, **options)
        run_until_finished(joining, patience_s=60, first_contact_s=10, slots=False, rotation=rotation)
