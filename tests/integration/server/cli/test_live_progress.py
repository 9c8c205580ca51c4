"""What `serve` shows: a live table on a terminal, log lines in a pipe; and how Ctrl-C ends it."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from support.coordinators import ScriptedClient
from support.screens import on_a_terminal

pytestmark = pytest.mark.live

SHORT = {"game": {"horizon": 2}, "rounds": {"expected_clients": 3, "declare_s": 300.0, "deliver_s": 300.0}}
PATIENCE_S = 60.0


def serve(state: Path) -> list[str]:
    words = ["serve", "--port", "0", "--state-dir", str(state), "--preset", "digits", "--overrides", json.dumps(SHORT)]
    words.append("--shared-code")
    return [sys.executable, "-m", "qidpfl_server", *words]


def play(url: str, state: Path) -> None:
    code = (state / "digits.code").read_text().strip()
    clients = [ScriptedClient(url, code.split(".")[0], code, f"the-key-of-client-{n}") for n in range(3)]
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_terminal_shows_the_progress_of_tasks_and_rounds_and_the_log_above(tmp_path: Path) -> None:
    with on_a_terminal(serve(tmp_path), QIDPFL_LOG_FORMAT="auto") as screen:
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
    with on_a_terminal(serve(tmp_path), QIDPFL_LOG_FORMAT="json") as screen:
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
