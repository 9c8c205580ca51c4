"""Reads the files of an export that a client checks. The coordinator's operator gives the folder to its clients."""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from qidpfl_shared.protocol.chain import BrokenChain, ChainEntry, checked
from qidpfl_shared.protocol.signatures import ChainHead, KeyList

from ..errors import ClientError

Row = dict[str, Any]


class UnreadableExport(ClientError):
    """The folder is not an export, or one of its files is missing or damaged."""


@dataclass(frozen=True, kw_only=True)
class ExportFiles:
    """An export: its task, the checked chain, the rows of closed rounds, the signed head, and two of its tables."""

    task_id: str
    name: str
    spec_digest: str
    chain: list[ChainEntry]
    # By subject `round/N`, then by table.
    rows: dict[str, dict[str, list[Row]]]
    head: ChainHead
    keys: KeyList
    # By round and client: the texts of the cells.
    budgets: dict[tuple[int, str], Row]
    payments: dict[tuple[int, str], Row]


def read_export(folder: Path) -> ExportFiles:
    """Read an export. Raises `UnreadableExport`."""
    task = _json(folder / "task.json")
    proof = _json(folder / "proof.json")
    try:
        return ExportFiles(
            task_id=str(task["task_id"]),
            name=str(task["name"]),
            spec_digest=str(task["spec_digest"]),
            chain=list(checked(ChainEntry(**line) for line in _lines(folder / "chain.jsonl"))),
            rows={str(line["subject"]): dict(line["rows"]) for line in _lines(folder / "rows.jsonl")},
            head=ChainHead.model_validate(proof["head"]),
            keys=KeyList.model_validate({"keys": proof["keys"]}),
            budgets=_table(folder, "budgets"),
            payments=_table(folder, "payments"),
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


def _table(folder: Path, name: str) -> dict[tuple[int, str], Row]:
    """A table of the export, as CSV or JSON, by round and client."""
    as_csv = folder / f"{name}.csv"
    if as_csv.exists():
        rows: list[Row] = list(csv.DictReader(_text(as_csv).splitlines()))
    else:
        rows = json.loads(_text(folder / f"{name}.json"))
    return {(int(row["round_number"]), str(row["client_id"])): row for row in rows}
