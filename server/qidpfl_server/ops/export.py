"""Export of a task: rounds, clients, budgets, payments and ledgers as tables, and the model as safetensors.

Like the API, an export does not contain the budgets of a round that is still open.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qidpfl_shared.durable_files import create_folder, write_durably
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import RoundResult, RoundState
from qidpfl_shared.protocol.releases import release_of

from ..domain import Client, Model, Round, Task
from ..errors import RequestRefused
from ..service.figures import round_noise
from ..service.retention import first_kept_version
from ..service.views import ledger, round_result, task_view
from ..store.blobs import Blobs
from ..store.store import Store
from ..store.transaction import Transaction
from .evidence import evidence_files
from .model_files import safetensors_bytes
from .tables import (
    BUDGET_COLUMNS,
    CLIENT_COLUMNS,
    LEDGER_COLUMNS,
    PAYMENT_COLUMNS,
    ROUND_COLUMNS,
    Row,
    TableFormat,
    budget_rows,
    client_row,
    csv_text,
    ledger_rows,
    payment_rows,
    round_row,
    whole_rows,
)


@dataclass(frozen=True, kw_only=True)
class Export:
    """Everything that an export writes, read at one moment."""

    task: Row
    tables: Mapping[str, tuple[tuple[str, ...], Sequence[Row]]]
    version: int
    model: bytes
    evidence: Mapping[str, bytes]


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What an export reads from the database."""

    task: Task
    described: Row
    tables: Mapping[str, tuple[tuple[str, ...], Sequence[Row]]]
    model: Model
    evidence: Mapping[str, bytes]


def read_export(store: Store, task_id: str, version: int | None = None) -> Export:
    """Read a task and one version of its model, the newest by default. Raises `RequestRefused` if it is not there."""
    found = store.read(lambda tx: _read(tx, task_id, version), snapshot=True)
    # After the transaction: the bytes of the model may come from a network.
    return _with_model(found, store.blobs)


def export_inside(tx: Transaction, task_id: str) -> Export:
    """A task and its newest model inside a transaction, with the changes of that transaction."""
    return _with_model(_read(tx, task_id, None), tx.blobs)


def _with_model(found: _Found, blobs: Blobs) -> Export:
    return Export(
        task=found.described,
        tables=found.tables,
        version=found.model.version,
        model=safetensors_bytes(found.task.spec, blobs.get(found.model.digest)),
        evidence=found.evidence,
    )


def write_export(export: Export, folder: Path, table_format: TableFormat, *, mode: int = 0o600) -> list[Path]:
    """Write an export into a folder. Each file is written as a whole and replaces a file of the same name.

    Only the operator can read a new folder and, unless `mode` says more, the files: they tell what each client sold.
    """
    create_folder(folder, mode=0o700)
    files = {"task.json": _json(export.task)}
    for name, (columns, rows) in export.tables.items():
        whole = whole_rows(columns, rows)
        text = _json(whole) if table_format is TableFormat.JSON else csv_text(columns, whole).encode()
        files[f"{name}.{table_format}"] = text
    files[f"model-{export.version}.safetensors"] = export.model
    files |= export.evidence
    for name, data in files.items():
        write_durably(folder / name, data, mode=mode)
    return [folder / name for name in files]


def _read(tx: Transaction, task_id: str, version: int | None) -> _Found:
    task = tx.tasks.get(task_id)
    if task is None:
        raise RequestRefused(ErrorCode.NOT_FOUND, "there is no such task")
    models = tx.tasks.models(task_id)[first_kept_version(tx, task) :]
    wanted = models[-1:] if version is None else [model for model in models if model.version == version]
    if not wanted:
        kept = f"versions {models[0].version} to {models[-1].version} are kept"
        raise RequestRefused(ErrorCode.NOT_FOUND, f"there is no model version {version}; {kept}")
    clients = tx.clients.of_task(task_id)
    rounds = tx.rounds.of_task(task_id)
    results = [round_result(tx, task, known.round_number) for known in rounds]
    ledgers = [(client, ledger(tx, client.client_id)) for client in clients]
    still_open = {release_of(known.round_number) for known in rounds if known.state is RoundState.OPEN}
    tables = {
        "rounds": (ROUND_COLUMNS, _round_rows(tx, task, rounds, results, clients)),
        "clients": (CLIENT_COLUMNS, [client_row(client) for client in clients]),
        "budgets": (BUDGET_COLUMNS, budget_rows(results)),
        "payments": (PAYMENT_COLUMNS, payment_rows(results)),
        "ledgers": (LEDGER_COLUMNS, ledger_rows(ledgers, still_open)),
    }
    return _Found(
        task=task,
        described=task_view(tx, task).model_dump(mode="json"),
        tables=tables,
        model=wanted[0],
        evidence=evidence_files(tx, task_id),
    )


def _round_rows(
    tx: Transaction, task: Task, rounds: list[Round], results: list[RoundResult], clients: list[Client]
) -> list[Row]:
    by_id = {client.client_id: client for client in clients}
    return [
        round_row(known, result, round_noise(tx, task, known, by_id))
        for known, result in zip(rounds, results, strict=True)
    ]


def _json(value: Any) -> bytes:
    return f"{json.dumps(value, indent=2)}\n".encode()
