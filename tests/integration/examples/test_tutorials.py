"""The tutorials: their blocks of commands, unchanged but for the port, each in its own shell."""

import csv
import subprocess
from pathlib import Path

import pytest

from support.pages import ROOT
from support.terminals import follow, free_port

pytestmark = pytest.mark.live

TUTORIALS = ROOT / "docs" / "tutorials"
HOSPITALS = {"city": 1400, "valley": 900, "harbour": 600}


def test_three_hospitals_train_as_it_is_printed(tmp_path: Path) -> None:
    port = free_port()
    said = follow(TUTORIALS / "three-hospitals.md", tmp_path, port, {"8443": str(port)})
    federation = tmp_path / "federation"
    for hospital, records in HOSPITALS.items():
        assert f"takes part with {records} records" in said[hospital]
        assert "the task is finished: horizon_reached" in said[hospital]
    assert "checked only" in said["city"]
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


# The README's blocks, which `make test` runs, have most of the same commands.
@pytest.mark.long
def test_a_testbed_runs_as_it_is_printed(tmp_path: Path) -> None:
    port = free_port()
    typed = {"127.0.0.1:8080": f"127.0.0.1:{port}", "qidpfl-server serve": f"qidpfl-server serve --port {port}"}
    said = follow(TUTORIALS / "testbed.md", tmp_path, port, typed)
    assert said["clients"].count("10 of 10 members ended well") == 2
    assert said["operator"].count(", 0 violated") == 2
    assert "wrong_noise" in said["operator"]
    with (tmp_path / "testbed" / "results" / "rounds.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 5


# The three hospitals are its short form: a private CA for coordinator and clients.
@pytest.mark.long
def test_a_coordinator_with_tls_works_as_it_is_printed(tmp_path: Path) -> None:
    port = free_port()
    said = follow(TUTORIALS / "operations.md", tmp_path, port, {"8443": str(port)})
    owners, operator = said["owners"], said["operator"]
    for reason in ("the CA is unknown", "it has no certificate"):
        assert f"\nrefused, because {reason}\n" in owners
    assert "verified" in owners
    assert "4 of 4 members ended well" in owners
    assert '"role":"viewer"' in operator.replace(" ", "")
    assert operator.count(", 0 violated") == 2
