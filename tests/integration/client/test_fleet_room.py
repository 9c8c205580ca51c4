"""A fleet beside other clients, larger than its task, and with drop-outs."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from qidpfl_client.cli.app import app
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.task_spec.sizes import sized
from support.coordinators import NO_TIMEOUTS, Coordinator

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with Coordinator(tmp_path_factory.mktemp("coordinator")) as live:
        yield live


def fleet(coordinator: Coordinator, code: str, folder: Path, *more: str) -> Result:
    given = ["fleet", "--server", coordinator.url, "--code", code, "--journals", str(folder / "journals")]
    return CliRunner().invoke(app, [*given, "--public-data", *more])


def test_a_fleet_that_is_too_large_is_told_so_before_it_enrols(coordinator: Coordinator, tmp_path: Path) -> None:
    task_id, code = coordinator.create_task("small", rounds=NO_TIMEOUTS)
    refused = fleet(coordinator, code, tmp_path, "--clients", "100")
    assert refused.exit_code == 1
    assert "has 10 places, not 100: use --clients 10, or a task of that size" in refused.stderr
    assert "--clients 100" in refused.stderr and "Traceback" not in refused.stderr
    with coordinator.admin as admin:
        assert admin.get(f"/v1/tasks/{task_id}").json()["clients"] == 0
    assert not (tmp_path / "journals").exists()


def test_too_few_single_use_codes_are_one_line(coordinator: Coordinator, tmp_path: Path) -> None:
    _, code = coordinator.create_task("coded", rounds=NO_TIMEOUTS)
    codes = tmp_path / "codes"
    codes.write_text(f"{code}\n{code}2\n")
    given = ["fleet", "--server", coordinator.url, "--code-file", str(codes), "--clients", "5"]
    refused = CliRunner().invoke(app, given)
    assert refused.exit_code == 1 and "there are 2 single-use codes for 5 members" in refused.stderr


def test_a_fleet_joins_beside_another_client_and_takes_the_free_places(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    sizes: dict[str, Any] = {"rounds": NO_TIMEOUTS | {"expected_clients": 4}, "game": {"horizon": 1}}
    partition = {"kind": "iid", "clients": 4, "concentration": None, "two_class_ordinals": []}
    task_id, code = coordinator.create_task("beside", **sizes, workload={"partition": partition})
    command = [sys.executable, "-m", "qidpfl_client", "run", "--server", coordinator.url, "--code", code]
    command += ["--public-data", "--no-slots", "--journal", str(tmp_path / "first.sqlite")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as first, coordinator.admin as admin:
        deadline = time.monotonic() + 60
        while admin.get(f"/v1/tasks/{task_id}").json()["clients"] == 0:
            assert time.monotonic() < deadline and first.poll() is None
            time.sleep(0.05)
        too_many = fleet(coordinator, code, tmp_path / "x", "--clients", "4")
        assert "4 places, 1 of them taken, not 4: use --clients 3" in too_many.stderr
        done = fleet(coordinator, code, tmp_path, "--clients", "3")
        _, said = first.communicate(timeout=60)
        clients = admin.get(f"/v1/tasks/{task_id}/clients").json()
    assert done.exit_code == 0 and "3 of 3 members ended well" in done.stderr, done.stderr
    assert first.returncode == 0 and "finished" in said
    assert [one["ordinal"] for one in clients] == [0, 1, 2, 3]


def test_a_testbed_of_three_clients_trains_in_any_order_of_enrolment(coordinator: Coordinator, tmp_path: Path) -> None:
    sizes = sized(preset("digits"), clients=3, rounds=1)
    task_id, code = coordinator.create_task("three", **sizes | {"rounds": NO_TIMEOUTS | sizes["rounds"]})
    done = fleet(coordinator, code, tmp_path, "--clients", "3")
    assert done.exit_code == 0 and "3 of 3 members ended well" in done.stderr, done.stderr
    with coordinator.admin as admin:
        clients = admin.get(f"/v1/tasks/{task_id}/clients").json()
    assert [one["state"] for one in clients] == ["selected"] * 3


def test_a_round_does_not_wait_for_drop_outs_that_withdraw(coordinator: Coordinator, tmp_path: Path) -> None:
    partition = {"kind": "iid", "clients": 8, "concentration": None, "two_class_ordinals": []}
    rounds = NO_TIMEOUTS | {"expected_clients": 8, "max_attempts": 3}
    task_id, code = coordinator.create_task(
        "dropping", rounds=rounds, workload={"partition": partition}, game={"horizon": 3}, selection={"rule": "all"}
    )
    begun = time.monotonic()
    done = fleet(coordinator, code, tmp_path, "--clients", "8", "--dropout", "0.3")
    took = time.monotonic() - begun
    with coordinator.admin as admin:
        state = admin.get(f"/v1/tasks/{task_id}").json()["state"]
    assert done.exit_code == 0, done.stderr
    assert "dropped out" in done.stderr and state == "finished"
    # One silent drop-out would make a round last twenty minutes here.
    assert took < 120
    assert "0 violated" in coordinator.audit()
