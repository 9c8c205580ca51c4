"""Many participants in one process: all mechanisms, misbehaviour of every kind, and a kill in the middle."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from qidpfl_client.api import AdminApi, TaskApi, connect
from qidpfl_client.cli.app import app
from qidpfl_client.fleet.behaviours import Behaviour, assign
from qidpfl_client.journal.journal import Journal
from qidpfl_client.journal.ledger import read_ledger
from qidpfl_shared.core.noise_audit import NoiseVerdict
from qidpfl_shared.protocol.ledger import SpendState
from qidpfl_shared.protocol.messages import RoundResult, TaskState
from support.coordinators import NO_TIMEOUTS, Coordinator
from support.synthetic_clients import TESTBED_LIMITS

pytestmark = pytest.mark.live

LOCAL = {"learning_rate": 0.1, "epochs": 1, "batch_size": 16}
STEP_ONE = {"learning_rate": 1.0, "momentum": 0.0}
MEMBERS = 24
WORKERS = 3


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with Coordinator(tmp_path_factory.mktemp("coordinator")) as live:
        yield live


def journals_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("client-*.sqlite"))


@pytest.mark.parametrize(
    ("overrides", "label", "proven"),
    [
        ({}, "gradient_once", True),
        ({"name": "noisy_epochs", "clip_norm": 1.0, **LOCAL}, "noisy_epochs", True),
        ({"name": "update_clip", "clip_norm": 0.5, **LOCAL}, "update_clip", True),
        ({"name": "bolt_on", "feature_norm": 1.0, **LOCAL}, "bolt_on", True),
        (
            {"name": "paper_literal", "clip_norm": 0.5, **LOCAL},
            "paper_literal, heuristic: no privacy guarantee",
            False,
        ),
        (None, "gradient_once, noise off, unprotected", False),
    ],
    ids=["gradient_once", "noisy_epochs", "update_clip", "bolt_on", "paper_literal", "without noise"],
)
def test_every_mechanism_finishes_a_task_and_is_in_the_ledger_with_its_guarantee(
    coordinator: Coordinator, tmp_path: Path, overrides: dict[str, Any] | None, label: str, proven: bool
) -> None:
    changes: dict[str, Any] = {"game": {"horizon": 2}, "selection": {"rule": "all"}}
    if overrides is None:
        changes |= {"game": {"horizon": 2, "policy": "none"}, "privacy": {"noise": False}}
    elif overrides:
        changes |= {"privacy": {"mechanism": overrides}, "aggregation": STEP_ONE}
    rounds = NO_TIMEOUTS | {"expected_clients": 3, "min_clients": 3, "min_updates": 3}
    _, code = coordinator.create_task(f"task-{tmp_path.name}", rounds=rounds, **changes)
    where = ["--server", coordinator.url, "--code", code, "--journals", str(tmp_path), "--workers", "2"]
    where += TESTBED_LIMITS
    consent = [] if proven else ["--accept-unproven"]
    result = CliRunner().invoke(app, ["fleet", "--clients", "3", *where, *consent])
    assert result.exit_code == 0, result.stderr
    # Once for the fleet, before its members start.
    assert ["limits: at most rho 0.5" in line for line in result.stderr.splitlines()].index(True) == 0
    assert result.stderr.count("more than the defaults") == 1
    for journal in journals_of(tmp_path):
        shown = CliRunner().invoke(app, ["ledger", "--json", "--journal", str(journal)])
        body = json.loads(shown.stdout)
        table = CliRunner().invoke(app, ["ledger", "--journal", str(journal)]).stdout
        assert table.count(label) == 2 and body["statement"] in table
        releases = [entry for entry in body["entries"] if entry["release"] != "histogram"]
        assert [(entry["release"], entry["state"]) for entry in releases] == [
            ("round/1", "spent"),
            ("round/2", "spent"),
        ]
        assert {entry["mechanism"] for entry in releases} == {label}
        if proven:
            assert body["spent_rho"] == pytest.approx(0.1 + sum(entry["rho"] for entry in releases))
            assert all(entry["proven_rho"] == pytest.approx(entry["rho"]) for entry in releases)
        elif overrides is None:
            assert body["spent_rho"] is None and "no privacy guarantee" in body["statement"]
        else:
            assert all(entry["proven_rho"] > 2 * entry["rho"] for entry in releases)
    assert "0 violated" in coordinator.audit()
    assert len(journals_of(tmp_path)) == 3


SHARES = {
    Behaviour.FREE_RIDER: 0.1,
    Behaviour.OVER_NOISER: 0.2,
    Behaviour.MISREPORTER: 0.1,
    Behaviour.REPLAYER: 0.15,
}


class RealFleet:
    """`qidpfl-client fleet` with some of everything."""

    def __init__(self, server: str, code: str, journals: Path) -> None:
        self.log = journals / "said.log"
        shares = [text for kind, share in SHARES.items() for text in (f"--{kind.replace('_', '-')}s", str(share))]
        command = [sys.executable, "-m", "qidpfl_client", "fleet", "--server", server, "--code", code]
        command += ["--clients", str(MEMBERS), "--workers", str(WORKERS), "--journals", str(journals), *shares]
        # Little noise on the histograms: see the task.
        command += [*TESTBED_LIMITS, "--histogram-rho", "1"]
        command += ["--dropout", "0.1", "--delay", "0.2", "--privacy-value", "0.95:1.05", "--seed", "1"]
        journals.mkdir(exist_ok=True)
        with self.log.open("a") as log:
            self.process = subprocess.Popen(command, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})
        self.threads = 0

    def wait_for(self, said: str, times: int = 1) -> None:
        deadline = time.monotonic() + 120
        while self.log.read_text().count(said) < times:
            assert time.monotonic() < deadline and self.process.poll() is None, self.log.read_text()
            self.threads = max(self.threads, len(os.listdir(f"/proc/{self.process.pid}/task")))
            time.sleep(0.02)


@pytest.mark.long
def test_a_mixed_fleet_continues_after_a_stop_and_a_kill_and_its_cheats_are_found(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    # The round waits for drop-outs until its deadline: long enough for a slow machine, short enough for a test.
    rounds = {"declare_s": 12.0, "deliver_s": 2.0, "quiet_s": 600.0, "enrolment_window_s": 600.0, "max_attempts": 20}
    # Only honest members have too few classes, and histograms little noise: the selection is not left to chance.
    partition = {"clients": MEMBERS, "two_class_ordinals": [3, 5]}
    task_id, code = coordinator.create_task(
        "fleet",
        game={"horizon": 3, "min_share": 0.0},
        rounds=rounds | {"expected_clients": MEMBERS},
        workload={"partition": partition},
        privacy={"audit": "reject", "histogram_rho": 1.0},
        # A misreporter is 20 % below its true value.
        bounds={"privacy_value_min": 0.5, "privacy_value_max": 2.0},
    )
    stopped = RealFleet(coordinator.url, code, tmp_path)
    stopped.wait_for("takes part", times=2 * WORKERS)
    stopped.process.send_signal(signal.SIGTERM)
    assert stopped.process.wait(60) == 0
    *_, last = stopped.log.read_text().splitlines()
    assert last.startswith("qidpfl-client: stopped;") and "Traceback" not in stopped.log.read_text()
    killed = RealFleet(coordinator.url, code, tmp_path)
    killed.wait_for("round 1: delivered", times=5)
    killed.process.kill()
    assert killed.process.wait() == -signal.SIGKILL
    resumed = RealFleet(coordinator.url, code, tmp_path)
    resumed.wait_for(f"{MEMBERS} of {MEMBERS} members ended well")
    assert resumed.process.wait(60) == 0
    # Four members for each one that trains, the watcher, the main thread, and what the libraries start once.
    assert max(killed.threads, resumed.threads) <= 4 * WORKERS + 8
    assert len(journals_of(tmp_path)) == MEMBERS
    assert "Traceback" not in resumed.log.read_text()
    assert "0 violated" in coordinator.audit()
    check_results(coordinator, task_id)
    check_journals(coordinator, task_id, tmp_path)
    assert re.search(
        r"\(replayer\) round \d: the coordinator refused the update: These bytes were already", resumed.log.read_text()
    )


def check_results(coordinator: Coordinator, task_id: str) -> None:
    """Too much noise is rejected, replayed bytes are accepted only once, and no other member is accused."""
    roles = assign(clients=MEMBERS, shares=SHARES, seed=1)
    results = [
        (roles[client.ordinal], client) for round_ in rounds_of(coordinator, task_id) for client in round_.clients or ()
    ]
    delivered = [(role, client) for role, client in results if client.delivered]
    for role, client in delivered:
        accused = client.verdict is NoiseVerdict.TOO_MUCH_NOISE
        assert accused == (role is Behaviour.OVER_NOISER), (role, client)
        assert client.accepted is not accused and (client.payment_micro > 0) is not accused
    assert {role for role, _ in delivered} == set(Behaviour)
    # A replayer remembers its bytes as long as its process lives: the killed one and the resumed one worked once each.
    replayers = Counter(client.ordinal for role, client in delivered if role is Behaviour.REPLAYER)
    assert max(replayers.values()) <= 2


def rounds_of(coordinator: Coordinator, task_id: str) -> list[RoundResult]:
    token = (coordinator.state_dir / "admin.token").read_text().strip()
    with connect(coordinator.url) as http:
        admin = AdminApi(http, token=token)
        assert admin.task(task_id).state is TaskState.FINISHED
        return list(admin.rounds(task_id))


def check_journals(coordinator: Coordinator, task_id: str, folder: Path) -> None:
    """Every member has charged at least what the coordinator has seen, and knows what it was paid."""
    with httpx.Client(base_url=coordinator.url, timeout=60) as http:
        for path in journals_of(folder):
            with Journal(path, read_only=True) as journal:
                (membership,) = journal.memberships()
                own, ledger = {entry.release: entry for entry in journal.entries()}, read_ledger(journal)
            theirs = TaskApi(http, task_id=task_id, token=membership.token).ledger()
            assert ledger.earned_micro == theirs.earned_micro and math.isfinite(ledger.spent_rho)
            for seen in theirs.entries:
                if seen.state in (SpendState.SPENT, SpendState.SPENT_UNPAID):
                    assert own[seen.release].digest == seen.digest and own[seen.release].rho >= seen.rho
                    assert own[seen.release].state is seen.state
            assert SpendState.RESERVED not in {entry.state for entry in own.values()}


# --- the same fleet again --------------------------------------------------------------------------------------------


def final_model(folder: Path, *, workers: int, options: Sequence[str], **changes: Any) -> tuple[str, list[float]]:
    """The digest of the last model of a fleet on a coordinator of its own, and the members' privacy values."""
    rounds = NO_TIMEOUTS | {"expected_clients": 6, "min_clients": 6, "min_updates": 6}
    with Coordinator(folder / "coordinator") as live:
        task_id, code = live.create_task(
            "again", game={"horizon": 3}, selection={"rule": "all"}, rounds=rounds, **changes
        )
        where = ["--server", live.url, "--code", code, "--journals", str(folder / "journals")]
        words = ["fleet", "--clients", "6", *where, "--workers", str(workers), *TESTBED_LIMITS, *options]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.stderr
        last = rounds_of(live, task_id)[-1]
        with live.admin as http:
            values = [client["privacy_value"] for client in http.get(f"/v1/tasks/{task_id}/clients").json()]
    assert last.round_number == 3 and last.model_digest is not None
    return last.model_digest, values


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="gradient_once"),
        pytest.param(
            {"privacy": {"mechanism": {"name": "noisy_epochs", "clip_norm": 1.0, **LOCAL}}, "aggregation": STEP_ONE},
            id="noisy_epochs",
            marks=pytest.mark.long,
        ),
    ],
)
def test_the_same_seeds_give_the_same_model_to_the_last_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    seeds = ("--seed", "5", "--unsafe-seed", "7", "--delay", "0.05")
    one, two, three = (
        final_model(tmp_path / f"run-{number}", workers=workers, options=seeds, **changes)
        for number, workers in enumerate((1, 2, 2))
    )
    assert one == two == three


def test_under_common_noise_another_task_has_the_same_noise_and_no_release_is_protected(tmp_path: Path) -> None:
    seeds = ("--seed", "5", "--unsafe-seed", "7")
    longer = {"retention": {"last_rounds": 7}}
    common = (*seeds, "--common-noise", "0", "--accept-unproven")
    one, two = (
        final_model(tmp_path / f"common-{number}", workers=2, options=common, **changes)
        for number, changes in enumerate(({}, longer))
    )
    assert one == two
    other_draw = final_model(tmp_path / "draw", workers=2, options=(*common[:4], "--common-noise", "1", common[-1]))
    alone = final_model(tmp_path / "alone", workers=2, options=seeds, **longer)
    assert len({one[0], other_draw[0], alone[0]}) == 3
    with Journal(journals_of(tmp_path / "common-0" / "journals")[0], read_only=True) as journal:
        assert all("common noise, unprotected" in entry.mechanism for entry in journal.entries())
        assert math.isinf(read_ledger(journal).spent_rho)


def test_the_seed_of_a_fleet_gives_its_privacy_values_and_none_of_its_noise(tmp_path: Path) -> None:
    first, again, other = (
        final_model(tmp_path / f"run-{number}", workers=2, options=("--seed", seed))
        for number, seed in enumerate(("5", "5", "6"))
    )
    assert first[1] == again[1] != other[1] and len(set(first[1])) == 6
    assert len({first[0], again[0], other[0]}) == 3
