"""Follows a tutorial: types its blocks of commands, as they are printed, into shells that stay open."""

import os
import re
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from .pages import ROOT, blocks

_DEADLINE_S = 180.0
_HEADING = re.compile(r"# (\w+)(, stays open)?\n")


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
        """Close the shell, and with it what still runs in it."""
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        if self._shell.poll() is None:
            self._shell.terminate()
        self._shell.wait(timeout=30)


def free_port() -> int:
    """A port on which no program listens."""
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


def follow(page: Path, home: Path, port: int, printed: Mapping[str, str]) -> dict[str, str]:
    """What every terminal shows after all blocks of a page. `printed` has texts of the page and what is typed instead.

    The first comment of a block names its terminal, and says `stays open` if the command runs until the end. A block
    without such a comment is typed in the folder of the repository.
    """
    terminals: dict[str, Terminal] = {}
    with ExitStack() as stack:
        for _, commands in blocks(page, "sh"):
            heading = _HEADING.match(commands)
            name = "repository" if heading is None else heading[1]
            if name not in terminals:
                terminals[name] = Terminal(name, home)
                stack.callback(terminals[name].close)
            terminal = terminals[name]
            # The reader types when the block before has ended: after the clients, also the coordinator has.
            terminal.wait()
            for text, typed in printed.items():
                commands = commands.replace(text, typed)
            terminal.type(commands)
            stays_open = heading is not None and heading[2] is not None
            if stays_open and "qidpfl-server serve" in commands:
                wait_for(port)
            if not stays_open:
                terminal.wait()
        return {name: terminal.wait() for name, terminal in terminals.items()}
