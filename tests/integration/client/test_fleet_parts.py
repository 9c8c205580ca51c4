"""Several fleets play parts of one federation, as the tasks of a Slurm array do."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from qidpfl_client.cli.app import app
from support.coordinators import NO_TIMEOUTS, Coordinator
from support.synthetic_clients import TESTBED_LIMITS

pytestmark = pytest.mark.live

CLIENTS = 5
SEEDS = ("--seed", "3", "--unsafe-seed", "4")


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with Coordinator(tmp_path_factory.mktemp("coordinator")) as live:
        yield live


def task(coordinator: Coordinator, name: str) -> tuple[str, str]:
    rounds = NO_TIMEOUTS | {"expected_clients": CLIENTS, "min_clients": CLIENTS, "min_updates": CLIENTS}
    partition = {"kind": "iid", "clients": CLIENTS, "concentration": None, "two_class_ordinals": []}
    changes: dict[str, Any] = {"workload": {"partition": partition}, "selection": {"rule": "all"}}
    return coordinator.create_task(name, rounds=rounds, game={"horizon": 2}, **changes)


def words(coordinator: Coordinator, code: str, journals: Path, *more: str) -> list[str]:
    given = ["fleet", "--server", coordinator.url, "--code", code, "--journals", str(journals), "--workers", "1"]
    return [*given, *TESTBED_LIMITS, *SEEDS, *more]


def outcome(coordinator: Coordinator, task_id: str) -> tuple[str, str, list[dict[str, Any]]]:
    with coordinator.admin as admin:
        state = admin.get(f"/v1/tasks/{task_id}").json()["state"]
        digest = admin.get(f"/v1/tasks/{task_id}/models").json()[-1]["digest"]
        clients = admin.get(f"/v1/tasks/{task_id}/clients").json()
    return state, digest, [{"ordinal": one["ordinal"], "value": one["privacy_value"]} for one in clients]


def test_two_parts_play_one_task_and_give_the_model_of_the_whole_fleet(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    whole, code = task(coordinator, "whole")
    done = CliRunner().invoke(app, words(coordinator, code, tmp_path / "whole", "--clients", str(CLIENTS)))
    assert done.exit_code == 0, done.stderr
    parted, code = task(coordinator, "parted")
    # The same folder for both: as on a shared disk.
    command = [sys.executable, "-m", "qidpfl_client", *words(coordinator, code, tmp_path / "parts")]
    parts = [
        subprocess.Popen([*command, "--ordinals", ordinals], stderr=subprocess.PIPE, text=True)
        for ordinals in ("2-4", "0-1")
    ]
    said = [part.communicate(timeout=120)[1] for part in parts]
    assert [part.returncode for part in parts] == [0, 0], said
    assert "3 of 3 members ended well" in said[0] and "2 of 2 members ended well" in said[1]
    assert outcome(coordinator, parted) == outcome(coordinator, whole)
    assert outcome(coordinator, parted)[0] == "finished"
    journals = sorted(str(path.relative_to(tmp_path / "parts")) for path in (tmp_path / "parts").rglob("*.sqlite"))
    assert journals == [
        *(f"ordinals-0-1/client-0000{ordinal}.sqlite" for ordinal in (0, 1)),
        *(f"ordinals-2-4/client-0000{ordinal}.sqlite" for ordinal in (2, 3, 4)),
    ]
    assert "0 violated" in coordinator.audit()


def test_ordinals_that_the_task_does_not_have_are_one_line(coordinator: Coordinator, tmp_path: Path) -> None:
    task_id, code = task(coordinator, "small")
    refused = CliRunner().invoke(app, words(coordinator, code, tmp_path, "--ordinals", "3-7"))
    assert refused.exit_code == 1 and refused.stderr.splitlines()[-1] == (
        "qidpfl-client: task small has 5 places, with the ordinals 0 to 4: there is no ordinal 7"
    )
    with coordinator.admin as admin:
        assert admin.get(f"/v1/tasks/{task_id}").json()["clients"] == 0
    assert list(tmp_path.iterdir()) == []


def test_a_part_never_takes_a_place_outside_of_its_range(coordinator: Coordinator, tmp_path: Path) -> None:
    """A member whose place another client has gives up: the other free places belong to other parts."""
    task_id, code = task(coordinator, "taken")
    with coordinator.admin as admin:
        body = {"enrolment_code": code, "enrolment_key": "0" * 64, "ordinal": 1}
        admin.post(f"/v1/tasks/{task_id}/clients", json=body).raise_for_status()
        done = CliRunner().invoke(app, words(coordinator, code, tmp_path, "--ordinals", "1"))
        clients = admin.get(f"/v1/tasks/{task_id}/clients").json()
    assert done.exit_code == 1 and "ordinal 1 is taken" in done.stderr and "Traceback" not in done.stderr
    assert [one["ordinal"] for one in clients] == [1]
    assert "0 of 1 members ended well" in done.stderr
