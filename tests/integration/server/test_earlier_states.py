"""A store and client journals of every earlier version open, finish and audit clean with the present code."""

import hashlib
import json
import sqlite3
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from support.coordinators import running

pytestmark = pytest.mark.live

STATES = Path(__file__).parents[2] / "data/states"
ORDINALS = (0, 1, 3)


@pytest.mark.parametrize("archive", sorted(STATES.glob("*.tar.xz")), ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_a_task_of_an_earlier_version_is_finished_and_audits_clean(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as stored:
        stored.extractall(tmp_path, filter="data")
    state_dir, journals = tmp_path / "state", [tmp_path / f"journal-{ordinal}.db" for ordinal in ORDINALS]
    unsent = _unsent_update(journals[0])
    with running(state_dir) as coordinator:
        clients = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "qidpfl_client", "run", "--server", coordinator.url, "--moved"),
                    *("--code-file", str(state_dir / "digits.code"), "--journal", str(journal)),
                ],
                stderr=subprocess.PIPE,
                text=True,
            )
            for journal in journals
        ]
        said = [client.communicate(timeout=120)[1] for client in clients]
        assert [client.returncode for client in clients] == [0, 0, 0], said
        with coordinator.admin as http:
            (task,) = http.get("/v1/tasks").raise_for_status().json()
        assert (task["state"], task["settled_rounds"]) == ("finished", 6)
        assert "0 violated" in coordinator.audit()
    with sqlite3.connect(state_dir / "coordinator.db") as database:
        stored_digests = {row[0] for row in database.execute("select digest from updates where round_number = 4")}
    # The update that was noised before the crash is the one that was sent: nothing was noised twice.
    assert hashlib.sha256(unsent).hexdigest() in stored_digests
    assert _earned(journals) == task["paid_micro"]


def _unsent_update(journal: Path) -> bytes:
    with sqlite3.connect(journal) as database:
        ((payload,),) = database.execute("select payload from entries where payload is not null and acknowledged = 0")
    assert isinstance(payload, bytes)
    return payload


def _earned(journals: list[Path]) -> int:
    """What the clients' own ledgers say that they were paid, in micro-units."""
    commands = [[sys.executable, "-m", "qidpfl_client", "ledger", "--json", "--journal", str(one)] for one in journals]
    ledgers = [json.loads(subprocess.run(command, capture_output=True, check=True).stdout) for command in commands]
    return sum(ledger["earned_micro"] for ledger in ledgers)
