"""A custom workload, from a CSV file to a trained model: named on both command lines, without a hand-written layout."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import server_command
from support.coordinators import NO_TIMEOUTS, running

pytestmark = pytest.mark.live

EXAMPLES = Path(__file__).parents[3] / "examples"
OVERRIDES = {
    "workload": {"partition": {"kind": "iid", "clients": 4, "concentration": None, "two_class_ordinals": []}},
    "selection": {"rule": "all"},
    "game": {"horizon": 15},
    "privacy": {"lifetime_rho": 30.0},
    "rounds": NO_TIMEOUTS | {"expected_clients": 4},
}


def test_a_csv_file_becomes_a_task_and_is_learnt(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with running(state, arguments=("--workload", f"{EXAMPLES / 'csv_workload.py'}:Cells")) as coordinator:
        create = ["tasks", "create", "cells", "--state-dir", str(state), "--preset", "digits"]
        create += ["--single-use-codes", "0", "--workload", f"{EXAMPLES / 'csv_workload.py'}:Cells"]
        made = server_command(*create, "--overrides", json.dumps(OVERRIDES))
        assert made.returncode == 0, made.stderr
        task_id, code = made.stdout.split()
        command = [sys.executable, "-m", "qidpfl_client", "fleet", "--server", coordinator.url, "--code", code]
        command += ["--clients", "4", "--journals", str(tmp_path / "journals")]
        command += ["--workload", f"{EXAMPLES / 'csv_workload.py'}:Cells", "--privacy-value", "1.0"]
        # Made-up records, and a task of 30: more than the client's defaults.
        command += ["--lifetime-rho", "30", "--rho-cap", "0.5", "--histogram-rho", "0.1"]
        fleet = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert fleet.returncode == 0, fleet.stderr
        with coordinator.admin as admin:
            task = admin.get(f"/v1/tasks/{task_id}").json()
            last = admin.get(f"/v1/tasks/{task_id}/rounds/15").json()
    assert task["state"] == "finished"
    assert [tensor["shape"] for tensor in task["spec"]["layout"]["tensors"]] == [[2, 10], [2]]
    # Two thirds of the records are benign: that much is chance.
    assert last["accuracy"] > 0.75
    assert "0 violated" in coordinator.audit()
