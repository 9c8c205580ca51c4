"""Processes of a testbed on this machine: started, restarted when they are killed, and stopped at the end."""

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
    """A process ended unexpectedly."""


class AuditFailed(Exception):
    """The audit of the coordinator found a violation. Its numbers must not be used."""


def audit(state_dir: Path, *, rules_options: Sequence[str] = ()) -> str:
    """Audit all tasks of a coordinator and return the summary line.

    Raises:
        AuditFailed: a check is violated.
    """
    command = [sys.executable, "-m", "qidpfl_server", "audit", "--state-dir", str(state_dir), *rules_options]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = (done.stdout + done.stderr).strip().splitlines()
    said = lines[-1] if lines else f"exit status {done.returncode}"
    if done.returncode:
        raise AuditFailed(f"audit of the coordinator: {said}")
    return said


class Service:
    """A module that runs as a process. It is restarted when it is killed, and it ends with this process."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        self._command = command
        self._starts = 0
        self.start()

    def start(self) -> None:
        """Start or restart the process."""
        # Many processes share a few cores: more threads per process would slow all of them.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "QIDPFL_LOG_FORMAT": "json"}
        self._starts += 1
        with self.log.open("a") as log:
            self._log_offset = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "qidpfl_experiments.testbed.child_process", *self._command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                # Ctrl-C goes to this process only, which then stops its services in order.
                start_new_session=True,
            )

    def restart_if_killed(self) -> bool:
        """Restart the process if a signal ended it, and return whether it was restarted.

        Raises:
            ProcessEnded: it ended with an error status, or it was killed too often.
        """
        status = self.process.poll()
        if status is None or status == 0:
            return False
        # A positive status is an exit status, a negative one is the signal that ended the process.
        if status > 0 or self._starts >= _MAX_STARTS:
            raise ProcessEnded(f"{self.name} ended with {status}: {self.last_line()}")
        self.kill()
        self.start()
        return True

    def kill(self) -> None:
        """Kill the process and its children."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._close_stdin()

    def last_line(self) -> str:
        """The last line of its output."""
        lines = self._output().strip().splitlines()
        return lines[-1] if lines else "no output"

    def _output(self) -> str:
        """Its output since the last start: the log may also hold earlier output."""
        with self.log.open("rb") as log:
            log.seek(self._log_offset)
            return log.read().decode(errors="replace")

    def wait_until_served(self) -> None:
        """Wait until the coordinator listens."""
        deadline = time.monotonic() + _STARTUP_S
        while '"listening"' not in self._output():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise ProcessEnded(f"{self.name} did not start: {self.last_line()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Terminate the process; kill it after a timeout."""
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
    """A TCP port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
