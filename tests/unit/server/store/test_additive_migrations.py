"""Migrations that an earlier release survives while it runs: replicas are replaced one after the other.

An earlier program reads and writes the tables that it knows, by the names of its columns. So a migration may add
tables, indexes and columns that may be missing, and nothing else. docs/operations.md has the rule.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from qidpfl_server.store import database

# The first release with rolling upgrades has this schema. Earlier programs must stop before a later one starts.
FIRST = "0012"
ALLOWED = {"add_column", "create_index", "create_table", "f"}
FILES = sorted((Path(database.__file__).parent / "migrations/versions").glob("[0-9]*.py"))


def refusals(source: str) -> Iterator[str]:
    """The steps of a migration that a running program of an earlier release might not survive."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if not isinstance(node.func.value, ast.Name) or node.func.value.id != "op":
            continue
        if node.func.attr not in ALLOWED:
            yield f"op.{node.func.attr}"
        if node.func.attr == "add_column":
            options = {keyword.arg: keyword.value for column in node.args[1:] for keyword in _keywords(column)}
            nullable = options.get("nullable")
            is_nullable = nullable is None or (isinstance(nullable, ast.Constant) and nullable.value is True)
            if not is_nullable and "server_default" not in options:
                yield "a column that a row of an earlier release lacks"
        if node.func.attr == "create_index" and any(one.arg == "unique" for one in node.keywords):
            yield "a unique index"


def _keywords(column: ast.expr) -> list[ast.keyword]:
    return column.keywords if isinstance(column, ast.Call) else []


@pytest.mark.parametrize("path", [path for path in FILES if path.name[:4] >= FIRST], ids=lambda path: path.stem)
def test_a_migration_only_adds_what_an_earlier_release_need_not_know(path: Path) -> None:
    assert list(refusals(path.read_text())) == []


@pytest.mark.parametrize(
    "step",
    [
        "op.drop_column('rounds', 'loss')",
        "op.alter_column('rounds', 'loss', nullable=False)",
        "op.execute('UPDATE rounds SET loss = 0')",
        "op.add_column('rounds', sa.Column('more', sa.Integer(), nullable=False))",
        "op.create_index('one', 'rounds', ['loss'], unique=True)",
    ],
)
def test_a_step_that_an_earlier_release_may_not_survive_is_refused(step: str) -> None:
    assert list(refusals(step))
