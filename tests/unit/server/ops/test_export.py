"""Exports: tables whose money adds up, the versions of the model, and what is not exported."""

import csv
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from qidpfl_server.errors import RequestRefused
from qidpfl_server.ops.export import read_export, write_export
from qidpfl_server.ops.tables import TableFormat
from qidpfl_shared.protocol.errors import ErrorCode
from support.use_cases import ServedTask, UseCases

pytestmark = pytest.mark.slow

TABLES = ("rounds", "clients", "budgets", "payments", "ledgers")


def finished(cases: UseCases) -> ServedTask:
    """A task of two rounds that has finished."""
    task, clients = cases.training(game={"horizon": 2})
    for number in (1, 2):
        cases.clock.advance(1.0)
        task.play(clients, number)
    return task


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_money_of_the_tables_adds_up_and_the_newest_model_is_exported(cases: UseCases, tmp_path: Path) -> None:
    task, out = finished(cases), tmp_path / "out"
    written = write_export(read_export(cases.store, task.task_id), out, TableFormat.CSV)
    evidence = {"chain.jsonl", "rows.jsonl", "models.jsonl", "proof.json"}
    names = {"task.json", "model-2.safetensors", *(f"{name}.csv" for name in TABLES)} | evidence
    assert {path.name for path in out.iterdir()} == {path.name for path in written} == names
    shapes = {name: tensor.shape for name, tensor in load_file(out / "model-2.safetensors").items()}
    assert shapes == {"weight": (10, 64), "bias": (10,)}
    payments, ledgers = rows(out / "payments.csv"), rows(out / "ledgers.csv")
    assert len(rows(out / "clients.csv")) == 3 and len(rows(out / "budgets.csv")) == len(payments) == 6
    for round_ in rows(out / "rounds.csv"):
        paid = sum(int(row["amount_micro"]) for row in payments if row["round_number"] == round_["round_number"])
        assert paid + int(round_["kept_micro"]) == int(round_["reward_micro"]) > 0
        assert datetime.fromisoformat(round_["opened_at"]) < datetime.fromisoformat(round_["settled_at"])
    earned = sum(int(row["payment_micro"] or 0) for row in ledgers)
    assert earned == sum(int(row["amount_micro"]) for row in payments)
    assert earned == json.loads((out / "task.json").read_text())["paid_micro"]
    assert {row["accepted"] for row in rows(out / "budgets.csv")} == {"true"}


def test_json_has_the_same_content_as_csv(cases: UseCases, tmp_path: Path) -> None:
    export = read_export(cases.store, finished(cases).task_id)
    for table_format in TableFormat:
        write_export(export, tmp_path / "out", table_format)
    for name in TABLES:
        table = json.loads((tmp_path / "out" / f"{name}.json").read_text())
        written = [{key: _cell(value) for key, value in row.items()} for row in table]
        assert written == rows(tmp_path / "out" / f"{name}.csv")


def _cell(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def test_an_older_version_is_exported_if_it_is_kept(cases: UseCases, tmp_path: Path) -> None:
    task = finished(cases)
    write_export(read_export(cases.store, task.task_id, 0), tmp_path, TableFormat.CSV)
    assert not any(tensor.any() for tensor in load_file(tmp_path / "model-0.safetensors").values())
    with pytest.raises(RequestRefused, match="there is no model version 9; versions 0 to 2 are kept") as refusal:
        read_export(cases.store, task.task_id, 9)
    assert refusal.value.code is ErrorCode.NOT_FOUND


def test_a_task_that_does_not_exist_is_not_exported(cases: UseCases) -> None:
    with pytest.raises(RequestRefused, match="there is no such task"):
        read_export(cases.store, "nowhere")


def test_an_open_round_is_exported_without_its_budgets(cases: UseCases) -> None:
    task, clients = cases.training()
    clients[0].play()
    tables = {name: found for name, (_, found) in read_export(cases.store, task.task_id).tables.items()}
    assert [row["state"] for row in tables["rounds"]] == ["open"]
    assert tables["budgets"] == tables["payments"] == []
    assert {row["release"] for row in tables["ledgers"]} == {"histogram"}
