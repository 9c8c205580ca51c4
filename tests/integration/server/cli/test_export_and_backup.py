"""`export` and `backup`: every command as its own process, on live and on stopped stores."""

import csv
import json
import stat
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from support.commands import server_command
from support.coordinators import ScriptedClient, play_to_the_end, running
from support.server_commands import SHORT, create, files, join, listed, output

pytestmark = pytest.mark.live


# --- export ----------------------------------------------------------------------------------------------------------


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_export_writes_tables_whose_money_adds_up_and_the_newest_model(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    *printed, _, head = output("export", "done", "--out", out, "--state-dir", finished).split()
    tables = {f"{name}.csv" for name in ("rounds", "clients", "budgets", "payments", "ledgers")}
    evidence = {"chain.jsonl", "rows.jsonl", "models.jsonl", "proof.json"}
    assert files(out) == {"task.json", "model-2.safetensors"} | tables | evidence
    assert files(out) == {Path(path).name for path in printed}
    assert {stat.S_IMODE(path.stat().st_mode) for path in out.iterdir()} == {0o600}
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    assert "0 violated" in output("audit", "--head", head, "--head", out / "proof.json", "--state-dir", finished)
    assert {name: tensor.shape for name, tensor in load_file(out / "model-2.safetensors").items()} == {
        "weight": (10, 64),
        "bias": (10,),
    }
    payments, ledgers = rows(out / "payments.csv"), rows(out / "ledgers.csv")
    assert len(rows(out / "clients.csv")) == 3 and len(rows(out / "budgets.csv")) == len(payments) == 6
    for round_ in rows(out / "rounds.csv"):
        paid = sum(int(row["amount_micro"]) for row in payments if row["round_number"] == round_["round_number"])
        assert paid + int(round_["kept_micro"]) == int(round_["reward_micro"]) > 0
        assert float(round_["settlement_s"]) > 0 and float(round_["evaluation_s"]) > 0
        assert datetime.fromisoformat(round_["opened_at"]) < datetime.fromisoformat(round_["settled_at"])
    earned = sum(int(row["payment_micro"] or 0) for row in ledgers)
    assert earned == sum(int(row["amount_micro"]) for row in payments)
    assert earned == json.loads((out / "task.json").read_text())["paid_micro"]
    assert {row["accepted"] for row in rows(out / "budgets.csv")} == {"true"}


def test_export_in_json_has_the_same_content_as_in_csv(finished: Path, tmp_path: Path) -> None:
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


def test_a_backup_writes_its_copy_to_its_folder_although_the_environment_names_another_store(
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


def test_a_postgresql_store_is_backed_up_by_pg_dump_and_its_blobs_by_backup(tmp_path: Path, postgres_url: str) -> None:
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
