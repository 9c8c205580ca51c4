"""Export of a task: rounds, clients, budgets, payments and ledgers as tables, and the model as safetensors.

Like the API, an export does not contain the budgets of a round that is still open.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from qidpfl_shared.durable_files import create_folder, write_durably
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.ledger import Ledger, LedgerEntry
from qidpfl_shared.protocol.messages import RoundResult, RoundState
from qidpfl_shared.protocol.releases import release_of

from ..clock import as_datetime
from ..domain import Client, Model, Round, Task
from ..errors import RequestRefused
from ..service.retention import first_kept_version
from ..service.views import ledger, round_result, task_view
from ..store.store import Store
from ..store.transaction import Transaction
from .evidence import evidence_files
from .model_files import safetensors_bytes

Row = dict[str, Any]


class TableFormat(StrEnum):
    """File formats of the tables."""

    CSV = "csv"
    JSON = "json"


@dataclass(frozen=True, kw_only=True)
class Export:
    """Everything that an export writes, read at one moment."""

    task: Row
    tables: Mapping[str, tuple[tuple[str, ...], Sequence[Row]]]
    version: int
    model: bytes
    evidence: Mapping[str, bytes]


def read_export(store: Store, task_id: str, version: int | None = None) -> Export:
    """Read a task and one version of its model, the newest by default. Raises `RequestRefused` if it is not there."""
    return store.read(lambda tx: _export(tx, task_id, version), snapshot=True)


def export_inside(tx: Transaction, task_id: str) -> Export:
    """A task and its newest model inside a transaction, with the changes of that transaction."""
    return _export(tx, task_id, None)


def _export(tx: Transaction, task_id: str, version: int | None) -> Export:
    task, described, tables, model = _read(tx, task_id, version)
    data = safetensors_bytes(task.spec, tx.blobs.get(model.digest))
    evidence = evidence_files(tx, task_id)
    return Export(task=described, tables=tables, version=model.version, model=data, evidence=evidence)


def write_export(export: Export, folder: Path, table_format: TableFormat, *, mode: int = 0o600) -> list[Path]:
    """Write an export into a folder. Each file is written as a whole and replaces a file of the same name.

    Only the operator can read a new folder and, unless `mode` says more, the files: they tell what each client sold.
    """
    create_folder(folder, mode=0o700)
    files = {"task.json": _json(export.task)}
    for name, (columns, rows) in export.tables.items():
        # A field that a message leaves out is null in the table.
        whole = [{column: row.get(column) for column in columns} for row in rows]
        text = _json(whole) if table_format is TableFormat.JSON else _csv(columns, whole)
        files[f"{name}.{table_format}"] = text
    files[f"model-{export.version}.safetensors"] = export.model
    files |= export.evidence
    for name, data in files.items():
        write_durably(folder / name, data, mode=mode)
    return [folder / name for name in files]


def _read(
    tx: Transaction, task_id: str, version: int | None
) -> tuple[Task, Row, dict[str, tuple[tuple[str, ...], list[Row]]], Model]:
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
        "rounds": (_ROUND, [_round_row(known, result) for known, result in zip(rounds, results, strict=True)]),
        "clients": (_CLIENT, [_client_row(client) for client in clients]),
        "budgets": (_BUDGET, _budget_rows(results)),
        "payments": (_PAYMENT, _payment_rows(results)),
        "ledgers": (_LEDGER, _ledger_rows(ledgers, still_open)),
    }
    return task, task_view(tx, task).model_dump(mode="json"), tables, wanted[0]


_ROUND = (
    *("round_number", "attempt", "state", "reward_micro", "paid_micro", "kept_micro", "total", "declared_total"),
    *("updates", "model_version", "model_digest", "accuracy", "loss"),
    *("opened_at", "settled_at", "settlement_s", "evaluation_s", "escrow_micro"),
)
_CLIENT = (
    *("client_id", "ordinal", "state", "size", "privacy_value", "histogram_rho", "rho_cap", "lifetime_rho"),
    *("label_distance", "filled_up", "misses", "set_aside", "exclusions", "excluded_until", "revoked_at"),
)
_BUDGET = (
    *("round_number", "client_id", "ordinal", "standing", "rho", "declined", "delivered", "verdict", "accepted"),
    *("payment_micro", "regret", "escrow_micro", "voided", "alignment"),
)
_PAYMENT = ("round_number", "client_id", "ordinal", "rho", "amount_micro", "escrow_micro")
_LEDGER = ("client_id", "ordinal", *LedgerEntry.model_fields)


def _round_row(round_: Round, result: RoundResult) -> Row:
    opened, settled = (
        None if at is None else as_datetime(at).isoformat() for at in (round_.opened_at, round_.settled_at)
    )
    timing = {
        "opened_at": opened,
        "settled_at": settled,
        "settlement_s": round_.settlement_s,
        "evaluation_s": round_.evaluation_s,
    }
    return result.model_dump(mode="json", exclude={"own", "clients", "timing", "chain", "signature"}) | timing


def _client_row(client: Client) -> Row:
    row = {name: getattr(client, name) for name in _CLIENT}
    revoked = client.revoked_at
    return row | {"revoked_at": None if revoked is None else as_datetime(revoked).isoformat()}


def _budget_rows(results: list[RoundResult]) -> list[Row]:
    return [
        {"round_number": result.round_number} | client.model_dump(mode="json")
        for result in results
        for client in result.clients or ()
    ]


def _payment_rows(results: list[RoundResult]) -> list[Row]:
    return [
        {
            "round_number": result.round_number,
            "client_id": client.client_id,
            "ordinal": client.ordinal,
            "rho": client.rho,
            "amount_micro": client.payment_micro,
            "escrow_micro": client.escrow_micro or 0,
        }
        for result in results
        for client in result.clients or ()
        if result.state is RoundState.SETTLED and client.accepted
    ]


def _ledger_rows(ledgers: list[tuple[Client, Ledger]], still_open: set[str]) -> list[Row]:
    return [
        {"client_id": client.client_id, "ordinal": client.ordinal} | entry.model_dump(mode="json")
        for client, account in ledgers
        for entry in account.entries
        if entry.release not in still_open
    ]


def _json(value: Any) -> bytes:
    return f"{json.dumps(value, indent=2)}\n".encode()


def _csv(columns: tuple[str, ...], rows: Sequence[Row]) -> bytes:
    """Comma-separated values with one header line; null is empty, booleans are `true` and `false`."""
    text = io.StringIO()
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    for row in rows:
        table.writerow({name: str(v).lower() if isinstance(v, bool) else v for name, v in row.items()})
    return text.getvalue().encode()
