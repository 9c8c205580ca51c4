"""A hostile coordinator against the real client process with default options: no release exceeds the owner's ceilings.

The task suggests huge budgets and the coordinator offers huge rewards. It also invents releases, and the records change
between tasks. The client keeps its ceilings or stops with one line, and its journal stays readable.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from qidpfl_client.journal.journal import DEFAULT_PATH, Entry, Journal
from qidpfl_client.owner import HISTOGRAM_RHO, LIFETIME_RHO, RHO_CAP
from qidpfl_shared.core.privacy.conversion import epsilon_from_rho
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.task_spec import TaskSpec
from support.peers.hostile_coordinator import HostileCoordinator, serving

pytestmark = pytest.mark.live

HORIZON = 8
FORTUNE_MICRO = 10**15
RICH = {"reward_max_micro": FORTUNE_MICRO, "reward_total_micro": FORTUNE_MICRO}
OFFERS = {number: {"reward_micro": FORTUNE_MICRO, "total": 1e6} for number in range(1, HORIZON + 1)}


def greedy(horizon: int = HORIZON, **changes: Any) -> TaskSpec:
    """A task that suggests everything."""
    asked = {
        "game": {"horizon": horizon},
        "bounds": {"rho_max": 50.0, "rho_min": 1e-6, **RICH},
        "privacy": {"lifetime_rho": 1e6, "histogram_rho": 100.0},
    }
    return preset("digits", asked | changes)


@dataclass(frozen=True)
class DataOwner:
    """A folder in which an owner types the command of the README."""

    folder: Path

    def run(
        self, coordinator: HostileCoordinator, *options: str, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        code = self.folder / "code"
        code.write_text(coordinator.code)
        given = ["run", "--server", coordinator.url, "--code-file", str(code), *options]
        return self.command(*given, **environment)

    def command(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "qidpfl_client", *words],
            cwd=self.folder,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def refused(self, ended: subprocess.CompletedProcess[str]) -> str:
        """The one line with which the client stopped."""
        assert ended.returncode == 1 and "Traceback" not in ended.stderr, ended.stderr
        (line,) = [line for line in ended.stderr.splitlines() if line.startswith("qidpfl-client: ")]
        assert ended.stderr.splitlines()[-1] == line
        return line

    @property
    def entries(self) -> list[Entry]:
        with Journal(self.folder / DEFAULT_PATH, read_only=True) as journal:
            return journal.entries()

    @property
    def ledger(self) -> dict[str, Any]:
        shown = self.command("ledger", "--json")
        assert shown.returncode == 0, shown.stderr
        body: dict[str, Any] = json.loads(shown.stdout)
        return body


@pytest.fixture
def owner(tmp_path: Path) -> DataOwner:
    return DataOwner(tmp_path)


def within_the_ceilings(owner: DataOwner, *coordinators: HostileCoordinator) -> None:
    """What left the machine, by the coordinator's own record, and what the journal says of it."""
    declared = [request["rho"] for one in coordinators for request in one.declared if "rho" in request]
    histograms = [json.loads(one.profiles[0])["histogram_rho"] for one in coordinators if one.profiles]
    assert max([*declared, 0.0]) <= RHO_CAP and max(histograms) <= HISTOGRAM_RHO
    spent = sum(declared) + sum(histograms)
    assert spent <= LIFETIME_RHO * (1 + 1e-9)
    ledger = owner.ledger
    assert ledger["spent_rho"] == pytest.approx(spent) and ledger["lifetime_rho"] == LIFETIME_RHO
    assert ledger["epsilon"] < 3


def test_no_task_and_no_reward_buys_more_than_the_defaults(owner: DataOwner) -> None:
    with serving(HostileCoordinator(spec=greedy(), lies=OFFERS)) as hostile:
        ended = owner.run(hostile)
    assert ended.returncode == 0, ended.stderr
    first, *_ = ended.stderr.splitlines()
    assert "limits: at most rho 0.05 per round" in first and "epsilon 2.8 at delta 1e-05" in first
    within_the_ceilings(owner, hostile)
    # The whole lifetime was sold, and nothing after it: three rounds at the cap, and the rest.
    assert len(hostile.received) == 4 and len(hostile.declared) == HORIZON
    assert owner.ledger["remaining_rho"] == 0
    profile = json.loads(hostile.profiles[0])
    assert profile["rho_cap"] == RHO_CAP and profile["lifetime_rho"] is None


def test_the_limit_of_a_journal_is_raised_only_by_its_owner(owner: DataOwner) -> None:
    with serving(HostileCoordinator(spec=greedy(1), lies=OFFERS)) as first:
        assert owner.run(first).returncode == 0
    before = owner.entries
    with serving(HostileCoordinator(spec=greedy(1), lies=OFFERS, task_id="another")) as second:
        line = owner.refused(owner.run(second, QIDPFL_LIFETIME_RHO="3"))
        assert "qidpfl-client ledger raise" in line and second.enrolled == 0 and owner.entries == before
        raised = owner.command("ledger", "raise", "--lifetime-rho", "3")
        assert raised.returncode == 0 and "epsilon 2.8" in raised.stdout and "epsilon 13.8" in raised.stdout
        ended = owner.run(second, QIDPFL_LIFETIME_RHO="3", QIDPFL_RHO_CAP="0.1", QIDPFL_HISTOGRAM_RHO="0.04")
    assert ended.returncode == 0, ended.stderr
    assert "more than the defaults" in ended.stderr.splitlines()[0]
    assert [request["rho"] for request in second.declared] == [0.1]
    ledger = owner.ledger
    assert [limit["lifetime_rho"] for limit in ledger["limits"]] == [LIFETIME_RHO, 3.0]
    assert ledger["spent_rho"] == pytest.approx(0.02 + 0.05 + 0.04 + 0.1)


def test_records_that_grow_share_one_account(owner: DataOwner) -> None:
    with serving(HostileCoordinator(spec=greedy(1), lies=OFFERS)) as first:
        assert owner.run(first).returncode == 0
        assert "the records have changed" not in owner.run(first).stderr
        # The profile of this task has the old size.
        line = owner.refused(owner.run(first, "--all-records", "--check-only"))
        assert "the records have changed since the profile of this task was made: it has 125 records" in line
        line = owner.refused(owner.run(first, "--all-records"))
        assert "the records have changed since the profile of this task was made: it has 125 records" in line
    with serving(HostileCoordinator(spec=greedy(), lies=OFFERS, task_id="another")) as second:
        before = owner.entries
        checked = owner.run(second, "--all-records", "--check-only")
        assert checked.returncode == 0 and "(125 then, 1437 now)" in checked.stderr and "checked only" in checked.stderr
        assert second.enrolled == 0 and owner.entries == before
        ended = owner.run(second, "--all-records")
    assert ended.returncode == 0, ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if "the records have changed" in line]
    assert "(125 then, 1437 now): all of them count as having spent what the journal has spent, rho 0.07" in line
    assert "if these are another owner's records, use another --journal" in line
    within_the_ceilings(owner, first, second)
    with Journal(owner.folder / DEFAULT_PATH, read_only=True) as journal:
        assert [version.size for version in journal.records()] == [125, 1437]


def test_an_invented_ledger_stops_the_client_and_costs_no_budget(owner: DataOwner) -> None:
    invented = {"mechanism": "gradient_once", "state": "spent", "rho": 50.0, "proven_rho": 50.0, "digest": "f" * 64}
    with serving(HostileCoordinator(spec=greedy(3), lies={2: {"noise": False}})) as hostile:
        owner.refused(owner.run(hostile))
        before = owner.entries
        hostile.ledger = [invented | {"release": f"round/{number}"} for number in range(3, 9)]
        line = owner.refused(owner.run(hostile))
        assert "shows round/3 at rho 50, which this journal has never made; nothing was charged" in line
        assert owner.entries == before and [entry.release for entry in before] == ["histogram", "round/1"]
        hostile.ledger, hostile.lies = [], {}
        assert owner.run(hostile).returncode == 0
    within_the_ceilings(owner, hostile)
    assert epsilon_from_rho(rho=owner.ledger["spent_rho"], delta=1e-5) < 3


def test_the_histogram_of_a_small_client_is_bounded_and_its_owner_is_told(owner: DataOwner) -> None:
    partition: dict[str, Any] = {"kind": "iid", "concentration": None, "two_class_ordinals": []}
    small = greedy(
        1,
        workload={"training_records": 50, "partition": partition},
        privacy={"lifetime_rho": 1e6, "histogram_rho": None},
    )
    with serving(HostileCoordinator(spec=small, lies=OFFERS)) as hostile:
        ended = owner.run(hostile)
    assert ended.returncode == 0, ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if "label histogram: " in line]
    assert "costs rho 0.02; with 5 records" in line and "too much to be selected by it" in line
    within_the_ceilings(owner, hostile)


def test_no_histogram_leaves_where_the_owner_wants_none(owner: DataOwner) -> None:
    with serving(HostileCoordinator(spec=greedy(), lies=OFFERS)) as choosy:
        line = owner.refused(owner.run(choosy, "--no-histogram"))
    assert "selects clients by their label histograms" in line and choosy.enrolled == 0
    assert not (owner.folder / DEFAULT_PATH).exists()
    with serving(HostileCoordinator(spec=greedy(1, selection={"rule": "all"}), lies=OFFERS)) as hostile:
        assert owner.run(hostile, "--no-histogram").returncode == 0
    profile = json.loads(hostile.profiles[0])
    assert profile["label_counts"] is None and profile["histogram_rho"] is None
    assert [entry.release for entry in owner.entries] == ["round/1"]


def test_a_task_does_not_choose_among_the_records_of_an_owner(owner: DataOwner) -> None:
    """The shards of a testbed depend on the labels of all records, so their sizes would be a release."""
    (owner.folder / "own.py").write_text(OWN_WORKLOAD)
    spec = greedy(1, selection={"rule": "all"})
    for task_id, options, size in (("all-of-them", [], 200), ("a-shard", ["--testbed-shard"], None)):
        with serving(HostileCoordinator(spec=spec, lies=OFFERS, task_id=task_id)) as hostile:
            journal = ["--journal", f"{task_id}.sqlite"]
            ended = owner.run(hostile, "--workload", "own.py:Own", "--no-histogram", *journal, *options)
        assert ended.returncode == 0, ended.stderr
        sent = json.loads(hostile.profiles[0])["size"]
        assert sent == size if size is not None else 0 < sent < 200


OWN_WORKLOAD = """
import numpy as np
from torch import nn
from qidpfl_shared.workloads.records import Records

class Own:
    labels, convex = 10, True

    def __init__(self, *, data_dir=None):
        pass

    def training(self):
        rng = np.random.default_rng(0)
        return Records(features=rng.standard_normal((200, 64)), labels=np.arange(200) % 10)

    def held_out(self):
        return None

    def network(self):
        return nn.Linear(64, 10)
"""


def test_reservations_that_were_never_sent_cannot_exhaust_a_lifetime(owner: DataOwner) -> None:
    for number in range(5):
        task_id = f"task-{number}"
        with serving(HostileCoordinator(spec=greedy(1), lies=OFFERS, task_id=task_id, model_lie=b"none")) as hostile:
            owner.refused(owner.run(hostile))
        assert [request.get("rho") for request in hostile.declared] == [RHO_CAP] and hostile.received == []
    ledger = owner.ledger
    assert ledger["spent_rho"] == pytest.approx(5 * HISTOGRAM_RHO) and ledger["reserved_rho"] == 0
