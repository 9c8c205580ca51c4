"""The tutorial of three hospitals: its blocks of commands, unchanged but for the port, each in its own shell."""

import csv
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[3]
TUTORIAL = ROOT / "docs" / "tutorials" / "three-hospitals.md"
HOSPITALS = {"city": 1400, "valley": 900, "harbour": 600}
_DEADLINE_S = 180.0


class Block(NamedTuple):
    """Commands of the tutorial: in which terminal, and whether they run until the end."""

    terminal: str
    stays_open: bool
    commands: str


def blocks(port: int) -> Iterator[Block]:
    for text in re.findall(r"^```sh\n(.*?)^```$", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL):
        heading = re.match(r"# (\w+)(, stays open)?\n", text)
        terminal = "repository" if heading is None else heading[1]
        yield Block(terminal, heading is not None and heading[2] is not None, text.replace("8443", str(port)))


class Terminal:
    """A shell that stays open, as the reader's does. Its output goes to a file."""

    def __init__(self, name: str, home: Path) -> None:
        self.name = name
        self.output = home / f"terminal-{name}.txt"
        kept = {key: value for key, value in os.environ.items() if not key.startswith("QIDPFL_")}
        with self.output.open("wb") as file:
            self._shell = subprocess.Popen(
                ["bash"],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=kept | {"HOME": str(home)},
            )
        self._blocks = 0

    def type(self, commands: str) -> None:
        """Type a block, and let the shell say how it ended."""
        assert self._shell.stdin is not None
        self._blocks += 1
        # As with `bash -e`, but the shell stays open; its own input is not for the commands.
        typed = f"{{ set -e\n{commands}\nset +e; }} </dev/null\necho 'ended {self._blocks}'\n"
        self._shell.stdin.write(typed.encode())
        self._shell.stdin.flush()

    def wait(self) -> str:
        """Wait for the end of the last block; return everything that was printed."""
        deadline = time.monotonic() + _DEADLINE_S
        while f"ended {self._blocks}\n" not in (text := "ended 0\n" + self.output.read_text()):
            assert self._shell.poll() is None, f"{self.name}: {text}"
            assert time.monotonic() < deadline, f"{self.name} has not ended: {text}"
            time.sleep(0.05)
        return text

    def close(self) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        if self._shell.poll() is None:
            self._shell.terminate()
        self._shell.wait(timeout=30)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int) -> None:
    """The reader types the next command after the coordinator has printed its address."""
    deadline = time.monotonic() + _DEADLINE_S
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("the coordinator does not listen")


def test_the_tutorial_works_as_it_is_printed(tmp_path: Path) -> None:
    port = free_port()
    terminals: dict[str, Terminal] = {}
    with ExitStack() as stack:
        for block in blocks(port):
            if block.terminal not in terminals:
                terminals[block.terminal] = terminal = Terminal(block.terminal, tmp_path)
                stack.callback(terminal.close)
            terminal = terminals[block.terminal]
            # The reader types when the block before has ended: after the clients, also the coordinator has.
            terminal.wait()
            terminal.type(block.commands)
            if "qidpfl-server serve" in block.commands:
                wait_for(port)
            if not block.stays_open:
                terminal.wait()
        said = {name: terminal.wait() for name, terminal in terminals.items()}

    federation = tmp_path / "federation"
    for hospital, records in HOSPITALS.items():
        assert f"takes part with {records} records" in said[hospital]
        assert "the task is finished: horizon_reached" in said[hospital]
    assert "checked only: nothing was sent" in said["city"]
    assert "verified" in said["city"]
    assert "0 violated" in said["operator"]
    with (federation / "operator" / "results" / "rounds.csv").open() as file:
        accuracies = [float(row["accuracy"]) for row in csv.DictReader(file)]
    assert len(accuracies) == 20
    # The most frequent label alone is right for 43 %.
    assert accuracies[-1] > 0.7, accuracies


def test_no_patient_is_in_two_folders(tmp_path: Path) -> None:
    subprocess.run(["python3", ROOT / "examples" / "hospitals" / "make_folders.py", tmp_path], check=True)
    rows = {
        path.relative_to(tmp_path).parts[0]: {line.partition(",")[2] for line in path.read_text().splitlines()[1:]}
        for path in tmp_path.rglob("*.csv")
    }
    assert len(rows) == 4
    names = sorted(rows)
    shared = [rows[one] & rows[other] for one in names for other in names if one < other]
    # Rounded measurements of two patients may agree by chance.
    assert sum(map(len, shared)) < 10
