"""A program on a real terminal of 80 columns, and what it shows there."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_DEADLINE_S = 60.0


@dataclass
class Screen:
    """A terminal that a program writes to, and all that it has shown."""

    process: subprocess.Popen[bytes]
    _descriptor: int
    shown: bytearray = field(default_factory=bytearray)

    @property
    def text(self) -> str:
        """Without colours and movements of the cursor."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.shown.decode(errors="replace")).replace("\r\n", "\n")

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until a text is shown."""
        deadline = time.monotonic() + _DEADLINE_S
        while (found := re.search(pattern, self.text)) is None:
            assert time.monotonic() < deadline, f"{pattern} was never shown:\n{self.text}"
            time.sleep(0.05)
        return found

    def answer(self, question: str, answer: str) -> None:
        """Type an answer once a question is the last that is shown."""
        self.wait_for(re.escape(question) + r"[^\n]*: \Z")
        os.write(self._descriptor, f"{answer}\n".encode())


@contextmanager
def on_a_terminal(command: Sequence[str], folder: Path | None = None, **environment: str) -> Iterator[Screen]:
    """Run a command on a terminal. At the end it is killed if it still runs."""
    own, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    settings = {"TERM": "xterm-256color", "COLUMNS": "80"} | environment
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | settings, cwd=folder
    )
    os.close(theirs)
    screen = Screen(process, own)
    reader = threading.Thread(target=_read, args=(own, screen))
    reader.start()
    try:
        yield screen
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        reader.join()
        os.close(own)


def _read(descriptor: int, screen: Screen) -> None:
    # Reading from a terminal without a writer ends with an error.
    try:
        while piece := os.read(descriptor, 65536):
            screen.shown += piece
    except OSError:
        return
