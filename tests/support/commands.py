"""Commands of the server that start fast: forked from a process that has imported the server already.

An import of the server takes seconds. A command is still a process of its own, with its own environment, output and
exit code.
"""

import atexit
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired

_forks = multiprocessing.get_context("forkserver")
# What a server imports at its start, and what it imports when it is first needed.
PRELOADED = [
    *(__name__, "qidpfl_server.__main__", "qidpfl_server.audit", "qidpfl_server.store.migrating"),
    *("scipy.optimize", "scipy.special", "sklearn.datasets", "psycopg"),
]
_forks.set_forkserver_preload(PRELOADED)


class ServerProcess:
    """A started command, with the methods of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        environment: dict[str, str],
        stdout: Path,
        stderr: Path,
        sabotage: Callable[[], None] | None = None,
        clock_file: Path | None = None,
    ) -> None:
        """Start the command; `sabotage` runs in its process first, to break it on purpose.

        `clock_file` says how far the clock of the process is ahead (see `ShiftedClock`).
        """
        self.arguments = list(arguments)
        whole = dict(os.environ) | environment
        self._child: BaseProcess = _forks.Process(
            target=_run, args=(self.arguments, whole, stdout, stderr, sabotage, clock_file), daemon=True
        )
        self._child.start()

    @property
    def pid(self) -> int:
        assert self._child.pid is not None
        return self._child.pid

    def poll(self) -> int | None:
        return self._child.exitcode

    def wait(self, timeout: float = 120.0) -> int:
        self._child.join(timeout)
        if self._child.exitcode is None:
            raise TimeoutExpired(self.arguments, timeout)
        return self._child.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._child.kill()


def server_command(*arguments: str | Path, **environment: str) -> CompletedProcess[str]:
    """Run `qidpfl-server` with these arguments to its end."""
    words = list(map(str, arguments))
    with tempfile.TemporaryDirectory(prefix="qidpfl-command-") as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        process = ServerProcess(words, environment=environment, stdout=out, stderr=err)
        try:
            code = process.wait()
        except TimeoutExpired:
            process.kill()
            raise
        return CompletedProcess(words, code, out.read_text(), err.read_text())


def _run(
    arguments: Sequence[str],
    environment: dict[str, str],
    stdout: Path,
    stderr: Path,
    sabotage: Callable[[], None] | None,
    clock_file: Path | None,
) -> None:
    from qidpfl_server.__main__ import main
    from support.fakes import serve_with_clock

    os.environ.clear()
    os.environ.update(environment)
    for path, stream in ((stdout, sys.stdout), (stderr, sys.stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), stream.fileno())
    if clock_file is not None:
        serve_with_clock(clock_file)
    if sabotage is not None:
        sabotage()
    sys.argv = ["qidpfl-server", *arguments]
    try:
        main()
    finally:
        # A forked process ends without these handlers, which write the coverage.
        atexit._run_exitfuncs()
