"""Three coordinators without a shared folder, behind a proxy that keeps no client at one of them: one is killed."""

import json
from pathlib import Path

import pytest

from support.containers import DEBIAN, NO_TIMEOUTS, Testbed, cleaned_up, wait_for_the_end, wait_until

pytestmark = [pytest.mark.live, pytest.mark.long]

OVERRIDES = {"game": {"horizon": 6}, "rounds": NO_TIMEOUTS | {"expected_clients": 5}}
REPLICAS = ("coordinator", "coordinator-2", "coordinator-3")


def test_a_task_finishes_on_replicas_of_which_one_is_killed(images: None, project: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    settings = {
        "TESTBED_OVERRIDES": json.dumps(OVERRIDES),
        "TESTBED_POSTGRES_IMAGE": DEBIAN,
        "TESTBED_PROXY_IMAGE": DEBIAN,
        "TESTBED_SEAWEEDFS_IMAGE": DEBIAN,
        "TESTBED_RESULTS": str(tmp_path),
    }
    with cleaned_up(Testbed(project, overlays=("replicas",), environment=settings)) as testbed:
        testbed.done("up", "-d")
        clients = testbed.containers("client")
        wait_until(lambda: all(": label distance" in client.log() for client in clients), "the selection is made")
        playing = next(client for client in clients if "selected: label distance" in client.log())
        wait_until(lambda: playing.last_delivered() >= 1, "a round is played")
        killed = testbed.one("coordinator-2")
        killed.do("kill")
        wait_until(lambda: playing.last_delivered() >= 3, "the others play on")
        killed.do("start")
        wait_for_the_end(testbed, *REPLICAS, "client")

        ended = [*(testbed.one(name) for name in REPLICAS), *clients]
        assert [container.exit_code() for container in ended] == [0] * len(ended)
        task = json.loads((tmp_path / "testbed" / "task.json").read_text())
        assert (task["state"], task["settled_rounds"]) == ("finished", 6)
        assert "0 violated" in testbed.done("run", "--rm", "--no-deps", "-T", "coordinator", "audit")
