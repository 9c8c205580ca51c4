"""Mistakes in commands: one line that says what is wrong, and nothing left behind."""

import json
import sqlite3
from pathlib import Path

import pytest

from support.commands import server_command
from support.coordinators import running
from support.server_commands import SHORT, create, files, listed, output

pytestmark = pytest.mark.live

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
    "rules that are not loaded": (
        ("serve", "--preset", "digits", "--overrides", '{"game": {"policy": "own", "own_rules": "mine"}}'),
        "rules_not_loaded: rules mine are not loaded: --rules mine.py is needed",
    ),
    "impossible value": (
        ("tasks", "create", "x", "--preset", "digits", "--overrides", '{"game": {"horizon": 0}}'),
        "game.horizon: ",
    ),
    "impossible name": (("tasks", "create", "a b", "--preset", "digits"), "'a b' cannot be a name"),
    "overrides without preset": (("serve", "--task", "x"), "--task, --clients, --rounds and --overrides need a"),
    "a network that cannot learn the data set": (
        ("tasks", "create", "x", "--preset", "digits", "--overrides", '{"workload": {"network": "lenet"}}'),
        "inconsistent_spec: network 'lenet' accepts images of at least 16x16, but 'digits' has 8x8 with 1 channel;"
        " networks that fit: linear",
    ),
    "the neutral preset without a workload": (("tasks", "create", "x", "--preset", "own"), "inconsistent_spec: preset"),
    "serve of the neutral preset without a workload": (("serve", "--preset", "own"), "serve --preset own needs one"),
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
def test_an_overrides_file_without_overrides_is_named_in_one_line(tmp_path: Path, content: bytes, said: str) -> None:
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
    assert done.stderr.startswith("qidpfl-server: task_exists: there is already a task named 'same': take another name")
    assert "tasks codes NAME --new 3" in done.stderr and done.stderr.count("\n") == 1


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
        assert coordinator.process is not None
        pid = coordinator.process.pid
    line = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert line.startswith(f"qidpfl-server: port {port} of 127.0.0.1 is already in use by process {pid} (")
    assert int(line.rpartition(" --port ")[2]) > int(port)


@pytest.mark.parametrize("command", [("serve", "--preset", "digits"), ("tasks", "create", "x", "--preset", "digits")])
def test_no_rounds_are_refused_with_the_smallest_number(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = server_command(*command, "--rounds", "0", "--state-dir", tmp_path / "state")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "'--rounds'" in done.stderr and "1" in done.stderr
    assert not (tmp_path / "state").exists()
