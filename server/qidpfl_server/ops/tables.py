"""The tables of a task: their columns and rows, for exports into a folder and for streams over HTTP.

Like the API, they do not contain the budgets of a round that is still open.
"""

import csv
import io
import json
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from typing import Any

from qidpfl_shared.protocol.ledger import Ledger, LedgerEntry
from qidpfl_shared.protocol.messages import RoundResult, RoundState

from ..clock import as_datetime
from ..domain import Client, Round
from ..service.figures import round_noise
from ..service.lifecycle import get_task
from ..service.progress.accounts import closed_ledger
from ..service.views import last_closed_round, round_result
from ..store.transaction import Transaction

Row = dict[str, Any]


class TableFormat(StrEnum):
    """File formats of the tables."""

    CSV = "csv"
    JSON = "json"


class TableName(StrEnum):
    """The tables of an export."""

    ROUNDS = "rounds"
    CLIENTS = "clients"
    BUDGETS = "budgets"
    PAYMENTS = "payments"
    LEDGERS = "ledgers"


ROUND_COLUMNS = (
    *("round_number", "attempt", "state", "reward_micro", "paid_micro", "kept_micro", "total", "declared_total"),
    *("updates", "model_version", "model_digest", "accuracy", "loss"),
    *("opened_at", "settled_at", "settlement_s", "evaluation_s", "escrow_micro", "evaluated_at", "noise"),
)
CLIENT_COLUMNS = (
    *("client_id", "ordinal", "state", "size", "privacy_value", "histogram_rho", "rho_cap", "lifetime_rho"),
    *("label_distance", "filled_up", "misses", "set_aside", "exclusions", "excluded_until", "revoked_at"),
)
BUDGET_COLUMNS = (
    *("round_number", "client_id", "ordinal", "standing", "rho", "declined", "delivered", "verdict", "accepted"),
    *("payment_micro", "regret", "escrow_micro", "voided", "alignment"),
)
PAYMENT_COLUMNS = ("round_number", "client_id", "ordinal", "rho", "amount_micro", "escrow_micro")
LEDGER_COLUMNS = ("client_id", "ordinal", *LedgerEntry.model_fields)


def round_row(round_: Round, result: RoundResult, noise: float | None) -> Row:
    """A row of the rounds. `noise` is that of the average, in units of the bound of one update's signal."""
    opened, settled, evaluated = (
        None if at is None else as_datetime(at).isoformat()
        for at in (round_.opened_at, round_.settled_at, round_.evaluated_at)
    )
    more = {
        "opened_at": opened,
        "settled_at": settled,
        "settlement_s": round_.settlement_s,
        "evaluation_s": round_.evaluation_s,
        "evaluated_at": evaluated,
        "noise": noise,
    }
    return result.model_dump(mode="json", exclude={"own", "clients", "timing", "chain", "signature"}) | more


def client_row(client: Client) -> Row:
    row = {name: getattr(client, name) for name in CLIENT_COLUMNS}
    revoked = client.revoked_at
    return row | {"revoked_at": None if revoked is None else as_datetime(revoked).isoformat()}


def budget_rows(results: Sequence[RoundResult]) -> list[Row]:
    return [
        {"round_number": result.round_number} | client.model_dump(mode="json")
        for result in results
        for client in result.clients or ()
    ]


def payment_rows(results: Sequence[RoundResult]) -> list[Row]:
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


def ledger_rows(ledgers: Iterable[tuple[Client, Ledger]], still_open: Collection[str] = ()) -> list[Row]:
    return [
        {"client_id": client.client_id, "ordinal": client.ordinal} | entry.model_dump(mode="json")
        for client, account in ledgers
        for entry in account.entries
        if entry.release not in still_open
    ]


COLUMNS = {
    TableName.ROUNDS: ROUND_COLUMNS,
    TableName.CLIENTS: CLIENT_COLUMNS,
    TableName.BUDGETS: BUDGET_COLUMNS,
    TableName.PAYMENTS: PAYMENT_COLUMNS,
    TableName.LEDGERS: LEDGER_COLUMNS,
}


def last_exported_round(tx: Transaction, task_id: str) -> int:
    """The last closed round now. A stream stops there, so that all its parts are of one moment."""
    return last_closed_round(tx, get_task(tx, task_id)) or 0


def table_part(tx: Transaction, task_id: str, table: TableName, part: int, last_round: int) -> list[Row] | None:
    """Part `part` of a table, from 0: one round, one client of the ledgers, or all clients. None after the last one."""
    task = get_task(tx, task_id)
    if table is TableName.CLIENTS:
        return [client_row(client) for client in tx.clients.of_task(task_id)] if part == 0 else None
    if table is TableName.LEDGERS:
        clients = tx.clients.of_task(task_id)
        if part >= len(clients):
            return None
        return ledger_rows([(clients[part], closed_ledger(tx, task, clients[part], up_to_round=last_round))])
    round_ = tx.rounds.get(task_id, part + 1) if part < last_round else None
    if round_ is None:
        return None
    result = round_result(tx, task, round_.round_number)
    if table is TableName.ROUNDS:
        by_id = {client.client_id: client for client in tx.clients.of_task(task_id)}
        return [round_row(round_, result, round_noise(tx, task, round_, by_id))]
    return budget_rows([result]) if table is TableName.BUDGETS else payment_rows([result])


def whole_rows(columns: tuple[str, ...], rows: Iterable[Row]) -> list[Row]:
    """The rows with all columns: a field that a message leaves out is null in the table."""
    return [{column: row.get(column) for column in columns} for row in rows]


def csv_text(columns: tuple[str, ...], rows: Iterable[Row], *, header: bool = True) -> str:
    """Comma-separated values; null is empty, booleans are `true` and `false`."""
    text = io.StringIO()
    table = csv.DictWriter(text, columns, lineterminator="\n")
    if header:
        table.writeheader()
    for row in rows:
        table.writerow({name: str(v).lower() if isinstance(v, bool) else v for name, v in row.items()})
    return text.getvalue()


def json_items(rows: Iterable[Row], *, first: bool) -> str:
    """Rows as items of a JSON array that is already open."""
    text = ",\n".join(map(json.dumps, rows))
    return text if first or not text else f",\n{text}"
