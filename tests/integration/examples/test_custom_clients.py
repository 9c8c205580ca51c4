"""The clients in examples/, unchanged, each as several processes against a live coordinator."""

import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.datasets import load_digits

from qidpfl_client.api import AdminApi, connect
from qidpfl_shared.core.noise_audit import NoiseVerdict
from qidpfl_shared.core.privacy.mechanisms import GradientOnceMechanism
from qidpfl_shared.protocol.ledger import Ledger
from qidpfl_shared.protocol.messages import RoundResult, TaskView
from support.coordinators import Coordinator, running

pytestmark = pytest.mark.live

EXAMPLES = Path(__file__).parents[3] / "examples"
CLIENTS, ROUNDS = 4, 6
RECORDS = 144  # of each: every tenth of 1437, from the first four on
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="Node 20 or later is not installed")


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with running(tmp_path_factory.mktemp("custom")) as live:
        yield live
        assert "0 violated" in live.audit()


def new_task(coordinator: Coordinator, name: str, folder: Path) -> tuple[str, Path]:
    """A task's id, and the file with its enrolment code."""
    # The audit may accuse an honest client by chance, but not in the lifetime of this test.
    task_id, code = coordinator.create_task(
        name,
        game={"horizon": ROUNDS},
        rounds={"expected_clients": CLIENTS},
        privacy={"audit_alpha": 1e-9},
    )
    file = folder / "code"
    file.write_text(f"{code}\n")
    return task_id, file


def start(command: list[str | Path], said: IO[str] | int | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdin=said, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def start_node(coordinator: Coordinator, code: Path, folder: Path, number: int) -> subprocess.Popen[str]:
    """A Node client with a shard of the digits."""
    assert NODE is not None
    data, shard = load_digits(), slice(number, 1437, 10)
    records = np.column_stack([data.data[shard] / 16, data.target[shard]])
    np.savetxt(folder / f"records-{number}.csv", records, delimiter=",", fmt="%.6g")
    files = [code, folder / f"records-{number}.csv", folder / f"state-{number}"]
    return start([NODE, EXAMPLES / "custom_client.mjs", coordinator.url, *files])


def ledgers_of(processes: list[subprocess.Popen[str]]) -> list[Ledger]:
    """What they print at their end."""
    ended = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), [error for _, error in ended]
    return [Ledger.model_validate_json(said) for said, _ in ended]


def outcome(coordinator: Coordinator, task_id: str) -> tuple[TaskView, list[RoundResult]]:
    token = (coordinator.state_dir / "admin.token").read_text().strip()
    with connect(coordinator.url) as http:
        admin = AdminApi(http, token=token)
        return admin.task(task_id), admin.rounds(task_id)


def pure_noise(coordinator: Coordinator, ledgers: list[Ledger]) -> npt.NDArray[np.float64]:
    """What was uploaded for pixels that are black in all digits, whose gradients are 0, in units of the noise owed."""
    black = np.flatnonzero(load_digits().data.max(axis=0) == 0)
    drawn = []
    for entry in (entry for ledger in ledgers for entry in ledger.entries if entry.release != "histogram"):
        # Small updates are rows of the database.
        with closing(sqlite3.connect(coordinator.state_dir / "coordinator.db")) as database:
            ((stored,),) = database.execute("select data from small_blobs where digest = ?", [entry.digest])
        update = np.frombuffer(stored, dtype="<f4")
        noise_std = GradientOnceMechanism(clip_norm=1.0).noise_std(rho=entry.rho, size=RECORDS)
        drawn.append(update[:640].reshape(10, 64)[:, black].ravel() / noise_std)
    return np.concatenate(drawn).astype(np.float64)


def check(coordinator: Coordinator, task_id: str, ledgers: list[Ledger]) -> None:
    """All rounds are settled, each client is paid in each for noise that is in its update, and the model has learnt."""
    task, rounds = outcome(coordinator, task_id)
    drawn = pure_noise(coordinator, ledgers)
    # Of so many float32 values two may be the same by chance; noise that is used again repeats all 30 of an update.
    assert drawn.size == 30 * CLIENTS * ROUNDS and drawn.size - len(set(drawn)) < 5
    # More than six standard errors on either side.
    assert 0.83 < drawn.std() < 1.17 and abs(drawn.mean()) < 0.23
    assert (task.state, task.reason, task.settled_rounds) == ("finished", "horizon_reached", ROUNDS)
    assert sum(ledger.earned_micro for ledger in ledgers) == task.paid_micro > 0
    for ledger in ledgers:
        assert [entry.release for entry in ledger.entries] == ["histogram", *(f"round/{t + 1}" for t in range(ROUNDS))]
        assert all(entry.payment_micro for entry in ledger.entries[1:])
        assert ledger.spent_rho is not None and ledger.spent_rho <= 2.0
    for result in rounds:
        assert result.clients is not None and len(result.clients) == len(ledgers) and result.kept_micro == 0
        assert {client.verdict for client in result.clients} <= {NoiseVerdict.CONSISTENT, NoiseVerdict.UNDECIDABLE}
        # Each client gave the best answer, as planned: no other budget would have earned it more.
        assert all(client.regret is not None and client.regret < 1e-6 for client in result.clients)
    accuracy = rounds[-1].accuracy
    assert accuracy is not None and accuracy > 0.3, [result.accuracy for result in rounds]


def test_python_clients_on_the_sdk_finish_a_task_are_paid_and_learn(coordinator: Coordinator, tmp_path: Path) -> None:
    task_id, code = new_task(coordinator, "python", tmp_path)
    processes = []
    for _ in range(CLIENTS):
        with code.open() as said:
            processes.append(start([sys.executable, EXAMPLES / "custom_client.py", coordinator.url], said))
    ledgers = ledgers_of(processes)
    check(coordinator, task_id, ledgers)


def test_the_python_client_has_at_most_thirty_lines_of_code() -> None:
    source = (EXAMPLES / "custom_client.py").read_text()
    _, _, after_docstring = source.split('"""')
    lines = [line.strip() for line in after_docstring.splitlines()]
    assert len([line for line in lines if line and not line.startswith("#")]) <= 30
    assert "torch" not in after_docstring


@needs_node
def test_node_clients_without_an_sdk_finish_a_task_are_paid_and_learn(coordinator: Coordinator, tmp_path: Path) -> None:
    task_id, code = new_task(coordinator, "node", tmp_path)
    ledgers = ledgers_of([start_node(coordinator, code, tmp_path, number) for number in range(CLIENTS)])
    check(coordinator, task_id, ledgers)


@needs_node
def test_a_node_client_that_was_killed_goes_on_as_the_same_client_with_the_same_bytes(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    task_id, code = new_task(coordinator, "killed", tmp_path)
    first = tmp_path / "state-0" / "update.1"
    killed = start_node(coordinator, code, tmp_path, 0)
    others = [start_node(coordinator, code, tmp_path, number) for number in range(1, CLIENTS)]
    while not first.exists():
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.01)
    killed.kill()
    killed.communicate()
    noised = first.read_bytes()
    ledgers = ledgers_of([start_node(coordinator, code, tmp_path, 0), *others])
    check(coordinator, task_id, ledgers)
    assert first.read_bytes() == noised


@needs_node
def test_the_node_client_refuses_plain_http_to_another_machine(tmp_path: Path) -> None:
    assert NODE is not None
    script = EXAMPLES / "custom_client.mjs"
    _, said = start([NODE, script, "http://coordinator.example", "code", "records", tmp_path]).communicate(timeout=60)
    assert "plain http to coordinator.example" in said


def test_no_package_is_needed_for_the_node_client() -> None:
    source = (EXAMPLES / "custom_client.mjs").read_text()
    imported = [line.split('"')[1] for line in source.splitlines() if line.startswith("import ")]
    assert imported and all(name.startswith("node:") for name in imported)
