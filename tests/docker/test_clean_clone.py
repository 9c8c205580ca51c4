"""A clean clone: one command runs a task to its end, and `down` leaves nothing."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from support.containers import NO_TIMEOUTS, ROOT, Testbed, cleaned_up, output

pytestmark = pytest.mark.live

SHORT = {"game": {"horizon": 3}, "rounds": NO_TIMEOUTS | {"expected_clients": 8}}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The files of a clone of this folder."""
    listed = output("git", "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    for name in filter(lambda name: (ROOT / name).is_file(), listed):
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    return tmp_path


def test_one_command_leads_to_a_finished_task_and_down_leaves_nothing(images: None, clone: Path, project: str) -> None:
    with cleaned_up(Testbed(project, clone, environment={"TESTBED_OVERRIDES": json.dumps(SHORT)})) as testbed:
        said = testbed.done("up", "--build", "--scale", "client=8", "--exit-code-from", "coordinator")
        assert [client.exit_code() for client in testbed.containers("client")] == [0] * 8
        assert len(re.findall(r"round 3: delivered at rho", said)) == 6
        assert "refused: label distance" in said

        # The user of the container cannot write there: one line says so, and `make results` still copies the results.
        told = [line for line in said.splitlines() if "results_not_written" in line]
        assert len(told) == 1 and "Permission denied" in told[0] and "make results" in told[0]
        done = subprocess.run(
            ["make", "results"],
            cwd=clone,
            env=os.environ | {"COMPOSE_PROJECT_NAME": project},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        task = json.loads((clone / "results" / "testbed" / "task.json").read_text())
        assert (task["state"], task["settled_rounds"]) == ("finished", 3)
        assert (clone / "results" / "testbed" / "model-3.safetensors").stat().st_size > 0

        used = testbed.volumes()
        assert len(used) == 2 + 8
        testbed.done("down", "-v")
        assert testbed.leftovers() == []
        assert not used & set(output("docker", "volume", "ls", "-q").split())
