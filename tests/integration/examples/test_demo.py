"""`make demo`: the whole system in eleven processes, and what it shows of the paper."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.live

ROUNDS = 6
REFUSED = {2, 5, 8}


def play(folder: Path, *, kill_after: str | None = None) -> str:
    command = [sys.executable, "-u", "-m", "qidpfl", "demo", "--rounds", str(ROUNDS), "--unsafe-seed", "3"]
    with subprocess.Popen(
        [*command, "--keep", str(folder), "--chart", str(folder / "chart.png")],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "200"},
    ) as demo:
        assert demo.stdout is not None
        said = []
        for line in demo.stdout:
            said.append(line)
            if kill_after is not None and re.match(kill_after, line):
                # Once: the summary has lines that look the same.
                kill_after = None
                kill_coordinator(demo.pid)
    assert demo.returncode == 0, "".join(said)
    return "".join(said)


def kill_coordinator(demo: int) -> None:
    """Kill the demo's coordinator from outside, while a request waits for its answer."""
    children = Path(f"/proc/{demo}/task/{demo}/children").read_text().split()
    (pid,) = [int(pid) for pid in children if b"qidpfl_server" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    os.killpg(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 30.0
    while not has_unread_request(int(words[words.index("--port") + 1])):
        assert time.monotonic() < deadline, "no request reached the coordinator"
        time.sleep(0.02)
    os.killpg(pid, signal.SIGKILL)


def has_unread_request(port: int) -> bool:
    """Whether bytes that were sent to this port have not been read yet."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, queues, *_ = line.split()
        if state == "01" and int(local.partition(":")[2], 16) == port and int(queues.partition(":")[2], 16) > 0:
            return True
    return False


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return play(folder), folder


def rounds_of(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines() if re.match(r"\s+\d+\s+\d+\.\d\d\s+\.", line)]


def clients_of(output: str) -> dict[int, tuple[float, float, str]]:
    """Privacy value, label distance and verdict by client."""
    rows = re.findall(r"^\s+(\d+)\s+\d+\s+(\d\.\d\d)\s+(\d\.\d\d)\s+(selected|refused)", output, re.MULTILINE)
    return {int(ordinal): (float(value), float(distance), verdict) for ordinal, value, distance, verdict in rows}


def test_clients_with_two_labels_are_refused_by_their_distance(undisturbed: tuple[str, Path]) -> None:
    clients = clients_of(undisturbed[0])
    assert len(clients) == 10
    assert {ordinal for ordinal, (_, _, verdict) in clients.items() if verdict == "refused"} == REFUSED
    assert (
        min(clients[ordinal][1] for ordinal in REFUSED)
        > 1
        > max(distance for ordinal, (_, distance, _) in clients.items() if ordinal not in REFUSED)
    )


def test_clients_with_lower_privacy_values_sell_more_and_rewards_grow(undisturbed: tuple[str, Path]) -> None:
    clients, rounds = clients_of(undisturbed[0]), rounds_of(undisturbed[0])
    values = [clients[ordinal][0] for ordinal in sorted(set(clients) - REFUSED)]
    assert len(rounds) == ROUNDS
    for row in rounds:
        budgets = [float(cell) for cell in row[2 : 2 + len(values)]]
        by_value = [budget for _, budget in sorted(zip(values, budgets, strict=True))]
        assert by_value == sorted(by_value, reverse=True) and by_value[0] > 1.4 * by_value[-1]
    rewards = [float(row[1]) for row in rounds]
    assert rewards == sorted(rewards) and rewards[-1] > 1.15 * rewards[0]


def test_accuracy_rises_above_chance_and_money_adds_up(undisturbed: tuple[str, Path]) -> None:
    output, folder = undisturbed
    accuracies = [float(row[-2]) for row in rounds_of(output)]
    assert accuracies[-1] > 0.4 and accuracies[-1] > accuracies[0]
    assert ": exactly." in output
    assert "0 violated" in output
    assert (folder / "chart.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_a_killed_coordinator_only_delays_the_demo(undisturbed: tuple[str, Path], tmp_path: Path) -> None:
    output = play(tmp_path, kill_after=r"\s+2\s+\d+\.")
    assert "the coordinator was killed" in output
    assert rounds_of(output) == rounds_of(undisturbed[0])
    assert clients_of(output) == clients_of(undisturbed[0])
    assert ": exactly." in output
    assert "0 violated" in output
