"""Five clients in containers: faults of all kinds during rounds, and what must hold afterwards."""

import csv
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from qidpfl_client.journal.journal import Journal
from qidpfl_client.journal.ledger import JournalLedger, read_ledger
from support.containers import NO_TIMEOUTS, Container, Testbed, cleaned_up, output, wait_for_the_end, wait_until

pytestmark = [pytest.mark.live, pytest.mark.long]

OVERRIDES = {"rounds": NO_TIMEOUTS | {"expected_clients": 5}}


@dataclass(frozen=True, kw_only=True)
class FaultRun:
    """A task that has ended, what was observed while it ran, and the ledgers of its clients."""

    testbed: Testbed
    results: Path
    audit_in_mid_round: str
    secrets: tuple[str, ...]
    states: dict[str, dict[str, str]]
    writes: dict[str, str]
    stopped: tuple[int | None, ...]
    ledgers: list[JournalLedger]

    def table(self, name: str) -> list[dict[str, str]]:
        with (self.results / "testbed" / f"{name}.csv").open() as file:
            return list(csv.DictReader(file))

    @property
    def clients(self) -> list[Container]:
        return self.testbed.containers("client")


@pytest.fixture(scope="module")
def run(images: None, project: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultRun]:
    results = tmp_path_factory.mktemp("results")
    results.chmod(0o777)
    settings = {"TESTBED_OVERRIDES": json.dumps(OVERRIDES), "TESTBED_RESULTS": str(results)}
    with cleaned_up(Testbed(project, environment=settings)) as testbed:
        testbed.done("up", "-d")
        coordinator, clients = testbed.one("coordinator"), testbed.containers("client")
        wait_until(lambda: all(": label distance" in client.log() for client in clients), "the selection is made")
        selected = [client for client in clients if "selected: label distance" in client.log()]
        (refused,) = set(clients) - set(selected)
        states = {client.name: status(client) for client in (coordinator, *clients)}
        writes = {client.name: client.inside("touch", "/written", check=False) for client in (coordinator, *clients)}
        audit, stopped = break_everything(testbed, coordinator, selected, refused)
        wait_for_the_end(testbed, "coordinator", "client")
        yield FaultRun(
            testbed=testbed,
            results=results,
            audit_in_mid_round=audit,
            secrets=secrets_of(coordinator),
            states=states,
            writes=writes,
            stopped=stopped,
            ledgers=[ledger_of(client, tmp_path_factory.mktemp("journal")) for client in clients],
        )


def break_everything(
    testbed: Testbed, coordinator: Container, selected: list[Container], refused: Container
) -> tuple[str, tuple[int | None, ...]]:
    """Cause each fault while a round is open. Returns an audit from the middle of a round and the exit codes."""
    frozen, killed, cut_off, crashed = selected
    wait_until(lambda: frozen.last_delivered() >= 2, "two rounds are played")
    frozen.do("pause")
    last_delivered = delivered_by_all([killed, cut_off, crashed], after=frozen.last_delivered())
    audit = coordinator.inside("qidpfl-server", "audit")

    coordinator.do("kill")
    killed.do("kill")
    refused.do("stop")
    network = f"{testbed.project}_default"
    output("docker", "network", "disconnect", network, cut_off.name)
    stopped = tuple(container.exit_code() for container in (coordinator, killed, refused))
    for container in (coordinator, killed, refused):
        container.do("start")
    frozen.do("unpause")

    delivered_by_all([frozen, killed, crashed], after=last_delivered)
    crashed.crash()
    output("docker", "network", "connect", network, cut_off.name)
    return audit, stopped


def delivered_by_all(clients: list[Container], *, after: int) -> int:
    """The next round that all these clients have delivered. It stays open, because another client has not."""
    seen: list[list[int]] = []

    def stays() -> bool:
        seen.append([client.last_delivered() for client in clients])
        return len(seen) > 3 and seen[-1] == seen[-4] and min(seen[-1]) == max(seen[-1]) > after

    wait_until(stays, f"all have delivered a round after {after}")
    return seen[-1][0]


def status(container: Container) -> dict[str, str]:
    """The kernel's status of the first process in a container."""
    lines = container.inside("cat", "/proc/1/status").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def secrets_of(coordinator: Container) -> tuple[str, ...]:
    """The tokens and the enrolment code."""
    image = coordinator.inspect()["Config"]["Image"]
    paths = ("/state/admin.token", "/state/viewer.token", "/codes/testbed.code")
    command = ("docker", "run", "--rm", "--volumes-from", coordinator.name, "--entrypoint", "cat", image)
    return tuple(output(*command, path).strip() for path in paths)


def ledger_of(client: Container, folder: Path) -> JournalLedger:
    """The ledger of a client, from a copy of its journal."""
    output("docker", "cp", f"{client.name}:/journal/.", str(folder))
    with Journal(folder / "journal.sqlite") as journal:
        return read_ledger(journal)


def test_the_task_finishes_although_processes_are_killed_stopped_and_disconnected(run: FaultRun) -> None:
    assert run.stopped == (137, 137, 0)
    task = json.loads((run.results / "testbed" / "task.json").read_text())
    assert (task["state"], task["reason"], task["settled_rounds"]) == ("finished", "horizon_reached", 20)
    ended = [run.testbed.one("coordinator"), *run.clients]
    assert [container.exit_code() for container in ended] == [0] * 6
    assert sum(container.inspect()["RestartCount"] for container in ended) == 1


def test_the_model_has_learnt(run: FaultRun) -> None:
    accuracies = [float(row["accuracy"]) for row in run.table("rounds")]
    assert accuracies[-1] > 0.6 and accuracies[-1] > accuracies[0]


def test_no_client_missed_a_round(run: FaultRun) -> None:
    delivered = Counter(row["ordinal"] for row in run.table("budgets") if row["delivered"] == "true")
    assert len(delivered) == 4 and set(delivered.values()) == {20}


def test_every_micro_unit_is_paid_or_kept_and_the_clients_count_the_same(run: FaultRun) -> None:
    paid: Counter[str] = Counter()
    for row in run.table("payments"):
        paid[row["round_number"]] += int(row["amount_micro"])
    for row in run.table("rounds"):
        assert paid[row["round_number"]] + int(row["kept_micro"]) == int(row["reward_micro"])
    assert sum(ledger.earned_micro for ledger in run.ledgers) == paid.total()


def test_clients_and_coordinator_have_recorded_the_same_releases(run: FaultRun) -> None:
    theirs = Counter((row["release"], float(row["rho"]), row["digest"] or None) for row in run.table("ledgers"))
    ours = Counter((entry.release, entry.rho, entry.digest) for ledger in run.ledgers for entry in ledger.entries)
    assert ours == theirs


def test_the_audit_is_clean_during_a_round_and_afterwards(run: FaultRun) -> None:
    assert "0 violated" in run.audit_in_mid_round
    assert "0 violated" in run.testbed.one("coordinator").beside("audit")


def test_containers_have_no_root_no_capabilities_and_no_writable_root(run: FaultRun) -> None:
    assert len(run.states) == 6
    for state in run.states.values():
        assert set(state["Uid"].split()) == set(state["Gid"].split()) == {"10001"}
        assert {state[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
        assert state["NoNewPrivs"] == "1"
    assert all("Read-only file system" in said for said in run.writes.values())


def test_a_client_can_read_the_enrolment_code_and_no_token(run: FaultRun) -> None:
    for client in run.clients:
        mounts = {mount["Destination"]: mount["RW"] for mount in client.inspect()["Mounts"]}
        assert mounts == {"/codes": False, "/journal": True}
    code_folder = ("docker", "run", "--rm", "--volumes-from", run.clients[0].name, "--entrypoint", "ls")
    assert output(*code_folder, "qidpfl-client", "/codes").split() == ["testbed.code"]


def test_no_secret_is_in_a_log_or_in_the_inspection_of_a_container(run: FaultRun) -> None:
    assert all(len(secret) > 20 for secret in run.secrets)
    for container in (run.testbed.one("coordinator"), *run.clients):
        told = container.log() + json.dumps(container.inspect())
        assert not [secret for secret in run.secrets if secret in told or secret.split(".")[-1] in told]
