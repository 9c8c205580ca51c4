"""Two coordinators on one PostgreSQL behind the proxy: either may die during a round."""

import json
import re
from pathlib import Path

import pytest

from support.containers import DEBIAN, NO_TIMEOUTS, Container, Testbed, cleaned_up, wait_for_the_end, wait_until

pytestmark = [pytest.mark.live, pytest.mark.long]

OVERRIDES = {
    "rounds": {
        **NO_TIMEOUTS,
        "expected_clients": 5,
        # A client that changes to a coordinator without the round may miss it; the others wait this long.
        "declare_s": 15.0,
        "deliver_s": 15.0,
        # If many clients miss it on a slow machine, the round is repeated.
        "max_attempts": 20,
    }
}


def test_a_task_survives_the_death_of_either_coordinator_during_a_round(
    images: None, project: str, tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    settings = {
        "TESTBED_OVERRIDES": json.dumps(OVERRIDES),
        "TESTBED_POSTGRES_IMAGE": DEBIAN,
        "TESTBED_PROXY_IMAGE": DEBIAN,
        "TESTBED_RESULTS": str(tmp_path),
    }
    with cleaned_up(Testbed(project, overlays=("postgres",), environment=settings)) as testbed:
        testbed.done("up", "-d")
        clients = testbed.containers("client")
        wait_until(lambda: all(": label distance" in client.log() for client in clients), "the selection is made")
        frozen = next(client for client in clients if "selected: label distance" in client.log())
        outlive(testbed.one("coordinator-2"), frozen)
        outlive(testbed.one("coordinator"), frozen)
        wait_for_the_end(testbed, "coordinator", "coordinator-2", "client")

        ended = [testbed.one("coordinator"), testbed.one("coordinator-2"), *clients]
        assert [container.exit_code() for container in ended] == [0] * len(ended)
        task = json.loads((tmp_path / "testbed" / "task.json").read_text())
        assert (task["state"], task["settled_rounds"]) == ("finished", 20)
        assert "0 violated" in testbed.done("run", "--rm", "--no-deps", "-T", "coordinator", "audit")
        for service in ("postgres", "proxy"):
            status = testbed.one(service).inside("cat", "/proc/1/status")
            assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)
            assert not re.search(r"^Uid:\s+0\s", status, re.MULTILINE)


def outlive(coordinator: Container, frozen: Container) -> None:
    """Kill a coordinator while a round is open, continue without it, and start it again."""
    wait_until(lambda: is_healthy(coordinator), "it is ready")
    frozen.do("pause")
    coordinator.do("kill")
    assert coordinator.exit_code() == 137
    frozen.do("unpause")
    played = frozen.last_delivered()
    wait_until(lambda: frozen.last_delivered() > played + 1, "the other coordinator plays on")
    coordinator.do("start")


def is_healthy(coordinator: Container) -> bool:
    return bool(coordinator.state()["Health"]["Status"] == "healthy")
