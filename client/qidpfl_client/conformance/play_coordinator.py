"""Play a coordinator for a client: serve the tasks of the kit, start the client if asked, and judge its requests."""

import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ..errors import Misconfigured
from .client_checks import check_client
from .listener import listening
from .played_task import PlayedTask
from .report import ConformanceReport
from .scenarios import SCENARIOS

# A client that sends no request for so long has stopped: the kit answers every poll at once or after 0.2 seconds.
_STOPPED_S = 20.0
# How long a client may go on after it has heard that the task is over.
_GOODBYE_S = 20.0
_PLACEHOLDERS = ("url", "code", "code_file", "folder")


def play_coordinator(
    *, host: str, port: int, tasks: Sequence[str], run: str | None, wait_s: float, say: Callable[[str], None]
) -> ConformanceReport:
    """Serve the tasks of these names, all if there are none, until the client has played them.

    Args:
        host: the address to listen at.
        port: the port to listen at; 0: any free one.
        tasks: names of scenarios.
        run: a command that starts the client, with placeholders; None: the user starts it.
        wait_s: how long to wait for the client.
        say: prints a line.
    """
    played = [PlayedTask(scenario) for scenario in SCENARIOS if not tasks or scenario.name in tasks]
    if unknown := set(tasks) - {scenario.name for scenario in SCENARIOS}:
        names = ", ".join(scenario.name for scenario in SCENARIOS)
        raise Misconfigured(f"there is no task {', '.join(sorted(unknown))}; use some of {names}")
    with listening(played, host=host, port=port) as url:
        if run is None:
            say(f"listening at {url}; start the client once for each task, with fresh state (stop it when it is idle):")
            for task in played:
                say(f"{task.scenario.name}: {task.code}  ({task.scenario.tells})")
            _await_clients(played, wait_s)
        else:
            for task in played:
                _run_client(run, task, url=url, wait_s=wait_s, say=say)
    return check_client(played)


def _await_clients(tasks: Sequence[PlayedTask], wait_s: float) -> None:
    """Wait until every task is over, or no request has come for `wait_s`."""
    started = time.monotonic()
    while not all(_is_over(task) for task in tasks):
        latest = max((task.sent[-1].at for task in tasks if task.touched), default=started)
        if time.monotonic() - max(latest, started) > wait_s:
            return
        time.sleep(0.1)


def _is_over(task: PlayedTask) -> bool:
    return task.told_end or (task.touched and task.quiet_for_s > _STOPPED_S)


def _run_client(run: str, task: PlayedTask, *, url: str, wait_s: float, say: Callable[[str], None]) -> None:
    """Start the client for one task, and wait for its end. Its state and its output are in a folder for the task."""
    with tempfile.TemporaryDirectory(prefix="qidpfl-conform-") as name:
        folder = Path(name)
        code_file, said = folder / "code", folder / "said"
        code_file.touch(mode=0o600)
        code_file.write_text(f"{task.code}\n")
        given = dict(zip(_PLACEHOLDERS, (url, task.code, str(code_file), str(folder)), strict=True))
        command = _filled(run, given)
        with code_file.open() as stdin, said.open("w") as output:
            process = subprocess.Popen(command, stdin=stdin, stdout=output, stderr=subprocess.STDOUT)
            try:
                _await_end(process, task, wait_s)
            finally:
                _end(process)
        last = (said.read_text(errors="replace").split("\n") or [""])[-2:]
        say(f"{task.scenario.name}: the client ended with {process.returncode}: {' '.join(last).strip()[:200]}")


def _filled(run: str, given: dict[str, str]) -> list[str]:
    """The words of the command with the values of its placeholders."""
    words = shlex.split(run)
    for name, value in given.items():
        words = [word.replace(f"{{{name}}}", value) for word in words]
    if not words:
        raise Misconfigured("--run needs a command")
    return words


def _await_end(process: subprocess.Popen[bytes], task: PlayedTask, wait_s: float) -> None:
    """Wait until the client ends, or has had its time to say goodbye, or does nothing."""
    started = time.monotonic()
    while process.poll() is None:
        idle_s = task.quiet_for_s if task.touched else time.monotonic() - started
        if idle_s > (_GOODBYE_S if task.told_end else wait_s):
            return
        time.sleep(0.05)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop the client if it still runs."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
    if process.poll() is None:
        process.kill()
    process.wait()
