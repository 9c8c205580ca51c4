"""Compares an export of a task with what the journal has kept: the check behind `qidpfl-client verify`.

The signed receipts fix what the coordinator had recorded when it made them, and everything before that. An export that
has lost, changed or reordered any of it does not have their heads.
"""

import re
from typing import Any

from qidpfl_shared.protocol.chain import digest_of_facts
from qidpfl_shared.protocol.compatibility import spec_digest
from qidpfl_shared.protocol.signatures import ChainPosition, WrongSignature, successors, verify_message
from qidpfl_shared.protocol.task_spec import TaskSpec

from ..errors import JournalError
from .export_files import ExportFiles
from .export_tables import Digests, ExportCheck, check_models, check_tables
from .journal import Journal, Membership
from .receipts import KeptReceipt

_CLOSED = ("round.settled", "round.void")
_CHECKED_FILES = re.compile(
    r"task\.json|proof\.json|(chain|rows|models)\.jsonl|(rounds|budgets|payments|ledgers)\.(csv|json)|model-\d+\.safetensors"
)


def check_export(journal: Journal, export: ExportFiles) -> ExportCheck:
    """Compare an export with the journal.

    Raises:
        JournalError: the journal has not joined this task, or its coordinator has signed nothing.
    """
    membership = journal.membership(export.task_id)
    if membership is None or membership.client_id is None:
        raise JournalError(f"{journal.path} has not joined task {export.name} ({export.task_id})")
    pinned = journal.receipts.pinned(export.task_id)
    if not pinned:
        raise JournalError(f"{journal.path} has no signed receipt of task {export.name}: there is nothing to check")
    check = ExportCheck()
    check.require(
        export.spec_digest == membership.spec_digest,
        "task.json: the task has another spec than the joined one",
        kind="task",
    )
    fits = spec_digest(export.spec) == export.spec_digest
    check.require(fits, "task.json: its spec does not have its digest", kind="task")
    _check_head(check, export, pinned)
    receipts = journal.receipts.all(export.task_id)
    models = check_models(check, export, TaskSpec.read(membership.spec).layout, _signed_models(receipts))
    check_tables(check, export, _check_rows(check, export), models)
    for receipt in receipts:
        _check_receipt(check, export, receipt, membership, pinned)
    _check_own(check, export, receipts, membership.client_id)
    _check_payments(check, export, journal, membership.client_id)
    check.not_checked.append("task.json: all but the spec")
    check.not_checked += [path.name for path in export.files if not _CHECKED_FILES.fullmatch(path.name)]
    return check


def _signed_models(receipts: list[KeptReceipt]) -> Digests:
    """The versions of the model that the kept messages name, each with its digest."""
    named = (receipt.facts for receipt in receipts if receipt.kind in ("announcement", "result"))
    return {facts["model_version"]: facts["model_digest"] for facts in named if facts.get("model_digest")}


def _check_head(check: ExportCheck, export: ExportFiles, pinned: dict[str, str]) -> None:
    """The chain ends with its signed head, and the pinned key or one that it has endorsed has signed it."""
    last = export.chain[-1] if export.chain else None
    newest = None if last is None else ChainPosition(task_id=export.task_id, sequence=last.sequence, head=last.head)
    check.require(export.head.chain == newest, "proof.json: its head is not the end of chain.jsonl", kind="head")
    try:
        latest = list(pinned.values())[-1]
        keys = dict(pinned) | {key.key_id: key.public_key for key in successors(latest, export.keys)}
        signed_with = "" if export.head.signature is None else export.head.signature.key_id
        if signed_with not in keys:
            raise WrongSignature("the head is not signed by the pinned key")
        verify_message(keys[signed_with], export.head)
    except ValueError as error:
        check.require(False, f"proof.json: {error}", kind="head")
    else:
        check.require(True, "", kind="head")


def _check_rows(check: ExportCheck, export: ExportFiles) -> list[int]:
    """The rows of every closed round have the digest in the chain. Returns the rounds of which that is true."""
    newest = {entry.subject: entry for entry in export.chain if entry.subject.startswith("round/")}
    latest = max((_round_of(subject) for subject in newest), default=0)
    # All rounds before the latest are closed, also those of a task that is older than its chain.
    closed = {subject for subject, entry in newest.items() if entry.kind in _CLOSED or _round_of(subject) < latest}
    trusted = []
    for subject in sorted(closed | set(export.rows)):
        number = subject.removeprefix("round/")
        rows = export.rows.get(subject)
        if not check.require(rows is not None, f"rows.jsonl: round {number} is missing", kind="round") or rows is None:
            continue
        entry = newest.get(subject)
        fits = entry is not None and entry.content == digest_of_facts(rows)
        if check.require(fits, f"rows.jsonl: round {number} differs from its record in the chain", kind="round"):
            trusted.append(_round_of(subject))
    return trusted


def _round_of(subject: str) -> int:
    number = subject.removeprefix("round/")
    return int(number) if number.isdigit() else 0


def _number(shown: Any) -> float | None:
    try:
        return float(shown)
    except (TypeError, ValueError):
        return None


def _check_receipt(
    check: ExportCheck, export: ExportFiles, receipt: KeptReceipt, membership: Membership, pinned: dict[str, str]
) -> None:
    """The signature holds, and the chain of the export has the entry of the receipt with its head."""
    kind = receipt.kind
    try:
        receipt.verify(pinned[receipt.key_id])
    except (WrongSignature, KeyError):
        check.require(False, f"the {receipt.name} in the journal is not signed by a pinned key", kind=kind)
        return
    if receipt.sequence > len(export.chain):
        end = f"the chain of the export ends at entry {len(export.chain)}"
        check.require(False, f"the {receipt.name} is missing: it is entry {receipt.sequence}, and {end}", kind=kind)
        return
    entry = export.chain[receipt.sequence - 1]
    if not check.require(
        entry.head == receipt.head,
        f"the {receipt.name} has another head than entry {entry.sequence} of the export: its records were rewritten",
        kind=kind,
    ):
        return
    subjects = {
        "enrolment": (f"client/{membership.client_id}",),
        "profile": (f"client/{membership.client_id}",),
        "budget": (f"budget/{receipt.round_number}/{membership.client_id}", f"round/{receipt.round_number}"),
        "update": (f"update/{receipt.round_number}/{membership.client_id}", f"round/{receipt.round_number}"),
    }.get(kind, (f"round/{receipt.round_number}",))
    check.require(
        entry.subject in subjects,
        f"the {receipt.name} is signed for {entry.subject}, which is something else",
        kind=kind,
    )


def _check_own(check: ExportCheck, export: ExportFiles, receipts: list[KeptReceipt], client_id: str) -> None:
    """What the receipts say of this client is what the rows of its closed rounds say."""
    for receipt in receipts:
        rows = export.rows.get(f"round/{receipt.round_number}")
        if rows is None:
            continue
        facts, place = receipt.facts, f"the {receipt.name}"
        own = {table: next((row for row in of if row.get("client_id") == client_id), {}) for table, of in rows.items()}
        match receipt.kind:
            case "announcement":
                told: tuple[Any, ...] = (facts.get("reward_micro"), facts.get("total"))
                known: tuple[Any, ...] = (rows["rounds"][0].get("reward_micro"), rows["rounds"][0].get("total"))
            case "budget":
                told = (facts.get("state"), facts.get("rho") or 0)
                known = (own["budgets"].get("state"), own["budgets"].get("rho", 0))
            case "update":
                told, known = (facts.get("digest"),), (own["updates"].get("digest"),)
            case "result" if rows["rounds"][0].get("state") == "settled":
                part = facts.get("own") or {}
                told = (part.get("payment_micro", 0), part.get("rho", 0), part.get("escrow_micro") or 0)
                paid = own["payments"]
                held = paid.get("escrow_micro") or 0
                known = (paid.get("amount_micro", 0), own["budgets"].get("rho", 0), held)
            case _:
                continue
        said, shown = (", ".join(map(str, values)) for values in (told, known))
        check.require(told == known, f"{place} says {said}; the export says {shown}", kind="own")


def _check_payments(check: ExportCheck, export: ExportFiles, journal: Journal, client_id: str) -> None:
    """Every payment in the journal's own ledger is in the table of payments."""
    for entry in journal.entries(export.task_id):
        _, _, number = entry.release.partition("/")
        if entry.payment_micro is None or not number.isdigit():
            continue
        shown = export.payments.get((int(number), client_id))
        paid = 0 if shown is None else _number(shown["amount_micro"])
        check.require(
            paid == entry.payment_micro,
            f"table payments: round {number} shows {paid} micro for this client, which was paid {entry.payment_micro}",
            kind="own",
        )
