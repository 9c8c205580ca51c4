"""Compares the tables and the model file of an export with the rows that its chain covers.

What a table shows beside these rows, such as regrets, cannot be checked, and neither can a column that an export of an
earlier version does not have. Both are named as not checked.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from qidpfl_shared.protocol.chain import digest_of_facts
from qidpfl_shared.protocol.ledger import SpendState
from qidpfl_shared.protocol.releases import round_of
from qidpfl_shared.protocol.wire import TensorLayout

from .export_files import ExportFiles, Row
from .model_file import NotAModel, model_file_digest

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SCORES = ("accuracy", "loss", "evaluation_s", "evaluated_at")
_MODEL = re.compile(r"model-(\d+)\.safetensors")
# Versions of the model, and the digest of each.
Digests = dict[int, str]


@dataclass
class ExportCheck:
    """The result: what was compared, by kind, every difference in one line, and what nothing was known of."""

    compared: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    # By table: the columns that were compared.
    columns: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def require(self, holds: bool, difference: str, *, kind: str) -> bool:
        self.compared[kind] += 1
        if not holds:
            self.differences.append(difference)
        return holds

    def compare(self, table: str, place: str, shown: Row | None, known: Mapping[str, Any]) -> None:
        """Compare a row of a table with what is known of it."""
        self.columns[table] |= known.keys()
        if not self.require(shown is not None, f"table {table}: {place} is missing", kind="table") or shown is None:
            return
        wrong = [name for name, value in known.items() if name in shown and not _is(shown[name], value)]
        if wrong:
            self.differences.append(f"table {table}: {', '.join(wrong)} of {place} differs from the recorded rows")


def check_models(check: ExportCheck, export: ExportFiles, layout: TensorLayout, signed: Digests) -> Digests:
    """Compare the model files with the chain and with the digests in signed messages. Returns what is known."""
    known = dict(signed)
    newest = {entry.subject: entry.content for entry in export.chain}
    for subject, row in (export.models or {}).items():
        fits = newest.get(subject) == digest_of_facts(row)
        check.require(fits, f"models.jsonl: {subject} differs from its record in the chain", kind="model")
        if fits and subject.startswith("model/"):
            version, digest = int(row["version"]), str(row["digest"])
            told = known.setdefault(version, digest)
            check.require(told == digest, f"models.jsonl: {subject} is not the signed version", kind="model")
    if export.models is None:
        check.not_checked.append("models.jsonl is not there: versions of the model that no signed message names")
    else:
        for subject in newest:
            if subject.startswith(("model/", "evaluation/")) and subject not in export.models:
                check.require(False, f"models.jsonl: {subject} is missing", kind="model")
    files = [(path, int(match[1])) for path in export.files if (match := _MODEL.fullmatch(path.name))]
    check.require(bool(files), "model-N.safetensors is missing: ask the operator for a whole export", kind="model")
    for path, version in files:
        if version not in known:
            check.not_checked.append(f"{path.name}: nothing signed or recorded has the digest of version {version}")
            continue
        try:
            fits = model_file_digest(path, layout) == known[version]
        except (NotAModel, OSError) as error:
            check.require(False, f"{path.name} is not a model of this task: {error}", kind="model")
        else:
            check.require(fits, f"{path.name} is not the recorded version {version} of the model", kind="model")
    return known


def check_tables(check: ExportCheck, export: ExportFiles, trusted: Collection[int], models: Digests) -> None:
    """Compare the tables with the rows of the rounds that have their record in the chain."""
    for number in sorted(trusted):
        rows = export.rows[f"round/{number}"]
        _check_round(check, export, number, rows, models)
        _check_clients(check, export, number, rows)
        _check_ledgers(check, export, number, rows)
    for table in ("rounds", "budgets", "payments", "ledgers"):
        shown, columns = export.columns(table), check.columns[table]
        if shown is None:
            check.require(False, f"table {table} is missing: ask the operator for a whole export", kind="table")
            continue
        unknown, absent = sorted(shown - columns), sorted(columns - shown)
        if unknown:
            check.not_checked.append(f"table {table}: {', '.join(unknown)}")
        if shown and absent:
            check.not_checked.append(f"table {table} has no column {', '.join(absent)}")
    for table, known in (("budgets", export.budgets), ("payments", export.payments)):
        for number in sorted({number for number, _ in known if f"round/{number}" not in export.rows}):
            check.require(False, f"table {table}: round {number} has not been closed", kind="table")
    open_rounds = sorted(number for number in export.rounds or () if f"round/{number}" not in export.rows)
    if open_rounds:
        check.not_checked.append(f"table rounds: {', '.join(map(str, open_rounds))}, which was not closed")
    if any(round_of(release) is None for _, release in export.ledgers or ()):
        check.not_checked.append("table ledgers: the histograms")


def _check_round(
    check: ExportCheck, export: ExportFiles, number: int, rows: dict[str, list[Row]], models: Digests
) -> None:
    if export.rounds is None:
        return
    (row,) = rows["rounds"]
    payments = rows.get("payments", [])
    version = number if row["state"] == "settled" else int(row["base_version"])
    same = ("attempt", "state", "reward_micro", "total", "declared_total", "settlement_s")
    known = {name: row.get(name) for name in same} | {
        "round_number": number,
        "paid_micro": sum(paid["amount_micro"] for paid in payments),
        "escrow_micro": sum(paid.get("escrow_micro") or 0 for paid in payments) or None,
        "kept_micro": row.get("kept_micro") or 0,
        "updates": len(rows.get("updates", [])),
        "model_version": version,
        "opened_at": _moment(row.get("opened_at")),
        "settled_at": _moment(row.get("settled_at")),
    }
    if version in models:
        known["model_digest"] = models[version]
    scores: Row | None = row
    if row.get("evaluation_deferred"):
        # Without the file of an earlier version only the absence of an evaluation is known.
        recorded = any(entry.subject == f"evaluation/{number}" for entry in export.chain)
        scores = {} if not recorded else (export.models or {}).get(f"evaluation/{number}")
    if scores is not None:
        known |= {name: scores.get(name) for name in _SCORES} | {"evaluated_at": _moment(scores.get("evaluated_at"))}
    else:
        check.not_checked.append(f"table rounds: {', '.join(_SCORES)} of round {number}")
    check.compare("rounds", f"round {number}", export.rounds.get(number), known)


def _check_clients(check: ExportCheck, export: ExportFiles, number: int, rows: dict[str, list[Row]]) -> None:
    budgets, updates, payments = (_by_client(rows, table) for table in ("budgets", "updates", "payments"))
    for invited in rows.get("invitations", []):
        client_id = str(invited["client_id"])
        budget, update = budgets.get(client_id, {}), updates.get(client_id, {})
        paid = payments.get(client_id, {})
        known = {
            **{"round_number": number, "client_id": client_id, "standing": invited["standing"]},
            "rho": budget.get("rho", 0.0),
            "declined": budget.get("state") == "declined",
            "delivered": bool(update),
            "verdict": update.get("verdict"),
            "accepted": bool(update.get("accepted")),
            "payment_micro": paid.get("amount_micro", 0),
            "escrow_micro": paid.get("escrow_micro") or None,
            "voided": True if update.get("voided_at") is not None else None,
            "alignment": update.get("alignment"),
        }
        place = f"round {number} of client {client_id}"
        check.compare("budgets", place, export.budgets.get((number, client_id)), known)
    invited_ids = {str(invited["client_id"]) for invited in rows.get("invitations", [])}
    for of, client_id in export.budgets:
        if of == number and client_id not in invited_ids:
            check.require(False, f"table budgets: client {client_id} was not in round {number}", kind="table")
    shown = {client_id: row for (of, client_id), row in export.payments.items() if of == number}
    for client_id in sorted(set(payments) | set(shown)):
        paid = payments.get(client_id, {})
        known = {
            **{"round_number": number, "client_id": client_id},
            "rho": budgets.get(client_id, {}).get("rho", 0.0),
            "amount_micro": paid.get("amount_micro", 0),
            "escrow_micro": paid.get("escrow_micro") or 0,
        }
        # An accepted update that earns nothing may have a row of zeros, or none.
        if client_id in shown or any(known[name] for name in ("amount_micro", "escrow_micro")):
            check.compare("payments", f"round {number} of client {client_id}", shown.get(client_id), known)


def _check_ledgers(check: ExportCheck, export: ExportFiles, number: int, rows: dict[str, list[Row]]) -> None:
    if export.ledgers is None:
        return
    budgets, updates, payments = (_by_client(rows, table) for table in ("budgets", "updates", "payments"))
    release = f"round/{number}"
    answered = {key for key, row in budgets.items() if row["state"] != "declined" or row["rho"] > 0}
    for client_id in sorted(answered):
        update, paid = updates.get(client_id), payments.get(client_id, {})
        known = {
            **{"client_id": client_id, "release": release, "rho": budgets[client_id]["rho"]},
            **{"payment_micro": paid.get("amount_micro"), "escrow_micro": paid.get("escrow_micro") or None},
        }
        # Without an update, its bytes may have come too late: rows do not tell that.
        if update is not None:
            state = SpendState.SPENT if update.get("accepted") else SpendState.SPENT_UNPAID
            known |= {"digest": update["digest"], "state": state.value}
        shown = export.ledgers.get((client_id, release))
        check.compare("ledgers", f"round {number} of client {client_id}", shown, known)
    for client_id, of in export.ledgers:
        if of == release and client_id not in answered:
            check.require(False, f"table ledgers: client {client_id} has not sold in round {number}", kind="table")


def _by_client(rows: dict[str, list[Row]], table: str) -> dict[str, Row]:
    return {str(row["client_id"]): row for row in rows.get(table, [])}


def _moment(recorded: int | None) -> datetime | None:
    return None if recorded is None else _EPOCH + timedelta(microseconds=recorded)


def _is(shown: Any, known: Any) -> bool:
    """Whether a cell of a table, which is a text in CSV, has a value."""
    if known is None or shown in (None, ""):
        return known is None and shown in (None, "")
    try:
        if isinstance(known, bool):
            return str(shown).lower() == str(known).lower()
        if isinstance(known, datetime):
            return datetime.fromisoformat(str(shown)) == known
        return float(shown) == float(known) if isinstance(known, int | float) else str(shown) == str(known)
    except ValueError:
        return False
