"""Runs of the experiments on engines, and their worker processes."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable
from pathlib import Path

# One method on one partition: one cell.
ONE_CELL = ("--dataset", "digits", "--scale", "smoke", "--partition", "iid", "--seeds", "1", "--reproducible")
CELL = "digits.iid.fedavg.seed-0"


class EngineRun:
    """`qidpfl-experiments run` with an engine. Its output goes to a file, so that a test can follow it."""

    def __init__(self, python: Path, out: Path, *arguments: str, method: str = "fedavg") -> None:
        self.out = out
        # Short: Ray has its sockets there, whose names are limited.
        self.temporary = Path(tempfile.mkdtemp(prefix="cells-", dir="/tmp"))
        weakref.finalize(self, shutil.rmtree, self.temporary, ignore_errors=True)
        self._log = out.with_name(f"{out.name}.log")
        command = [str(python), "-m", "qidpfl_experiments", "run", *ONE_CELL, "--methods", method]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--out", str(out), *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"TMPDIR": str(self.temporary)},
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self._log.read_text()

    def ended(self) -> int:
        """Wait for the end; the exit status."""
        return self.process.wait(180)

    def wait_for(self, what: str, found: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not found():
            assert time.monotonic() < deadline and self.process.poll() is None, f"{what}: {self.said}"
            time.sleep(0.05)

    def wait_until_said(self, text: str) -> None:
        self.wait_for(text, lambda: text in self.said)

    def wait_for_fleet(self) -> list[int]:
        """Wait until the fleet of the cell runs; the processes of coordinator and fleet."""
        self.wait_for("a fleet", lambda: any("fleet" in words for words in self.services().values()))
        return list(self.services())

    def services(self) -> dict[int, list[str]]:
        """The processes of coordinators and fleets: they name the temporary folder of their cell."""
        return {pid: words for pid, words in processes().items() if any(str(self.temporary) in one for one in words)}

    def wait_until_alone(self) -> None:
        deadline = time.monotonic() + 60
        while self.services() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not self.services()


def processes() -> dict[int, list[str]]:
    """The command lines of all processes."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
    return found


def submitit_workers(out: Path) -> list[int]:
    """The processes that run a cell for submitit: their folder is in the results folder."""
    return [
        pid
        for pid, words in processes().items()
        if "submitit.core._submit" in words and any(str(out) in word for word in words)
    ]


def ray_workers(cell: str) -> list[int]:
    """The processes in which Ray runs a cell: they have its name."""
    return [pid for pid, words in processes().items() if words[0].startswith(f"ray::{cell}")]


def kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
