"""The three curl commands in README.md, unchanged, against a live coordinator."""

import json
import os
import re
import subprocess
import threading
from pathlib import Path

import pytest

from support.coordinators import ScriptedClient, play_to_the_end, running

pytestmark = pytest.mark.live

README = Path(__file__).parents[3] / "README.md"


def documented_commands() -> list[str]:
    """The commands in the one block of shell, each with the comment above it."""
    (block,) = re.findall(r"^```sh\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    return str(block).split("\n\n")


def test_the_three_core_endpoints_work_as_documented(tmp_path: Path) -> None:
    store_histogram, read_reward, upload_update = documented_commands()
    with running(tmp_path / "state") as coordinator:
        task_id, code = coordinator.create_task(game={"horizon": 1}, rounds={"expected_clients": 3})
        others = [
            ScriptedClient(coordinator.url, task_id, code, key=f"other-{number}".ljust(16, "-")) for number in (1, 2)
        ]
        rest = threading.Thread(target=play_to_the_end, args=[others])
        rest.start()
        client = ScriptedClient(coordinator.url, task_id, code, key="reader-of-the-readme")
        client.enrol()
        variables = {
            "TASK": f"{coordinator.url}/v1/tasks/{task_id}",
            "AUTH": f"Authorization: Bearer {client.token}",
            "PATH": os.environ["PATH"],
        }

        def run(command: str) -> str:
            shell = ["bash", "-euo", "pipefail", "-c", command]
            ended = subprocess.run(shell, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=60)
            assert ended.returncode == 0, ended.stderr
            return ended.stdout

        assert json.loads(run(store_histogram))["signature"] is not None
        offer = json.loads(run(read_reward))["round"]
        assert (offer["round_number"], offer["standing"]) == (1, "invited")
        assert offer["reward_micro"] > 0
        client.declare(offer).raise_for_status()
        (tmp_path / "update.f32").write_bytes(client.update(offer))
        receipt = json.loads(run(upload_update))
        rest.join(timeout=60)
        ledger = client.http.get("/clients/me/ledger").raise_for_status().json()
        assert "0 violated" in coordinator.audit()

    assert receipt["round_number"] == 1
    assert [entry["release"] for entry in ledger["entries"]] == ["histogram", "round/1"]
    assert ledger["entries"][0]["proven_rho"] == 0.1
    assert ledger["entries"][1]["rho"] == 0.05 and ledger["earned_micro"] > 0
