"""What `serve` shows: a live table on a terminal, log lines in a pipe; and how Ctrl-C ends it."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.coordinators import ScriptedClient

pytestmark = pytest.mark.live

SHORT = {"game": {"horizon": 2}, "rounds": {"expected_clients": 3, "declare_s": 300.0, "deliver_s": 300.0}}
PATIENCE_S = 60.0


@dataclass
class Screen:
    """A terminal that a coordinator writes to, and all that it has shown."""

    process: subprocess.Popen[bytes]
    shown: bytearray = field(default_factory=bytearray)

    @property
    def text(self) -> str:
        """Without colours and movements of the cursor."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.shown.decode(errors="replace"))

    def wait_for(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + PATIENCE_S
        while (found := re.search(pattern, self.text)) is None:
            assert time.monotonic() < deadline, f"{pattern} was never shown:\n{self.text}"
            time.sleep(0.05)
        return found


def serve(state: Path) -> list[str]:
    words = ["serve", "--port", "0", "--state-dir", str(state), "--preset", "digits", "--overrides", json.dumps(SHORT)]
    words.append("--shared-code")
    return [sys.executable, "-m", "qidpfl_server", *words]


@contextmanager
def on_a_terminal(state: Path, **environment: str) -> Iterator[Screen]:
    own, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    settings = {"TERM": "xterm-256color", "COLUMNS": "80", "QIDPFL_LOG_FORMAT": "auto"} | environment
    process = subprocess.Popen(serve(state), stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | settings)
    os.close(theirs)
    screen = Screen(process)
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


def play(url: str, state: Path) -> None:
    code = (state / "digits.code").read_text().strip()
    clients = [ScriptedClient(url, code.split(".")[0], code, f"the-key-of-client-{n}") for n in range(3)]
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_terminal_shows_the_progress_of_tasks_and_rounds_and_the_log_above(tmp_path: Path) -> None:
    with on_a_terminal(tmp_path) as screen:
        url = screen.wait_for(r"listening\s+url=(\S+)")[1]
        screen.wait_for(r"digits +enrolling +– ")
        play(url, tmp_path)
        row = screen.wait_for(r"digits +finished: horizon_reached +2/2 +([\d.]+) +3/3 +([\d.]+)% +([\d.]+) +3 ")
        reward, accuracy, paid = map(float, row.groups())
        assert 0 < reward < paid
        assert 0 <= accuracy <= 100
        screen.wait_for(r"round_closed")
        screen.process.send_signal(signal.SIGINT)
        assert screen.process.wait(PATIENCE_S) == 0
    assert "Traceback" not in screen.text
    # The cursor, hidden while the table is alive, is back.
    assert screen.shown.rindex(b"\x1b[?25h") > screen.shown.rindex(b"\x1b[?25l")


def test_a_terminal_that_wants_json_gets_lines_only(tmp_path: Path) -> None:
    with on_a_terminal(tmp_path, QIDPFL_LOG_FORMAT="json") as screen:
        play(screen.wait_for(r'"url": "(\S+?)".*"event": "listening"')[1], tmp_path)
        screen.wait_for("round_closed")
        # A table would have been drawn at the start, and once a second.
        assert "enrolling" not in screen.text and b"\x1b" not in screen.shown
        screen.process.send_signal(signal.SIGINT)
        assert screen.process.wait(PATIENCE_S) == 0


def test_a_pipe_gets_lines_only_and_ctrl_c_ends_the_server_cleanly(tmp_path: Path) -> None:
    process = subprocess.Popen(serve(tmp_path), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if '"listening"' in line:
            break
    process.send_signal(signal.SIGINT)
    said, rest = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert said == ""
    assert "\x1b" not in "".join([*lines, rest]) and "Traceback" not in rest
