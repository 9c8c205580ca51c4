"""Custom rules in a live coordinator: what they decide, what limits them, and what happens without them."""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qidpfl_server.audit import Report, audit
from qidpfl_server.ops.open_store import opened_store
from qidpfl_server.plugins.rules import load_rules
from qidpfl_server.settings import Settings
from support.commands import server_command
from support.coordinators import NO_TIMEOUTS, Coordinator, ScriptedClient, play_to_the_end

pytestmark = pytest.mark.live

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_rules.py"
# Sizes and labels: near and small, near and large, near, far and largest of all.
HOLDINGS = [(9,) * 10, (30,) * 10, (20,) * 10, (25,) * 10, (400, 400, *(0,) * 8)]
FAILING = {
    "raising": "def reward(question):\n    raise KeyError('a secret')\n",
    "endless": "def reward(question):\n    return float('inf')\n",
    "wordy": "def reward(question):\n    return 'a lot'\n",
    "greedy": "def reward(question):\n    question.caps[:] = 1e9\n    return 1.0\n",
    "late": "def reward(question):\n    return 5.0 if question.round_number == 1 else None\n",
    "narrow": "def select(question):\n    return [True]\n",
    "leaving": "import sys\ndef select(question):\n    sys.exit(3)\n",
}


def own(*, policy: str | None = None, rule: str | None = None) -> dict[str, Any]:
    """The parts of a spec that name rules."""
    game = {} if policy is None else {"game": {"policy": "own", "own_rules": policy}}
    return game | ({} if rule is None else {"selection": {"rule": "own", "own_rules": rule}})


def short(overrides: dict[str, Any], clients: int = 3, horizon: int = 3) -> dict[str, Any]:
    rounds = NO_TIMEOUTS | {"expected_clients": clients, "min_clients": 2, "min_updates": 2}
    game = {"horizon": horizon} | overrides.get("game", {})
    # The clients of these tests declare the same budget at every reward.
    return {"selection": {"rule": "all"}, "defence": None} | overrides | {"rounds": rounds, "game": game}


def members(coordinator: Coordinator, name: str, overrides: dict[str, Any]) -> list[ScriptedClient]:
    """The clients of a new task, one for each of the holdings it expects."""
    task_id, code = coordinator.create_task(name, **overrides)
    return [
        ScriptedClient(coordinator.url, task_id, code, f"{name}-key-of-client-{n}", labels=HOLDINGS[n])
        for n in range(overrides["rounds"]["expected_clients"])
    ]


def gathered(clients: list[ScriptedClient]) -> list[int]:
    """Enrol and profile all of them; the status codes of the profiles."""
    for client in clients:
        client.enrol()
    return [client.profile().status_code for client in clients]


def read(coordinator: Coordinator, path: str) -> Any:
    with coordinator.admin as http:
        return http.get(f"/v1/tasks{path}").raise_for_status().json()


def rounds_of(coordinator: Coordinator, task_id: str, count: int) -> list[dict[str, Any]]:
    return [read(coordinator, f"/{task_id}/rounds/{number}") for number in range(1, count + 1)]


def play_on(coordinator: Coordinator, clients: list[ScriptedClient]) -> None:
    """Let the clients continue at the present address of the coordinator until the task has ended."""
    for client in clients:
        client.http.base_url = f"{coordinator.url}/v1/tasks/{client.task_id}"
    play_to_the_end(clients)


def audited(folder: Path, *rules: Path) -> Report:
    with opened_store(Settings(state_dir=folder)) as store:
        return audit(store, load_rules(rules))


# --- the example -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    """A coordinator with two finished tasks of the same clients: selection by the example, pay by it or optimal."""
    folder = tmp_path_factory.mktemp("own-rules")
    with Coordinator(folder, arguments=("--rules", str(EXAMPLE))) as coordinator:
        for name, overrides in (
            ("own", own(policy="own_rules", rule="own_rules")),
            ("optimal", own(rule="own_rules")),
        ):
            play_to_the_end(members(coordinator, name, short(overrides, clients=5)))
        yield coordinator


def test_the_example_keeps_the_larger_half_of_the_near_clients(played: Coordinator) -> None:
    for task in read(played, ""):
        assert (task["state"], task["settled_rounds"]) == ("finished", 3)
        roster = read(played, f"/{task['task_id']}/clients")
        assert {client["size"] for client in roster if client["state"] == "selected"} == {250, 300}


def test_the_example_pays_in_proportion_to_the_missing_accuracy(played: Coordinator) -> None:
    own_rounds, optimal = (
        rounds_of(played, task["task_id"], 3)
        for task in sorted(read(played, ""), key=lambda task: task["name"], reverse=True)
    )
    best = 0.0
    for round_, reference in zip(own_rounds, optimal, strict=True):
        assert round_["reward_micro"] == pytest.approx((1 - best) * reference["reward_micro"], abs=2)
        assert 0 < round_["accuracy"] < 1
        best = max(best, round_["accuracy"])


def test_the_audit_calls_the_custom_rules_again_if_they_are_loaded(played: Coordinator) -> None:
    report = audited(played.state_dir, EXAMPLE)
    assert (report.violations, report.not_checkable) == ([], [])


def test_the_audit_without_the_rules_checks_everything_else(played: Coordinator) -> None:
    with_rules, report = audited(played.state_dir, EXAMPLE), audited(played.state_dir)
    assert report.violations == []
    reason = "rules own_rules are not loaded: --rules own_rules.py is needed"
    assert sorted(report.not_checkable) == [
        f"task optimal: whom its selection should have kept: {reason}",
        f"task own: what its rounds should have paid: {reason}",
        f"task own: whom its selection should have kept: {reason}",
    ]
    # Two answers less for each client of either task.
    assert report.checked == with_rules.checked - 2 * 2 * 5


OWN = "(SELECT task_id FROM tasks WHERE name = 'own')"
MANIPULATIONS = {
    "a reward": (
        f"UPDATE rounds SET reward_micro = reward_micro + 9, kept_micro = kept_micro + 9"
        f" WHERE task_id = {OWN} AND round_number = 3",
        "the reward is",
        False,
    ),
    "a total": (f"UPDATE rounds SET total = total * 2 WHERE task_id = {OWN}", "the total is", True),
    "a reward above the largest": (
        f"UPDATE rounds SET reward_micro = 900000000000 WHERE task_id = {OWN}",
        "the reward is 900000000000, but the plan says",
        True,
    ),
    "a verdict": (
        f"UPDATE clients SET state = 'selected' WHERE task_id = {OWN} AND size = 800",
        "it is selected, but the selection says refused",
        False,
    ),
    "a distance": (
        f"UPDATE clients SET label_distance = 0.5 WHERE task_id = {OWN} AND size = 800",
        "its label distance is 0.5, not 1.6",
        True,
    ),
}


@pytest.mark.parametrize("name", MANIPULATIONS)
def test_a_manipulation_under_custom_rules_is_found(name: str, played: Coordinator, tmp_path: Path) -> None:
    statement, finding, found_without = MANIPULATIONS[name]
    shutil.copytree(played.state_dir, tmp_path / "state")
    with sqlite3.connect(tmp_path / "state" / "coordinator.db") as database:
        assert database.execute(statement).rowcount > 0
    database.close()
    with_rules, without = audited(tmp_path / "state", EXAMPLE), audited(tmp_path / "state")
    assert any(finding in violation for violation in with_rules.violations), with_rules.violations
    assert any(finding in violation for violation in without.violations) is found_without


def test_the_audit_command_takes_the_rules(played: Coordinator) -> None:
    done = server_command("audit", "--state-dir", played.state_dir, "--rules", EXAMPLE)
    assert done.returncode == 0 and "not checkable" not in done.stdout
    done = server_command("audit", "--state-dir", played.state_dir)
    assert done.returncode == 0 and done.stdout.count("not checkable") == 3


# --- what bounds and what breaks a rule ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lenient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    """A coordinator with rules that fail, each in a separate file, and one that wishes more than the budget."""
    folder = tmp_path_factory.mktemp("failing")
    for name, text in (FAILING | {"lavish": "def reward(question):\n    return 1e12\n"}).items():
        (folder / f"{name}.py").write_text(text)
    arguments = [part for path in sorted(folder.glob("*.py")) for part in ("--rules", str(path))]
    with Coordinator(folder / "state", arguments=tuple(arguments)) as coordinator:
        yield coordinator


def test_no_rule_pays_more_than_the_task_may(lenient: Coordinator) -> None:
    bounds = {"reward_max_micro": 4_000_000, "reward_total_micro": 9_000_000}
    clients = members(lenient, "lavish", short(own(policy="lavish")) | {"bounds": bounds})
    play_to_the_end(clients)
    task = read(lenient, f"/{clients[0].task_id}")
    assert (task["state"], task["reason"], task["settled_rounds"]) == ("finished", "budget_exhausted", 2)
    assert [round_["reward_micro"] for round_ in rounds_of(lenient, clients[0].task_id, 2)] == [4_000_000] * 2


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("raising", "reward() raised KeyError"),
        ("endless", "reward() returned inf, not a finite number of at least 0"),
        ("wordy", "reward() returned a str, not a finite number of at least 0"),
        ("greedy", "reward() raised ValueError"),
        ("narrow", "select() returned a list of length 1, not 3 truth values"),
        ("leaving", "select() raised SystemExit"),
    ],
)
def test_a_rule_that_fails_ends_its_task_and_nothing_else(lenient: Coordinator, name: str, detail: str) -> None:
    function = "policy" if "reward" in FAILING[name] else "rule"
    clients = members(lenient, name, short(own(**{function: name})))
    assert gathered(clients) == [200, 200, 200]
    task = read(lenient, f"/{clients[0].task_id}")
    assert (task["state"], task["reason"]) == ("failed", f"own_rule_failed: rules {name}: {detail}")
    assert "0 violated" in lenient.audit()


def test_what_was_paid_before_a_rule_failed_stays_paid(lenient: Coordinator) -> None:
    clients = members(lenient, "late", short(own(policy="late")))
    play_to_the_end(clients)
    task = read(lenient, f"/{clients[0].task_id}")
    assert task["state"] == "failed" and "reward() returned a NoneType" in task["reason"]
    assert (task["settled_rounds"], task["paid_micro"]) == (1, 5_000_000)
    assert "0 violated" in lenient.audit()


# --- without the rules -----------------------------------------------------------------------------------------------


def test_a_task_cannot_name_rules_that_are_not_loaded(tmp_path: Path) -> None:
    overrides = short(own(policy="own_rules"))
    with Coordinator(tmp_path) as coordinator, coordinator.admin as http:
        body = {"name": "mine", "preset": "digits", "overrides": overrides}
        answer = http.post("/v1/tasks", json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "rules_not_loaded")
        assert "--rules own_rules.py" in answer.json()["detail"]
        assert http.get("/v1/tasks").json() == []


def test_the_commands_need_the_rules_as_serve_does(tmp_path: Path) -> None:
    changes = '{"game": {"policy": "own", "own_rules": "own_rules"}}'
    arguments = ("tasks", "create", "mine", "--preset", "digits", "--overrides", changes, "--state-dir", tmp_path)
    refused = server_command(*arguments)
    assert refused.returncode == 1
    assert refused.stderr == (
        "qidpfl-server: rules_not_loaded: rules own_rules are not loaded: --rules own_rules.py is needed\n"
    )
    made = server_command(*arguments, "--rules", EXAMPLE)
    assert made.returncode == 0 and f"note: serve --rules {EXAMPLE} runs it" in made.stderr
    assert "--rules own_rules.py is needed" in server_command("tasks", "start", "mine", "--state-dir", tmp_path).stderr
    start = server_command("tasks", "start", "mine", "--state-dir", tmp_path, "--rules", EXAMPLE)
    assert "0 clients have a profile" in start.stderr
    assert server_command("tasks", "stop", "mine", "--state-dir", tmp_path).returncode == 0


def test_serve_does_not_start_without_the_rules_of_a_living_task(tmp_path: Path) -> None:
    with Coordinator(tmp_path, arguments=("--rules", str(EXAMPLE))) as coordinator:
        clients = members(coordinator, "mine", short(own(policy="own_rules")))
        assert gathered(clients) == [200, 200, 200]
        coordinator.stop()
        refused = server_command("serve", "--port", "0", "--state-dir", tmp_path)
        assert refused.returncode == 1
        line = refused.stderr.splitlines()[-1]
        assert line.startswith("qidpfl-server: task mine is training with custom rules") and "own_rules.py" in line
        play_on(coordinator.start(), clients)
        assert read(coordinator, f"/{clients[0].task_id}")["state"] == "finished"
        coordinator.stop()
        coordinator.arguments = ()
        coordinator.start()  # an ended task needs no rules


def test_a_coordinator_does_not_run_a_task_whose_rules_are_not_loaded(tmp_path: Path) -> None:
    """Another command, or another coordinator on the same store, may have made it."""
    overrides, state = tmp_path / "overrides.json", tmp_path / "state"
    overrides.write_text(json.dumps(short(own(policy="own_rules"), horizon=1)))
    with Coordinator(state) as coordinator:
        create = ("tasks", "create", "mine", "--preset", "digits", "--overrides", f"@{overrides}", "--rules", EXAMPLE)
        made = server_command(*create, "--single-use-codes", "0", "--state-dir", state)
        task_id, code = made.stdout.split()
        clients = [ScriptedClient(coordinator.url, task_id, code, f"key-of-client-{n:05d}") for n in range(3)]
        assert gathered(clients) == [200, 200, 200]
        with coordinator.admin as http:
            answer = http.post(f"/v1/tasks/{task_id}/start")
        assert (answer.status_code, answer.json()["code"]) == (422, "rules_not_loaded")
        assert read(coordinator, f"/{task_id}")["state"] == "enrolling"
        coordinator.stop()
        coordinator.arguments = ("--rules", str(EXAMPLE))
        play_on(coordinator.start(), clients)
        assert read(coordinator, f"/{task_id}")["reason"] == "horizon_reached"
