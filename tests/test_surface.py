"""The public surface, compared with a stored copy: API, commands, presets, schema, settings, log events, failpoints.

A change here is a change for users. When it is intended, write the copy again and commit it with the change:

    .venv/bin/python tests/test_surface.py
"""

import ast
import csv
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from sqlalchemy import create_engine, inspect

from qidpfl.__main__ import app as qidpfl_app
from qidpfl_client.cli.app import app as client_app
from qidpfl_client.journal.sqlite_file import JournalFile
from qidpfl_experiments.__main__ import app as experiments_app
from qidpfl_experiments.report.about import About
from qidpfl_experiments.report.report import write_report
from qidpfl_server.cli.app import app as server_app
from qidpfl_server.settings import Settings
from qidpfl_shared.protocol.presets import PRESETS, preset
from support.fast_stores import migrate_new
from support.openapi_document import document
from support.synthetic_results import results

ROOT = Path(__file__).parent.parent
STORED = ROOT / "tests/data/surface.json"
# Texts may change at any time.
_TEXTS = {"description", "summary", "title", "detail"}


def api() -> dict[str, Any]:
    """The OpenAPI document without its texts."""
    found = document()
    return {"paths": _without_texts(found["paths"]), "components": _without_texts(found["components"])}


def _without_texts(value: Any, *, named: bool = False) -> Any:
    """`named`: the keys of this object are names of fields, and none of them is a text of the document."""
    if isinstance(value, dict):
        return {
            key: _without_texts(item, named=key in ("properties", "schemas"))
            for key, item in value.items()
            if named or key not in _TEXTS
        }
    return [_without_texts(item) for item in value] if isinstance(value, list) else value


def commands() -> dict[str, list[str]]:
    """The options and arguments of every command."""
    apps = {
        "qidpfl": qidpfl_app,
        "qidpfl-server": server_app,
        "qidpfl-client": client_app,
        "qidpfl-experiments": experiments_app,
    }
    return {
        command: parameters
        for name, app in apps.items()
        for command, parameters in _parameters(name, typer.main.get_command(app))
    }


def _parameters(name: str, command: Any) -> Iterator[tuple[str, list[str]]]:
    for child, inner in getattr(command, "commands", {}).items():
        yield from _parameters(f"{name} {child}", inner)
    yield name, sorted(option for one in command.params for option in (*one.opts, *one.secondary_opts))


def presets() -> dict[str, str]:
    """The digest of every preset."""
    return {name: preset(name).digest for name in PRESETS}


def schema() -> dict[str, dict[str, str]]:
    """Every table with its columns and their types, as the migrations make them."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "coordinator.db"
        migrate_new(file)
        plain = create_engine(f"sqlite:///{file}")
        look = inspect(plain)
        found = {
            table: {column["name"]: str(column["type"]) for column in look.get_columns(table)}
            for table in look.get_table_names()
        }
        plain.dispose()
    return found


def journal() -> list[str]:
    """The tables of a client's journal."""
    with tempfile.TemporaryDirectory() as folder:
        file = JournalFile(Path(folder) / "journal.db", read_only=False)
        found = [str(row[0]) for row in file.all("select sql from sqlite_master where sql is not null order by name")]
        file.close()
    return found


def report() -> dict[str, Any]:
    """The files of a report on made-up results, and what its table of claims says, texts left out."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tables = results(methods=("fedavg", "fedavg-select", "fedavg-dp", "qi-dpfl", "my-rule"), seeds=3)
        write_report(folder, tables, About(title="MNIST", command="qidpfl-experiments run"))
        files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        with (folder / "claims.csv").open(newline="") as file:
            claims = list(csv.DictReader(file))
    return {"files": files, "columns": list(claims[0]), "verdicts": [[row["claim"], row["verdict"]] for row in claims]}


def settings() -> list[str]:
    return sorted(f"QIDPFL_{name.upper()}" for name in Settings.model_fields)


def _calls() -> Iterator[tuple[str, str]]:
    """Every call whose first argument is a word: what is called, and the word."""
    for name in ("shared", "server", "client", "experiments"):
        for path in (ROOT / name / f"qidpfl_{name}").rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                    yield ast.unparse(node.func), str(node.args[0].value)


def log_events() -> list[str]:
    levels = re.compile(r"_?(?:limited_)?log\.(debug|info|warning|error|exception|critical)")
    return sorted({word for called, word in _calls() if levels.fullmatch(called)})


def failpoints() -> list[str]:
    return sorted({word for called, word in _calls() if called == "failpoint"})


def task_events() -> list[str]:
    """What the live feed of a task names."""
    with_task = {
        str(node.args[1].value)
        for path in (ROOT / "server/qidpfl_server").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "tx.events.add" and len(node.args) > 1
        if isinstance(node.args[1], ast.Constant)
    }
    return sorted(with_task)


SURFACE = {
    "api": api,
    "commands": commands,
    "presets": presets,
    "schema": schema,
    "journal": journal,
    "settings": settings,
    "report": report,
    "log_events": log_events,
    "failpoints": failpoints,
    "task_events": task_events,
}


@pytest.mark.parametrize("part", list(SURFACE))
def test_the_surface_is_as_stored(part: str) -> None:
    stored = json.loads(STORED.read_text())[part]
    assert json.loads(json.dumps(SURFACE[part]())) == stored


if __name__ == "__main__":
    STORED.parent.mkdir(exist_ok=True)
    STORED.write_text(json.dumps({part: read() for part, read in SURFACE.items()}, indent=1) + "\n")
