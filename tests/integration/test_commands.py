"""Every command as its own process, on live and on stopped stores."""

import csv
import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from support.commands import server_command
from support.coordinators import Coordinator, ScriptedClient, play_to_the_end, running

pytestmark = pytest.mark.live

SHORT = {"game": {"horizon": 2}, "rounds": {"expected_clients": 3, "declare_s": 20.0, "deliver_s": 20.0}}


def output(*arguments: str | Path) -> str:
    """What a command that succeeds prints."""
    done = server_command(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def create(state: Path, name: str, overrides: dict[str, Any] | None = None) -> tuple[str, str]:
    """A task made by the command: its id and its code."""
    changed = json.dumps(SHORT if overrides is None else overrides)
    lines = output("tasks", "create", name, "--preset", "digits", "--overrides", changed, "--state-dir", state)
    task_id, code = lines.split()
    return task_id, code


def join(coordinator: Coordinator, task_id: str, code: str, count: int = 3) -> list[ScriptedClient]:
    """Clients that are enrolled and have a profile."""
    clients = [ScriptedClient(coordinator.url, task_id, code, f"client-{number:010d}") for number in range(count)]
    for client in clients:
        client.enrol()
        client.profile().raise_for_status()
    return clients


def listed(state: Path) -> dict[str, tuple[str, str]]:
    """State and rounds of every task, by name."""
    rows = [line.split("\t") for line in output("tasks", "list", "--state-dir", state).splitlines()]
    return {name: (task_state, rounds) for _, name, task_state, rounds in rows}


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


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state folder of a task of two rounds that has finished; nobody serves it."""
    state = tmp_path_factory.mktemp("finished") / "state"
    task_id, code = create(state, "done")
    with running(state) as coordinator:
        play_to_the_end(join(coordinator, task_id, code))
    yield state


# --- serve -----------------------------------------------------------------------------------------------------------


def test_serve_creates_the_task_of_its_preset_once_and_never_again(tmp_path: Path) -> None:
    arguments = ("--preset", "digits", "--task", "mine", "--overrides", json.dumps(SHORT))
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


def test_serve_does_not_replace_a_task_that_has_ended(finished: Path) -> None:
    with running(finished, arguments=("--preset", "digits", "--task", "done")):
        assert listed(finished) == {"done": ("finished", "2/2")}


def test_a_task_name_with_a_slash_keeps_its_code_inside_the_state_folder(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with running(state, arguments=("--preset", "digits", "--task", "a/../../b")):
        assert "a%2F..%2F..%2Fb.code" in files(state)
    assert files(tmp_path) == {"state"}


def test_serve_ends_by_itself_when_all_tasks_have_ended(tmp_path: Path) -> None:
    arguments = ("--preset", "digits", "--overrides", json.dumps(SHORT), "--exit-when-finished")
    with running(tmp_path, arguments=arguments) as coordinator:
        code = (tmp_path / "digits.code").read_text().strip()
        clients = join(coordinator, code.split(".")[0], code)
        play_to_the_end(clients)
        ledger = clients[0].http.get("/clients/me/ledger").raise_for_status().json()
        assert coordinator.process is not None and coordinator.process.wait(timeout=30) == 0
    assert ledger["earned_micro"] > 0
    assert listed(tmp_path) == {"digits": ("finished", "2/2")}


def test_serve_ends_by_itself_also_when_the_tasks_could_not_be_read_for_a_while(tmp_path: Path) -> None:
    task_id, _ = create(tmp_path, "mine")
    with running(tmp_path, arguments=("--exit-when-finished",)) as coordinator:
        change_task(tmp_path, task_id, state="unheard-of")
        # It looks once a second.
        time.sleep(2.5)
        change_task(tmp_path, task_id, state="stopped", reason="stopped", ended_at=1)
        assert coordinator.process is not None and coordinator.process.wait(timeout=30) == 0


def test_a_certificate_that_is_none_is_named(tmp_path: Path) -> None:
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


# --- export ----------------------------------------------------------------------------------------------------------


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_export_writes_tables_whose_money_adds_up_and_the_newest_model(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    printed = output("export", "done", "--out", out, "--state-dir", finished).split()
    tables = {f"{name}.csv" for name in ("rounds", "clients", "budgets", "payments", "ledgers")}
    assert files(out) == {"task.json", "model-2.safetensors"} | tables == {Path(path).name for path in printed}
    assert {name: tensor.shape for name, tensor in load_file(out / "model-2.safetensors").items()} == {
        "weight": (10, 64),
        "bias": (10,),
    }
    payments, ledgers = rows(out / "payments.csv"), rows(out / "ledgers.csv")
    assert len(rows(out / "clients.csv")) == 3 and len(rows(out / "budgets.csv")) == len(payments) == 6
    for held in rows(out / "rounds.csv"):
        paid = sum(int(row["amount_micro"]) for row in payments if row["round_number"] == held["round_number"])
        assert paid + int(held["kept_micro"]) == int(held["reward_micro"]) > 0
        assert float(held["settlement_s"]) > 0 and float(held["evaluation_s"]) > 0
        assert datetime.fromisoformat(held["opened_at"]) < datetime.fromisoformat(held["settled_at"])
    earned = sum(int(row["payment_micro"] or 0) for row in ledgers)
    assert earned == sum(int(row["amount_micro"]) for row in payments)
    assert earned == json.loads((out / "task.json").read_text())["paid_micro"]
    assert {row["accepted"] for row in rows(out / "budgets.csv")} == {"true"}


def test_export_in_json_says_the_same_as_in_csv(finished: Path, tmp_path: Path) -> None:
    output("export", "done", "--out", tmp_path / "csv", "--state-dir", finished)
    output("export", "done", "--out", tmp_path / "json", "--format", "json", "--state-dir", finished)
    for name in ("rounds", "clients", "budgets", "payments", "ledgers"):
        table = json.loads((tmp_path / "json" / f"{name}.json").read_text())
        written = [{key: _cell(value) for key, value in row.items()} for row in table]
        assert written == rows(tmp_path / "csv" / f"{name}.csv")


def _cell(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def test_export_takes_an_older_version_of_the_model(finished: Path, tmp_path: Path) -> None:
    output("export", "done", "--out", tmp_path, "--version", "0", "--state-dir", finished)
    assert not any(tensor.any() for tensor in load_file(tmp_path / "model-0.safetensors").values())
    missing = server_command("export", "done", "--out", tmp_path / "other", "--version", "9", "--state-dir", finished)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr == "qidpfl-server: not_found: there is no model version 9; versions 0 to 2 are kept\n"
    assert not (tmp_path / "other").exists()


def test_export_leaves_a_folder_with_files_alone_unless_forced(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    refused = server_command("export", "done", "--out", tmp_path, "--state-dir", finished)
    assert refused.returncode == 1 and "is not empty" in refused.stderr
    assert files(tmp_path) == {"notes.txt"}
    output("export", "done", "--out", tmp_path, "--force", "--state-dir", finished)
    assert {"notes.txt", "rounds.csv"} <= files(tmp_path)


def test_export_of_an_open_round_shows_nobodys_budget(tmp_path: Path) -> None:
    task_id, code = create(tmp_path / "state", "open")
    with running(tmp_path / "state") as coordinator:
        clients = join(coordinator, task_id, code)
        offer = clients[0].poll()
        assert offer is not None
        clients[0].play(offer["round"])
        output("export", "open", "--out", tmp_path / "out", "--state-dir", tmp_path / "state")
    assert [row["state"] for row in rows(tmp_path / "out" / "rounds.csv")] == ["open"]
    assert rows(tmp_path / "out" / "budgets.csv") == []
    assert {row["release"] for row in rows(tmp_path / "out" / "ledgers.csv")} == {"histogram"}


# --- backup ----------------------------------------------------------------------------------------------------------


def test_backups_of_a_live_store_pass_the_audit_and_can_be_served(tmp_path: Path) -> None:
    state = tmp_path / "state"
    task_id, code = create(state, "running", SHORT | {"game": {"horizon": 12}})
    with running(state) as coordinator:
        clients = join(coordinator, task_id, code)
        players = threading.Thread(target=play_to_the_end, args=(clients,))
        players.start()
        copies: list[Path] = []
        while players.is_alive() and len(copies) < 3:
            copies.append(tmp_path / f"copy-{len(copies)}")
            assert output("backup", "--out", copies[-1], "--state-dir", state).startswith(f"{copies[-1]}: database, ")
        players.join()
    for copy in copies:
        assert "0 violated" in output("audit", "--state-dir", copy)
        assert not list(copy.glob("*.lock")) and not list(tmp_path.glob(".*"))
    assert listed(state) == {"running": ("finished", "12/12")}
    with running(copies[0]) as restored:
        assert (copies[0] / "admin.token").read_text() == (state / "admin.token").read_text()
        resumed = [
            ScriptedClient(restored.url, task_id, code, client.key, token=client.token, sent=client.sent)
            for client in clients
        ]
        for client in resumed:
            client.http.headers["Authorization"] = f"Bearer {client.token}"
        play_to_the_end(resumed)
        assert listed(copies[0]) == {"running": ("finished", "12/12")}
        assert "0 violated" in restored.audit()


@pytest.mark.parametrize(("arguments", "linked"), [((), True), (("--copy",), False)])
def test_a_backup_holds_every_blob_as_a_link_or_as_a_copy(
    finished: Path, tmp_path: Path, arguments: tuple[str, ...], linked: bool
) -> None:
    copy = tmp_path / "copy"
    # Pytest's folders are all on one file system, so that a link is possible.
    output("backup", "--out", copy, "--state-dir", finished, *arguments)
    assert "0 violated" in output("audit", "--state-dir", copy)
    # Two models with their momenta, the start, and three updates in each of two rounds.
    blobs = sorted((copy / "blobs" / "objects").iterdir())
    assert len(blobs) == 2 * 2 + 1 + 2 * 3
    assert {blob.stat().st_nlink > 1 for blob in blobs} == {linked}
    assert {"coordinator.db", "blobs", "admin.token", "viewer.token"} == files(copy)
    assert (copy / "admin.token").stat().st_mode & 0o777 == 0o600 and copy.stat().st_mode & 0o777 == 0o700


def test_a_backup_never_goes_into_a_folder_with_files(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    refused = server_command("backup", "--out", tmp_path, "--state-dir", finished)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == f"qidpfl-server: {tmp_path} exists and is not an empty folder: name a new one\n"
    assert files(tmp_path) == {"notes.txt"}


def test_a_backup_ignores_where_the_environment_says_the_store_is_when_it_makes_its_copy(
    finished: Path, tmp_path: Path
) -> None:
    url = f"sqlite:///{finished / 'coordinator.db'}"
    where = {"QIDPFL_STORE_URL": url, "QIDPFL_BLOB_DIR": str(finished / "blobs"), "QIDPFL_STATE_DIR": str(finished)}
    done = server_command("backup", "--out", tmp_path / "copy", **where)
    assert done.returncode == 0, done.stderr
    assert "0 violated" in output("audit", "--state-dir", tmp_path / "copy")


def test_a_backup_says_how_many_blobs_are_gone_and_the_audit_says_which(finished: Path, tmp_path: Path) -> None:
    output("backup", "--out", tmp_path / "one", "--copy", "--state-dir", finished)
    lost = next((tmp_path / "one" / "blobs" / "objects").iterdir())
    lost.unlink()
    assert "1 blobs are missing" in output("backup", "--out", tmp_path / "two", "--state-dir", tmp_path / "one")
    audited = server_command("audit", "--state-dir", tmp_path / "two")
    assert audited.returncode == 1 and lost.name in audited.stdout


def test_a_postgresql_store_is_backed_up_by_pg_dump_and_its_blobs_by_us(tmp_path: Path, postgres_url: str) -> None:
    where = ("--state-dir", tmp_path / "state", "--store-url", postgres_url)
    absent = server_command("audit", *where)
    assert absent.returncode == 1 and "there is no store at postgresql" in absent.stderr
    output("tasks", "create", "one", "--preset", "digits", *where)
    refused = server_command("backup", "--out", tmp_path / "copy", *where)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "pg_dump" in refused.stderr and len(refused.stderr.splitlines()) == 1
    assert not (tmp_path / "copy").exists()
    printed = output("backup", "--blobs-only", "--out", tmp_path / "copy", *where)
    assert "pg_dump" in printed.splitlines()[-1]
    assert len(list((tmp_path / "copy" / "blobs" / "objects").iterdir())) == 1
    assert "0 violated" in output("audit", *where)
    output("export", "one", "--out", tmp_path / "out", *where)
    assert (tmp_path / "out" / "model-0.safetensors").exists()


# --- what goes wrong -------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "unknown preset": (("tasks", "create", "x", "--preset", "nonsense"), "unknown_preset: unknown preset 'nonsense'"),
    "unknown preset to serve": (("serve", "--port", "0", "--preset", "nonsense"), "unknown_preset: unknown preset"),
    "broken JSON": (
        ("tasks", "create", "x", "--preset", "digits", "--overrides", "{horizon: 5}"),
        "--overrides is not JSON",
    ),
    "JSON that is no object": (
        ("tasks", "create", "x", "--preset", "digits", "--overrides", "[1]"),
        "--overrides must be a JSON object",
    ),
    "broken JSON to serve": (("serve", "--preset", "digits", "--overrides", "{"), "--overrides is not JSON"),
    "a file of JSON that is not there": (
        ("tasks", "create", "x", "--preset", "digits", "--overrides", "@nowhere.json"),
        "--overrides: cannot read nowhere.json: No such file or directory",
    ),
    "a folder for a file of JSON": (
        ("serve", "--preset", "digits", "--overrides", "@."),
        "--overrides: cannot read .: Is a directory",
    ),
    "rules that are not there": (("serve", "--port", "0", "--rules", "nowhere.py"), "there is no file nowhere.py"),
    "rules that nobody has loaded": (
        ("serve", "--preset", "digits", "--overrides", '{"game": {"policy": "own", "own_rules": "mine"}}'),
        "rules_not_loaded: rules mine are not loaded: --rules mine.py is needed",
    ),
    "impossible value": (
        ("tasks", "create", "x", "--preset", "digits", "--overrides", '{"game": {"horizon": 0}}'),
        "game.horizon: ",
    ),
    "impossible name": (("tasks", "create", "a b", "--preset", "digits"), "'a b' cannot be a name"),
    "overrides without preset": (("serve", "--task", "x"), "--task and --overrides need a --preset"),
    "no store to list": (("tasks", "list"), "there is no store at sqlite:///"),
    "no store to audit": (("audit",), "there is no store at sqlite:///"),
    "no store to export": (("export", "x", "--out", "out"), "there is no store at sqlite:///"),
    "no store to back up": (("backup", "--out", "out"), "there is no store at sqlite:///"),
    "not a URL": (("audit", "--store-url", "nonsense"), "the store URL is not a database URL"),
    "URL without a colon": (
        ("audit", "--store-url", "postgresql//user:secret@host/db"),
        "the store URL is not a database URL",
    ),
    "URL with an impossible port": (
        ("audit", "--store-url", "postgresql://user:secret@host:notaport/db"),
        "the store URL is not a database URL",
    ),
    "JSON that is nested too deeply": (
        ("tasks", "create", "x", "--preset", "digits", "--overrides", '{"a":' * 5000 + "1" + "}" * 5000),
        "--overrides is nested too deeply",
    ),
    "JSON that is nested deeply": (
        ("tasks", "create", "x", "--preset", "digits", "--overrides", '{"a":' * 900 + "1" + "}" * 900),
        "a: ",
    ),
    "other database": (("serve", "--store-url", "mysql://host/db"), "mysql is not supported"),
    "PostgreSQL that is not there": (
        ("audit", "--store-url", "postgresql://nobody:secret@127.0.0.1:1/none"),
        "the store at postgresql+psycopg://nobody:***@127.0.0.1:1/none cannot be opened: ",
    ),
    "certificate that is not there": (
        ("serve", "--port", "0", "--tls-cert", "no.pem", "--tls-key", "no.key"),
        "no.pem is not a file",
    ),
    "certificate without key": (
        ("serve", "--port", "0", "--tls-cert", "no.pem"),
        "set both tls_cert and tls_key, or none of them",
    ),
}


@pytest.mark.parametrize(("arguments", "said"), WRONG.values(), ids=WRONG)
def test_a_mistake_is_one_line_exit_code_1_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = server_command(*arguments, "--state-dir", tmp_path / "state")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"qidpfl-server: {said}") and len(done.stderr.splitlines()) == 1
    assert "secret" not in done.stderr
    assert files(tmp_path) == set()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{horizon: 5}", "is not JSON: "),
        (b"\xff\xfe", "is not JSON: "),
        (b"[1]", "must be a JSON object"),
        (b"", "is not JSON: "),
    ],
    ids=repr,
)
def test_a_file_of_overrides_that_holds_none_is_named_in_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "overrides.json"
    path.write_bytes(content)
    done = server_command(
        "tasks", "create", "x", "--preset", "digits", "--overrides", f"@{path}", "--state-dir", tmp_path / "s"
    )
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"qidpfl-server: --overrides: {path} {said}")


def test_overrides_come_from_a_file_as_from_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "overrides.json"
    path.write_text(json.dumps(SHORT, indent=2))
    output("tasks", "create", "mine", "--preset", "digits", "--overrides", f"@{path}", "--state-dir", tmp_path)
    assert listed(tmp_path) == {"mine": ("enrolling", "0/2")}
    with running(tmp_path, arguments=("--preset", "digits", "--task", "other", "--overrides", f"@{path}")):
        assert listed(tmp_path) == {"mine": ("enrolling", "0/2"), "other": ("enrolling", "0/2")}


@pytest.mark.parametrize("arguments", [("show",), ("start",), ("stop",)], ids=lambda words: words[0])
def test_an_unknown_task_is_named(finished: Path, arguments: tuple[str, ...]) -> None:
    done = server_command("tasks", *arguments, "nobody", "--state-dir", finished)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "qidpfl-server: there is no task 'nobody'\n")


def test_export_of_an_unknown_task_leaves_no_folder(finished: Path, tmp_path: Path) -> None:
    done = server_command("export", "nobody", "--out", tmp_path / "out", "--state-dir", finished)
    assert (done.returncode, done.stderr) == (1, "qidpfl-server: there is no task 'nobody'\n")
    assert not (tmp_path / "out").exists()


def test_a_second_task_of_the_same_name_is_refused(tmp_path: Path) -> None:
    create(tmp_path, "same")
    done = server_command("tasks", "create", "same", "--preset", "digits", "--state-dir", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "qidpfl-server: task_exists: there is already a task named 'same'\n"


@pytest.mark.parametrize(
    "arguments",
    [("serve", "--port", "0"), ("tasks", "create", "x", "--preset", "digits")],
    ids=["serve", "create"],
)
def test_a_state_folder_that_cannot_be_made_is_named(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "file").write_text("not a folder")
    done = server_command(*arguments, "--state-dir", tmp_path / "file" / "state")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"qidpfl-server: {tmp_path / 'file' / 'state'}: Not a directory\n"


@pytest.mark.parametrize("words", [("export", "done"), ("backup",)], ids=["export", "backup"])
def test_a_folder_that_cannot_be_written_is_named(finished: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "file").write_text("not a folder")
    done = server_command(*words, "--out", tmp_path / "file" / "out", "--state-dir", finished)
    assert (done.returncode, done.stdout) == (1, "")
    assert str(tmp_path / "file") in done.stderr and len(done.stderr.splitlines()) == 1
    assert files(tmp_path) == {"file"}


def test_a_store_of_a_newer_version_is_left_alone_by_every_command(finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    output("backup", "--out", copy, "--state-dir", finished)
    with sqlite3.connect(copy / "coordinator.db") as database:
        database.execute("update alembic_version set version_num = '9999'")
    database.close()
    before = (copy / "coordinator.db").read_bytes()
    for words in (
        ("serve", "--port", "0"),
        ("audit",),
        ("tasks", "list"),
        ("export", "done", "--out", str(tmp_path / "out")),
        ("backup", "--out", str(tmp_path / "out")),
    ):
        done = server_command(*words, "--state-dir", copy)
        assert (done.returncode, done.stdout) == (1, "")
        assert "does not have schema version" in done.stderr and len(done.stderr.splitlines()) == 1
    assert (copy / "coordinator.db").read_bytes() == before
    assert files(tmp_path) == {"copy"}


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "coordinator.db").write_text("a shopping list, or something else of more than a few bytes " * 20)
    done = server_command("audit", "--state-dir", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot be opened: file is not a database" in done.stderr and len(done.stderr.splitlines()) == 1
    assert (tmp_path / "coordinator.db").read_text().startswith("a shopping list")


def test_a_wrong_setting_in_the_environment_is_named(tmp_path: Path) -> None:
    done = server_command("audit", "--state-dir", tmp_path, QIDPFL_PORT="eighty")
    assert done.returncode == 1
    assert done.stderr.startswith("qidpfl-server: port: ") and len(done.stderr.splitlines()) == 1


def test_a_setting_that_is_empty_in_the_environment_counts_as_not_set(finished: Path) -> None:
    empty = {"QIDPFL_STORE_URL": "", "QIDPFL_BLOB_DIR": "", "QIDPFL_PORT": "", "QIDPFL_OPEN_DOCS": ""}
    done = server_command("audit", "--state-dir", finished, **empty)
    assert done.returncode == 0 and "0 violated" in done.stdout


def test_a_port_that_is_taken_ends_the_coordinator(tmp_path: Path) -> None:
    with running(tmp_path / "one") as coordinator:
        port = coordinator.url.rpartition(":")[2]
        done = server_command("serve", "--port", port, "--state-dir", tmp_path / "two")
    assert done.returncode == 1 and "address already in use" in done.stderr
    assert done.stderr.splitlines()[-1] == f"qidpfl-server: cannot listen on 127.0.0.1:{port}"
