"""A coordinator that wastes time, requests, memory or the owner's eyes, against the real client process.

The client ends each call at its deadline, sends few requests, refuses large answers before they cost memory, and shows
printable text only.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from qidpfl_client.sdk.answers import SPEC
from qidpfl_shared.protocol.errors import ErrorCode, Problem
from support.peers.hostile_coordinator import CODE, NOW, TASK, HostileCoordinator, serving
from support.peers.raw_server import SLOW_ANSWERS, Script, raw_server

pytestmark = pytest.mark.live

# A timeout of half a second instead of thirty, and no time for large answers; at the end, the peak of the memory in kB.
CLIENT = """
import atexit, functools, pathlib, re, sys
from qidpfl_client.cli import app
from qidpfl_client.sdk import transport
transport._SLOWEST_BYTES_PER_S = float("inf")
app.connect = functools.partial(app.connect, timeout_s=0.5)
peak = pathlib.Path(sys.argv.pop(1))
@atexit.register
def write_peak():
    peak.write_text(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
app.main()
"""
# Torch and its threads alone take 320 to 420 MB. Before the limits, such an answer took 3,600 MB.
MEMORY_MB = 600
FLOOD_S = 4.0
# An escape sequence, a C1 control and a bidirectional override.
ESCAPES = "\x1b[2J\x1b]0;owned\x07 \x9b31m \u202egnp.exe"


@dataclass(frozen=True)
class ClientProcess:
    """`qidpfl-client run` in a folder of its own."""

    folder: Path

    def start(self, url: str, *options: str) -> "subprocess.Popen[str]":
        words = ["run", "--server", url, "--code", CODE, "--first-contact", "0", "--patience", "0", *options]
        return subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(self.folder / "peak"), *words],
            cwd=self.folder,
            env=os.environ,
            stderr=subprocess.PIPE,
            text=True,
        )

    def refused(self, url: str, *options: str) -> str:
        """The one line with which the client stops."""
        process = self.start(url, *options)
        _, said = process.communicate(timeout=120)
        assert process.returncode == 1 and "Traceback" not in said, said
        assert said.replace("\n", "").isprintable()
        *_, line = said.splitlines()
        return line

    @property
    def peak_mb(self) -> float:
        return int((self.folder / "peak").read_text()) / 1024


@pytest.fixture
def client(tmp_path: Path) -> ClientProcess:
    return ClientProcess(tmp_path)


# --- time ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", SLOW_ANSWERS)
def test_a_coordinator_that_answers_slowly_is_given_up(answer: Script, client: ClientProcess) -> None:
    with raw_server(answer) as server:
        line = client.refused(server.url)
        assert len(server.opened_at) == 3
        assert server.opened_at[-1] - server.opened_at[0] < 5
    assert "does not answer" in line


# --- requests --------------------------------------------------------------------------------------------------------


def flooded(client: ClientProcess, hostile: HostileCoordinator, *options: str) -> list[tuple[float, str]]:
    """The requests of some seconds, from the first poll on."""
    with serving(hostile):
        process = client.start(hostile.url, *options)
        deadline = time.monotonic() + 60
        while not (polls := [at for at, request in hostile.requests if "current" in request]):
            assert time.monotonic() < deadline and process.poll() is None, process.communicate()
            time.sleep(0.02)
        time.sleep(max(0.0, polls[0] + FLOOD_S - time.monotonic()))
        seen = [(at, request) for at, request in hostile.requests if at >= polls[0]]
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
    return seen


def test_polls_that_are_answered_at_once_are_few(client: ClientProcess) -> None:
    seen = flooded(client, HostileCoordinator(instead={("GET", "current"): (204, None)}))
    # A client that waits for the first round also asks now and then who is there.
    assert {request.rpartition("/")[2] for _, request in seen} <= {"current", "selection"}
    assert sum(request.endswith("selection") for _, request in seen) <= FLOOD_S
    assert 3 <= len(seen) <= 6 * FLOOD_S


def test_the_same_news_again_and_again_is_answered_once(client: ClientProcess) -> None:
    hostile = HostileCoordinator()
    receipt = {"round_number": 1, "state": "declined", "rho": None, "recorded_at": NOW}
    hostile.instead = {
        ("GET", "current"): (200, {"task_state": "training", "round": hostile.offer()}),
        ("PUT", "budget"): (200, receipt),
    }
    seen = [request.rpartition("/")[2] for _, request in flooded(client, hostile, "--min-utility", "1000000")]
    assert len(seen) <= 6 * FLOOD_S
    assert [request for request in seen if request != "current"] == ["selection", "budget"]


# --- memory ----------------------------------------------------------------------------------------------------------


def wide(size: int) -> bytes:
    """Objects without end: each costs many times its bytes."""
    return b'{"entries":[' + b",".join([b'{"a":1}'] * (size // 8)) + b"]}"


def flat(size: int) -> bytes:
    """An object with members without end: each would be an error."""
    return b"{" + b",".join(b'"%d":1' % number for number in range(size // 10)) + b"}"


def nested(size: int) -> bytes:
    return b"[" * size


@pytest.mark.parametrize(
    ("body", "size"), [(wide, 15 << 20), (wide, 900_000), (flat, SPEC - 100), (nested, SPEC - 100)]
)
def test_a_large_answer_costs_little_memory(body: Callable[[int], bytes], size: int, client: ClientProcess) -> None:
    with serving(HostileCoordinator(instead={("GET", TASK): (200, body(size))})) as hostile:
        line = client.refused(hostile.url)
    assert f"the answer to GET /v1/tasks/{TASK} is not valid" in line
    assert client.peak_mb < MEMORY_MB


@pytest.mark.parametrize(
    "where", [("POST", "clients"), ("GET", "current"), ("GET", "1")], ids=["enrolment", "announcement", "round"]
)
def test_no_other_answer_is_large(where: tuple[str, str], client: ClientProcess) -> None:
    status = 201 if where[0] == "POST" else 200
    with serving(HostileCoordinator(instead={where: (status, wide(15 << 20))})) as hostile:
        line = client.refused(hostile.url)
    assert re.search(r"is not valid: longer than \d+ bytes", line)
    assert client.peak_mb < MEMORY_MB


# --- text ------------------------------------------------------------------------------------------------------------


def problem(detail: str) -> tuple[int, bytes]:
    body = json.loads(Problem.of(ErrorCode.TASK_FULL).model_dump_json()) | {"detail": detail}
    return 409, json.dumps(body).encode()


@pytest.mark.parametrize(
    ("instead", "said"),
    [
        ({("POST", "clients"): problem(ESCAPES)}, "The task has no place left: [2J ]0;owned"),
        ({("GET", "current"): (200, {"task_state": "failed", "reason": ESCAPES})}, "is not valid: /reason"),
        # The client ignores fields that it does not know.
        ({("GET", "selection"): (200, {ESCAPES: ESCAPES, "profiles": ESCAPES})}, "is not valid: /"),
    ],
    ids=["problem", "reason", "unknown field"],
)
def test_escape_sequences_of_the_coordinator_are_not_shown(
    instead: dict[tuple[str, str], tuple[int, Any]], said: str, client: ClientProcess
) -> None:
    with serving(HostileCoordinator(instead=instead)) as hostile:
        assert said in client.refused(hostile.url)


def test_a_reason_with_other_control_characters_is_shown_without_them(client: ClientProcess) -> None:
    news = {"task_state": "failed", "reason": "gone \x9b31m \u202egnp.exe"}
    with serving(HostileCoordinator(instead={("GET", "current"): (200, news)})) as hostile:
        process = client.start(hostile.url)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 0 and said.replace("\n", "").isprintable()
    assert "the task is failed: gone  31m  gnp.exe" in said
