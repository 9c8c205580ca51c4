"""Reads the files of an export that a client checks. The coordinator's operator gives the folder to its clients."""

import csv
import json
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from qidpfl_shared.protocol.chain import BrokenChain, ChainEntry, checked
from qidpfl_shared.protocol.signatures import ChainHead, KeyList

from ..errors import ClientError

Row = dict[str, Any]
Key = TypeVar("Key", bound=Hashable)


class UnreadableExport(ClientError):
    """The folder is not an export, or one of its files is missing or damaged."""


@dataclass(frozen=True, kw_only=True)
class ExportFiles:
    """An export: its task, the checked chain, the rows of closed rounds, the signed head, and its tables."""

    task_id: str
    name: str
    spec_digest: str
    spec: Row
    chain: list[ChainEntry]
    # By subject `round/N`, then by table.
    rows: dict[str, dict[str, list[Row]]]
    # By subject `model/V` or `evaluation/N`. None: an export of an earlier version.
    models: dict[str, Row] | None
    head: ChainHead
    keys: KeyList
    # By round and client: the texts of the cells.
    budgets: dict[tuple[int, str], Row]
    payments: dict[tuple[int, str], Row]
    # By round, and by client and release. None: the file is not there.
    rounds: dict[int, Row] | None
    ledgers: dict[tuple[str, str], Row] | None
    files: list[Path]

    def columns(self, table: str) -> set[str] | None:
        """The columns of a table; empty if it has no rows, None if it is not there."""
        rows = {"budgets": self.budgets, "payments": self.payments, "rounds": self.rounds, "ledgers": self.ledgers}
        found: Mapping[Any, Row] | None = rows[table]
        return None if found is None else set(next(iter(found.values()), ()))


def read_export(folder: Path) -> ExportFiles:
    """Read an export. Raises `UnreadableExport`."""
    task = _json(folder / "task.json")
    proof = _json(folder / "proof.json")
    try:
        return ExportFiles(
            task_id=str(task["task_id"]),
            name=str(task["name"]),
            spec_digest=str(task["spec_digest"]),
            spec=dict(task["spec"]),
            chain=list(checked(ChainEntry(**line) for line in _lines(folder / "chain.jsonl"))),
            rows={str(line["subject"]): dict(line["rows"]) for line in _lines(folder / "rows.jsonl")},
            models=_models(folder / "models.jsonl"),
            head=ChainHead.model_validate(proof["head"]),
            keys=KeyList.model_validate({"keys": proof["keys"]}),
            budgets=_by_round_and_client(folder, "budgets"),
            payments=_by_round_and_client(folder, "payments"),
            rounds=_if_there(folder, "rounds", lambda row: int(row["round_number"])),
            ledgers=_if_there(folder, "ledgers", lambda row: (str(row["client_id"]), str(row["release"]))),
            files=sorted(path for path in folder.iterdir() if path.is_file()),
        )
    except BrokenChain as error:
        raise UnreadableExport(f"{folder / 'chain.jsonl'}: the chain is broken: {error}") from error
    except ValidationError:
        raise UnreadableExport(f"{folder / 'proof.json'} is damaged") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableExport(f"{folder} is not a complete export: {type(error).__name__} {error}") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UnreadableExport(
            f"{path} cannot be read: {error.strerror or error}; ask the operator for a whole export"
        ) from error
    except ValueError as error:
        raise UnreadableExport(f"{path} is not text") from error


def _json(path: Path) -> Row:
    try:
        value = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise UnreadableExport(f"{path} is not JSON") from error
    if not isinstance(value, dict):
        raise UnreadableExport(f"{path} is not a JSON object")
    return value


def _lines(path: Path) -> Iterator[Row]:
    for number, line in enumerate(_text(path).splitlines(), start=1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UnreadableExport(f"{path}, line {number}, is not JSON") from error
        if not isinstance(value, dict):
            raise UnreadableExport(f"{path}, line {number}, is not a JSON object")
        yield value


def _models(path: Path) -> dict[str, Row] | None:
    return {str(line["subject"]): dict(line["row"]) for line in _lines(path)} if path.exists() else None


def _by_round_and_client(folder: Path, name: str) -> dict[tuple[int, str], Row]:
    return _keyed(_table(folder, name), name, lambda row: (int(row["round_number"]), str(row["client_id"])))


def _if_there(folder: Path, name: str, key: Callable[[Row], Key]) -> dict[Key, Row] | None:
    there = any((folder / f"{name}.{ending}").exists() for ending in ("csv", "json"))
    return _keyed(_table(folder, name), name, key) if there else None


def _keyed(rows: list[Row], name: str, key: Callable[[Row], Key]) -> dict[Key, Row]:
    found = {key(row): row for row in rows}
    if len(found) < len(rows):
        raise ValueError(f"table {name} has two rows for the same")
    return found


def _table(folder: Path, name: str) -> list[Row]:
    """A table of the export, as CSV or JSON."""
    as_csv, as_json = folder / f"{name}.csv", folder / f"{name}.json"
    if as_json.exists() and not as_csv.exists():
        return list(json.loads(_text(as_json)))
    return list(csv.DictReader(_text(as_csv).splitlines()))
