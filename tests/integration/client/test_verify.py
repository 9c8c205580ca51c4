"""`qidpfl-client verify` against honest and tampered exports, and a client whose coordinator was rewritten.

One live task makes the journals and the export. Each test changes a copy of the export as a dishonest operator would.
"""

import csv
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from qidpfl_client.cli.app import app
from qidpfl_server.ops.open_store import opened_store
from qidpfl_server.ops.signing import load_key
from qidpfl_server.settings import Settings
from qidpfl_server.store.adoption import adopt_tasks
from qidpfl_shared.protocol.chain import FIRST_HEAD, extended
from qidpfl_shared.protocol.signatures import ChainHead, ChainPosition, SigningKey
from support.commands import server_command
from support.coordinators import Coordinator, ScriptedClient, running

pytestmark = pytest.mark.live

CLIENTS = 3
Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the state, the journal of a real client and an export of a task that has ended."""
    folder = tmp_path_factory.mktemp("verify")
    with running(folder / "state") as coordinator:
        task_id, code = coordinator.create_task(
            game={"horizon": 2},
            rounds={"expected_clients": CLIENTS},
            selection={"rule": "all"},
            defence={"escrow": 0.25},
        )
        (folder / "code").write_text(code)
        client = subprocess.Popen(
            [
                *(sys.executable, "-m", "qidpfl_client", "run", "--server", coordinator.url, "--no-slots"),
                *("--code-file", str(folder / "code"), "--journal", str(folder / "journal.sqlite")),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        others = [ScriptedClient(coordinator.url, task_id, code, f"the-key-of-client-{n}") for n in range(1, CLIENTS)]
        for other in others:
            other.enrol()
            other.profile().raise_for_status()
        _play(others)
        said = client.communicate(timeout=240)[1]
        assert client.returncode == 0, said
        assert "0 violated" in coordinator.audit()
    done = server_command("export", "task", "--out", str(folder / "export"), "--state-dir", str(folder / "state"))
    assert done.returncode == 0, done.stderr
    yield folder


def _play(clients: list[ScriptedClient]) -> None:
    while True:
        for client in clients:
            news = None
            while news is None:
                news = client.poll(wait=30)
            if news["round"] is None and news["task_state"] not in ("enrolling", "training"):
                return
            if news["round"] is not None:
                client.play(news["round"])


@pytest.fixture
def export(played: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(played / "export", tmp_path / "export"))


def verify(played: Path, export: Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["verify", "--export", str(export), "--journal", str(played / "journal.sqlite")])
    return done.exit_code, done.output


def test_an_honest_export_is_verified_by_the_command(played: Path, export: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "qidpfl_client", "verify", "--export", str(export)),
            *("--journal", str(played / "journal.sqlite")),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "verified"
    table = [line for line in done.stdout.splitlines()[1:-1] if not line.startswith("not checked")]
    kinds = {line.split()[0]: int(line.split()[1]) for line in table}
    assert kinds["model"] >= 4 and kinds["table"] >= 2 + 3 * 2 * CLIENTS
    unknown = [line for line in done.stdout.splitlines() if line.startswith("not checked")]
    assert unknown == [
        "not checked: table rounds: noise",
        "not checked: table budgets: ordinal, regret",
        "not checked: table payments: ordinal",
        "not checked: table ledgers: mechanism, ordinal, proven_rho",
        "not checked: table ledgers: the histograms",
        "not checked: task.json: all but the spec",
        "not checked: clients.csv",
    ]
    assert kinds["update"] >= 2 and kinds["announcement"] >= 2 and kinds["result"] >= 2 and kinds["own"] >= 8


def test_an_export_in_json_is_verified_too(played: Path, tmp_path: Path) -> None:
    out = tmp_path / "json"
    where = ("--state-dir", str(played / "state"))
    assert server_command("export", "task", "--out", str(out), "--format", "json", *where).returncode == 0
    assert verify(played, out) == (0, verify(played, out)[1])


def _own(played: Path) -> str:
    with sqlite3.connect(played / "journal.sqlite") as journal:
        return str(journal.execute("select client_id from memberships").fetchone()[0])


def _edit_csv(path: Path, change: Callable[[list[dict[str, str]]], object]) -> None:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    change(rows)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _edit_lines(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def swap_payments(export: Path) -> None:
    def change(rows: list[dict[str, str]]) -> None:
        rows[0]["amount_micro"], rows[1]["amount_micro"] = "1", "2"

    _edit_csv(export / "payments.csv", change)


def lower_a_budget(export: Path) -> None:
    _edit_csv(export / "budgets.csv", lambda rows: rows[0].update(rho="0.001"))


def drop_a_payment(export: Path) -> None:
    _edit_csv(export / "payments.csv", lambda rows: rows.pop())


def release_the_escrow(export: Path) -> None:
    _edit_csv(export / "payments.csv", lambda rows: rows[0].update(escrow_micro="0"))


def raise_the_escrow(export: Path) -> None:
    _edit_csv(export / "budgets.csv", lambda rows: rows[0].update(escrow_micro="1000000"))


def change_a_row(export: Path) -> None:
    _edit_lines(export / "rows.jsonl", lambda lines: lines[0]["rows"]["payments"][0].update(amount_micro=1))


def drop_the_last_round(export: Path) -> None:
    _edit_lines(export / "rows.jsonl", lambda lines: lines.pop())


def drop_an_entry(export: Path) -> None:
    _edit_lines(export / "chain.jsonl", lambda lines: lines.pop(len(lines) // 2))


def change_an_entry(export: Path) -> None:
    _edit_lines(export / "chain.jsonl", lambda lines: lines[3].update(content="00" * 32))


def cut_off(export: Path) -> None:
    _edit_lines(export / "chain.jsonl", lambda lines: lines.__delitem__(slice(-8, None)))


def other_spec(export: Path) -> None:
    task = json.loads((export / "task.json").read_text())
    (export / "task.json").write_text(json.dumps(task | {"spec_digest": "00" * 32}))


def change_a_byte_of_the_model(export: Path) -> None:
    path = export / "model-2.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def drop_the_model(export: Path) -> None:
    (export / "model-2.safetensors").unlink()


def cut_the_model(export: Path) -> None:
    path = export / "model-2.safetensors"
    path.write_bytes(path.read_bytes()[:-4])


def change_the_recorded_model(export: Path) -> None:
    _edit_lines(export / "models.jsonl", lambda lines: lines[-1]["row"].update(digest="00" * 32))


def raise_the_accuracy(export: Path) -> None:
    _edit_csv(export / "rounds.csv", lambda rows: rows[0].update(accuracy="0.999"))


def lower_the_reward(export: Path) -> None:
    _edit_csv(export / "rounds.csv", lambda rows: rows[0].update(reward_micro="1"))


def lower_what_was_paid(export: Path) -> None:
    _edit_csv(export / "rounds.csv", lambda rows: rows[0].update(paid_micro="1"))


def other_model_digest(export: Path) -> None:
    _edit_csv(export / "rounds.csv", lambda rows: rows[0].update(model_digest="00" * 32))


def drop_the_rounds(export: Path) -> None:
    (export / "rounds.csv").unlink()


def pay_in_the_ledger(export: Path) -> None:
    _edit_csv(export / "ledgers.csv", lambda rows: rows[-1].update(payment_micro="1"))


def drop_a_ledger_row(export: Path) -> None:
    _edit_csv(export / "ledgers.csv", lambda rows: rows.pop())


def pay_twice(export: Path) -> None:
    _edit_csv(export / "payments.csv", lambda rows: rows.insert(0, rows[0] | {"amount_micro": "1"}))


@pytest.mark.parametrize(
    "change",
    [
        *(swap_payments, lower_a_budget, drop_a_payment, release_the_escrow, raise_the_escrow),
        *(change_a_row, drop_the_last_round, drop_an_entry, change_an_entry, cut_off, other_spec),
        *(change_a_byte_of_the_model, drop_the_model, cut_the_model, change_the_recorded_model, pay_twice),
        *(raise_the_accuracy, lower_the_reward, lower_what_was_paid, other_model_digest, drop_the_rounds),
        *(pay_in_the_ledger, drop_a_ledger_row),
    ],
    ids=lambda change: change.__name__,
)
def test_a_tampered_export_differs(change: Change, played: Path, export: Path) -> None:
    change(export)
    code, said = verify(played, export)
    assert code == 1 and "verified" not in said.splitlines()
    assert "differs:" in said or "chain is broken" in said or "two rows" in said


def test_an_export_of_an_earlier_version_is_verified_as_far_as_it_goes(played: Path, export: Path) -> None:
    """It has no models.jsonl and fewer columns. The signed result names the newest model, so a change is found."""
    (export / "models.jsonl").unlink()
    for table, column in (("rounds", "evaluated_at"), ("payments", "escrow_micro")):
        _without_column(export / f"{table}.csv", column)
    code, said = verify(played, export)
    assert code == 0 and said.splitlines()[-1] == "verified"
    assert "not checked: models.jsonl is not there" in said
    assert "not checked: table payments has no column escrow_micro" in said
    change_a_byte_of_the_model(export)
    code, said = verify(played, export)
    assert code == 1 and "differs: model-2.safetensors is not the recorded version 2 of the model" in said


def _without_column(path: Path, column: str) -> None:
    _edit_csv(path, lambda rows: [row.pop(column) for row in rows])


@pytest.mark.parametrize(
    "name", ["model-2.safetensors", *(f"{table}.csv" for table in ("rounds", "ledgers", "budgets"))]
)
def test_a_missing_file_is_named(name: str, played: Path, export: Path) -> None:
    (export / name).unlink()
    code, said = verify(played, export)
    word = {"model-2.safetensors": "model-N.safetensors is missing", "budgets.csv": "budgets.csv cannot be read"}
    assert code == 1 and word.get(name, f"table {name.removesuffix('.csv')} is missing") in said


def _rewritten(played: Path, export: Path, key: SigningKey, *, count: int | None = None) -> None:
    """Write the chain of an export again from its own facts, without the last ones, and sign it."""
    task_id = json.loads((export / "task.json").read_text())["task_id"]
    lines = [json.loads(line) for line in (export / "chain.jsonl").read_text().splitlines()][:count]
    facts = [(line["kind"], line["subject"], line["content"]) for line in lines]
    facts[1] = (facts[1][0], facts[1][1], "11" * 32) if count is None else facts[1]
    entries = list(extended(FIRST_HEAD, 0, facts))
    fields = ("sequence", "kind", "subject", "content", "head")
    text = "".join(f"{json.dumps({name: getattr(entry, name) for name in fields})}\n" for entry in entries)
    (export / "chain.jsonl").write_text(text)
    last = ChainPosition(task_id=task_id, sequence=entries[-1].sequence, head=entries[-1].head)
    proof = json.loads((export / "proof.json").read_text())
    proof["head"] = key.signed(ChainHead(chain=last)).model_dump(mode="json")
    (export / "proof.json").write_text(json.dumps(proof))


@pytest.mark.parametrize("count", [None, -6], ids=["rewritten", "cut off"])
def test_what_the_holder_of_the_key_rewrites_is_found_by_the_kept_receipts(
    count: int | None, played: Path, export: Path
) -> None:
    """Everything in the export fits together and is signed: only the heads of the journal tell the difference."""
    key = load_key(played / "state" / "signing.key")
    assert key is not None
    _rewritten(played, export, key, count=count)
    code, said = verify(played, export)
    assert code == 1
    assert "records were rewritten" in said if count is None else "is missing: it is entry" in said


def test_a_head_of_another_key_differs(played: Path, export: Path) -> None:
    _rewritten(played, export, SigningKey.new(), count=-1)
    code, said = verify(played, export)
    assert code == 1 and "not signed by the pinned key" in said


def test_another_journal_or_folder_is_one_line(played: Path, export: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    empty = runner.invoke(app, ["verify", "--export", str(tmp_path), "--journal", str(played / "journal.sqlite")])
    assert empty.exit_code == 1 and empty.stderr.count("\n") == 1 and "task.json cannot be read" in empty.stderr
    with sqlite3.connect(played / "journal.sqlite") as source, sqlite3.connect(tmp_path / "other.sqlite") as copy:
        source.backup(copy)
        copy.execute("delete from pinned_keys")
    unpinned = runner.invoke(app, ["verify", "--export", str(export), "--journal", str(tmp_path / "other.sqlite")])
    assert unpinned.exit_code == 1 and "there is nothing to check" in unpinned.stderr


def test_the_journal_keeps_one_message_of_each_kind_and_no_token(played: Path) -> None:
    """Bounds the size: more than one announcement of an attempt would grow with every poll."""
    with sqlite3.connect(played / "journal.sqlite") as journal:
        kinds = journal.execute("select kind, count(*) from receipts group by kind order by kind").fetchall()
        (token,) = journal.execute("select token from memberships").fetchone()
        bodies = "".join(row[0] for row in journal.execute("select body from receipts"))
    assert kinds == [
        *(("announcement", 2), ("budget", 2), ("enrolment", 1), ("profile", 1), ("result", 2), ("update", 2)),
    ]
    assert token not in bodies


def test_a_client_stops_when_the_coordinator_has_rewritten_its_records(tmp_path: Path) -> None:
    """The chain is written again with the right key while the client is away: its next receipt contradicts the kept."""
    with running(tmp_path / "state") as coordinator:
        said = _interrupted(coordinator, tmp_path, _write_again)
    assert "rewritten its records" in said and said.count("qidpfl-client:") == 1


def test_a_client_stops_when_the_coordinator_has_another_key(tmp_path: Path) -> None:
    def another_key(state: Path) -> None:
        (state / "signing.key").unlink()
        done = server_command("keys", "rotate", "--lost", "--state-dir", str(state))
        assert done.returncode == 0, done.stderr

    with running(tmp_path / "state") as coordinator:
        said = _interrupted(coordinator, tmp_path, another_key)
    assert "another key than the pinned one" in said


def test_a_client_goes_on_when_the_key_was_replaced_by_an_endorsed_one(tmp_path: Path) -> None:
    def rotate(state: Path) -> None:
        done = server_command("keys", "rotate", "--state-dir", str(state))
        assert done.returncode == 0, done.stderr

    with running(tmp_path / "state") as coordinator:
        said = _interrupted(coordinator, tmp_path, rotate, succeeds=True)
    assert "the task is finished" in said


def _write_again(state: Path) -> None:
    with sqlite3.connect(state / "coordinator.db") as database:
        for table in ("chain", "chain_heads"):
            database.execute(f"delete from {table}")
    with opened_store(Settings(state_dir=state)) as store:
        store.write(lambda tx: adopt_tasks(tx.connection, tx.key))


def _interrupted(coordinator: Coordinator, folder: Path, change: Change, *, succeeds: bool = False) -> str:
    """Kill the client after its first upload, change the stopped coordinator, and start both again."""
    task_id, code = coordinator.create_task(
        game={"horizon": 1},
        rounds={"expected_clients": 2, "min_clients": 2, "min_updates": 2},
        selection={"rule": "all"},
    )
    (folder / "code").write_text(code)
    other = ScriptedClient(coordinator.url, task_id, code, "the-key-of-the-other", locate=lambda: coordinator.url)
    other.enrol()
    other.profile().raise_for_status()
    assert _client(coordinator, folder, {"QIDPFL_FAILPOINT": "client.declared"}).returncode == -9
    coordinator.stop()
    change(coordinator.state_dir)
    coordinator.start()
    other.http.base_url = f"{coordinator.url}/v1/tasks/{task_id}"
    news = other.poll()
    assert news is not None
    other.play(news["round"])
    done = _client(coordinator, folder, {})
    assert done.returncode == (0 if succeeds else 1), done.stderr
    return done.stderr


def _client(coordinator: Coordinator, folder: Path, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [
            *(sys.executable, "-m", "qidpfl_client", "run", "--server", coordinator.url, "--no-slots", "--moved"),
            *("--code-file", str(folder / "code"), "--journal", str(folder / "journal.sqlite")),
        ],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
