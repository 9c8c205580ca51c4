"""A service of a testbed ends with its parent, and with the process between them."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.cell_engines import processes

pytestmark = [pytest.mark.live, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


def started(marker: Path) -> "subprocess.Popen[bytes]":
    module = ("http.server", "0", "--bind", "127.0.0.1", "--directory", str(marker))
    command = [sys.executable, "-m", "qidpfl_experiments.testbed.child_process", *module]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def services(marker: Path) -> set[int]:
    return {pid for pid, words in processes().items() if str(marker) in words and words[2] == "http.server"}


def wait_for(marker: Path, count: int) -> None:
    deadline = time.monotonic() + 30
    while len(services(marker)) != count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("end", ["its parent closes the pipe", "it is killed", "it is terminated"])
def test_a_service_ends(tmp_path: Path, end: str) -> None:
    with started(tmp_path) as between:
        wait_for(tmp_path, 1)
        assert between.stdin is not None
        if end == "its parent closes the pipe":
            between.stdin.close()
        else:
            between.send_signal(signal.SIGKILL if end == "it is killed" else signal.SIGTERM)
        assert between.wait(30) == (-signal.SIGKILL if end == "it is killed" else -signal.SIGTERM)
        wait_for(tmp_path, 0)
