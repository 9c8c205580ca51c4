"""`serve` and `tasks`: every command as its own process, on live and on stopped stores."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from support.commands import server_command
from support.coordinators import Coordinator, ScriptedClient, play_to_the_end, running
from support.server_commands import SHORT, create, files, join, listed, output

pytestmark = pytest.mark.live


def tasks_of(coordinator: Coordinator) -> list[dict[str, Any]]:
    with coordinator.admin as http:
        answer: list[dict[str, Any]] = http.get("/v1/tasks").raise_for_status().json()
    return answer


def change_task(folder: Path, task_id: str, **values: Any) -> None:
    """Edit the row of a task, behind the coordinator's back."""
    columns = ", ".join(f"{name} = :{name}" for name in values)
    database = sqlite3.connect(folder / "coordinator.db", timeout=30)
    with database:
        database.execute(f"update tasks set {columns} where task_id = :task_id", values | {"task_id": task_id})
    database.close()


# --- serve -----------------------------------------------------------------------------------------------------------


def test_serve_creates_the_task_of_its_preset_once_and_never_again(tmp_path: Path) -> None:
    arguments = ("--preset", "digits", "--task", "mine", "--shared-code", "--overrides", json.dumps(SHORT))
    with running(tmp_path, arguments=arguments) as coordinator:
        code = (tmp_path / "mine.code").read_text().strip()
        first = tasks_of(coordinator)
        ScriptedClient(coordinator.url, code.split(".")[0], code, "a-random-enrolment-key").enrol()
    with running(tmp_path, arguments=arguments) as coordinator:
        second = tasks_of(coordinator)
    assert [task["task_id"] for task in first] == [task["task_id"] for task in second] == [code.split(".")[0]]
    assert second[0]["clients"] == 1
    assert (tmp_path / "mine.code").read_text().strip() == code
    assert (tmp_path / "mine.code").stat().st_mode & 0o777 == 0o600


def test_serve_writes_one_single_use_code_for_each_expected_client(tmp_path: Path) -> None:
    with running(tmp_path, arguments=("--preset", "digits", "--overrides", json.dumps(SHORT))) as coordinator:
        codes = (tmp_path / "digits.code").read_text().split()
        assert len(set(codes)) == SHORT["rounds"]["expected_clients"]  # type: ignore[index]
        for number, code in enumerate(codes):
            ScriptedClient(coordinator.url, code.split(".")[0], code, f"a-random-enrolment-key-{number}").enrol()


def test_serve_does_not_replace_a_task_that_has_ended(finished: Path) -> None:
    with running(finished, arguments=("--preset", "digits", "--task", "done")):
        assert listed(finished) == {"done": ("finished", "2/2")}


def test_a_task_name_with_a_slash_keeps_its_code_inside_the_state_folder(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with running(state, arguments=("--preset", "digits", "--task", "a/../../b")):
        assert "a%2F..%2F..%2Fb.code" in files(state)
    assert files(tmp_path) == {"state"}


def test_serve_ends_by_itself_when_all_tasks_have_ended(tmp_path: Path) -> None:
    arguments = ("--preset", "digits", "--shared-code", "--overrides", json.dumps(SHORT), "--exit-when-finished")
    with running(tmp_path, arguments=arguments) as coordinator:
        code = (tmp_path / "digits.code").read_text().strip()
        clients = join(coordinator, code.split(".")[0], code)
        play_to_the_end(clients)
        ledger = clients[0].http.get("/clients/me/ledger").raise_for_status().json()
        assert coordinator.process is not None and coordinator.process.wait(timeout=30) == 0
    assert ledger["earned_micro"] > 0
    assert listed(tmp_path) == {"digits": ("finished", "2/2")}


def test_a_file_that_is_not_a_certificate_is_named(tmp_path: Path) -> None:
    (tmp_path / "own.pem").write_text("not PEM")
    (tmp_path / "own.key").write_text("not PEM either")
    pair = ("--tls-cert", tmp_path / "own.pem", "--tls-key", tmp_path / "own.key")
    done = server_command("serve", "--port", "0", *pair, "--state-dir", tmp_path / "state")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    said = f"qidpfl-server: {tmp_path / 'own.pem'} and {tmp_path / 'own.key'} are not a certificate and its key, in PEM"
    assert done.stderr.startswith(said)
    assert files(tmp_path) == {"own.pem", "own.key"}


def test_a_second_coordinator_on_the_same_sqlite_store_ends_with_one_line(tmp_path: Path) -> None:
    with running(tmp_path):
        second = server_command("serve", "--port", "0", "--preset", "digits", "--state-dir", tmp_path)
        assert (listed(tmp_path), list(tmp_path.glob("*.code*"))) == ({}, [])
    assert second.returncode == 1
    assert second.stderr.splitlines()[-1].startswith("qidpfl-server: another coordinator is running on ")


# --- tasks -----------------------------------------------------------------------------------------------------------


def test_a_task_is_created_listed_and_shown_on_a_stopped_store(tmp_path: Path) -> None:
    task_id, code = create(tmp_path, "first")
    assert code.startswith(f"{task_id}.")
    assert listed(tmp_path) == {"first": ("enrolling", "0/2")}
    shown = [json.loads(output("tasks", "show", name, "--state-dir", tmp_path)) for name in ("first", task_id)]
    assert shown[0] == shown[1]
    assert (shown[0]["name"], shown[0]["spec"]["game"]["horizon"]) == ("first", 2)


def test_single_use_codes_are_as_many_as_asked_for(tmp_path: Path) -> None:
    made = output(
        *("tasks", "create", "many", "--preset", "digits", "--single-use-codes", "4"), "--state-dir", tmp_path
    ).split()
    assert len(set(made)) == 5


def test_a_task_created_beside_a_live_coordinator_is_served_at_once(tmp_path: Path) -> None:
    with running(tmp_path) as coordinator:
        task_id, code = create(tmp_path, "beside")
        play_to_the_end(join(coordinator, task_id, code))
        assert listed(tmp_path) == {"beside": ("finished", "2/2")}
        assert "0 violated" in coordinator.audit()


def test_start_on_a_live_store_wakes_the_clients_that_wait(tmp_path: Path) -> None:
    patient = {"rounds": {"expected_clients": 10, "quiet_s": 600.0, "enrolment_window_s": 600.0}}
    task_id, code = create(tmp_path, "waiting", patient)
    with running(tmp_path) as coordinator:
        clients = join(coordinator, task_id, code)
        printed = output("tasks", "start", "waiting", "--state-dir", tmp_path)
        answer = clients[0].poll(wait=30.0)
    assert printed.split("\t")[1:3] == ["waiting", "training"]
    assert answer is not None and answer["round"]["round_number"] == 1


def test_start_with_too_few_clients_is_refused(tmp_path: Path) -> None:
    create(tmp_path, "lonely")
    refused = server_command("tasks", "start", "lonely", "--state-dir", tmp_path)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == "qidpfl-server: profile_missing: 0 clients have a profile, 3 are needed\n"
    assert listed(tmp_path) == {"lonely": ("enrolling", "0/2")}
    begun = server_command("tasks", "start", "lonely", "--window", "--state-dir", tmp_path)
    assert begun.returncode == 0 and "enrolling" in begun.stdout


def test_stop_on_a_live_store_settles_the_open_round_and_tells_the_clients(tmp_path: Path) -> None:
    task_id, code = create(tmp_path, "long", {"rounds": {"expected_clients": 4}})
    with running(tmp_path) as coordinator:
        clients = join(coordinator, task_id, code, count=4)
        offers = [client.poll() for client in clients]
        for client, offer in list(zip(clients, offers, strict=True))[:3]:
            assert offer is not None
            client.play(offer["round"])
        output("tasks", "stop", "long", "--state-dir", tmp_path)
        clients[0].seen = "1.1"
        ended = clients[0].poll(wait=30.0)
        paid = clients[0].http.get("/clients/me/ledger").json()["earned_micro"]
    assert ended is not None and (ended["task_state"], ended["reason"]) == ("stopped", "stopped")
    assert paid > 0
    assert listed(tmp_path)["long"][0] == "stopped"


def test_stop_on_a_stopped_store_ends_a_task_that_enrols_and_may_be_repeated(tmp_path: Path) -> None:
    create(tmp_path, "early")
    for _ in range(2):
        assert output("tasks", "stop", "early", "--state-dir", tmp_path).split("\t")[1:3] == ["early", "stopped"]


def test_an_id_is_always_the_task_with_this_id(tmp_path: Path) -> None:
    first, _ = create(tmp_path, "first")
    second, _ = create(tmp_path, "second")
    refused = server_command("tasks", "create", first, "--preset", "digits", "--state-dir", tmp_path)
    assert refused.stderr == f"qidpfl-server: task_exists: '{first}' is the id of another task\n"
    change_task(tmp_path, second, name=first)
    output("tasks", "stop", first, "--state-dir", tmp_path)
    assert listed(tmp_path) == {"first": ("stopped", "0/2"), first: ("enrolling", "0/2")}
