"""Processes of a testbed on this machine: started, started again when they are killed, and stopped afterwards."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_STARTUP_S = 60.0
_STOP_TIMEOUT_S = 30.0
_MAX_STARTS = 5


class ProcessEnded(Exception):
    """A process ended though it should not have."""


class AuditFailed(Exception):
    """The coordinator's books are not in order: no number of theirs is to be trusted."""


def audit(state_dir: Path, *, rules_options: Sequence[str] = ()) -> str:
    """What the coordinator's own audit says of everything that was run there, which must be in order."""
    command = [sys.executable, "-m", "qidpfl_server", "audit", "--state-dir", str(state_dir), *rules_options]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = (done.stdout + done.stderr).strip().splitlines()
    said = lines[-1] if lines else f"it ended with {done.returncode}"
    if done.returncode:
        raise AuditFailed(f"audit of the coordinator: {said}")
    return said


class Service:
    """A module of ours that is started again when somebody kills it, and that ends when this process does."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        self._command = command
        self._starts = 0
        self.start()

    def start(self) -> None:
        """Start it, for the first time or again."""
        # Many processes on a few cores: more threads in each would only get in each other's way.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "QIDPFL_LOG_FORMAT": "json"}
        self._starts += 1
        with self.log.open("a") as log:
            self._log_offset = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "qidpfl_experiments.run.child_process", *self._command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                # Ctrl-C is for the command that has started it, which then stops it in its own order.
                start_new_session=True,
            )

    def restart_if_killed(self) -> bool:
        """Start it again if a signal ended it; raise if it gave up by itself."""
        status = self.process.poll()
        if status is None or status == 0:
            return False
        # A positive status is its own decision, a negative one the signal that ended it.
        if status > 0 or self._starts >= _MAX_STARTS:
            raise ProcessEnded(f"{self.name} ended with {status}: {self.last_line()}")
        self.kill()
        self.start()
        return True

    def kill(self) -> None:
        """End it at once, with everything it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._close_stdin()

    def last_line(self) -> str:
        """What it said last."""
        lines = self._output().strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def _output(self) -> str:
        """What it has said since it was started: the log may be that of an earlier one, too."""
        with self.log.open("rb") as log:
            log.seek(self._log_offset)
            return log.read().decode(errors="replace")

    def wait_until_served(self) -> None:
        """Wait until a coordinator answers."""
        deadline = time.monotonic() + _STARTUP_S
        while '"listening"' not in self._output():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise ProcessEnded(f"{self.name} does not start: {self.last_line()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End it, kindly at first."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._close_stdin()

    def _close_stdin(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
