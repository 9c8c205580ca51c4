"""The audit of a whole store, task by task."""

from collections.abc import Sequence
from functools import partial

from qidpfl_shared.core.privacy.account import PrivacyAccount
from qidpfl_shared.protocol.signatures import ChainHead, KeyList

from ..domain import Client, Round, Task
from ..plugins.rules import NO_RULES, RuleRegistry
from ..service.retention import first_kept_version
from ..service.rounds.accounts import privacy_accounts
from ..store.database import check_integrity
from ..store.store import Store
from ..store.transaction import Transaction
from ..store.validation import all_task_ids, damaged_rows, lost_rows
from .checks.chain import ChainAuditor
from .checks.models import audit_deliveries, audit_models, audit_recomputation
from .checks.money import audit_escrow, audit_money
from .checks.plans import PlanAuditor
from .checks.selection import audit_selection
from .checks.timeline import audit_answers, audit_round, audit_timeline
from .records import RoundRecord, read_rounds
from .report import Report

# What cannot be checked without the custom rules of a task.
_ASKED = {"reward": "what its rounds should have paid", "select": "whom its selection should have kept"}


def audit(
    store: Store, rules: RuleRegistry = NO_RULES, *, kept: Sequence[ChainHead] = (), public_key: str | None = None
) -> Report:
    """Check the whole store. Each task is read in one transaction, so the store may be live.

    Args:
        store: the store.
        rules: custom rules with which their answers are checked too.
        kept: heads of chains that were kept outside the store. They show whether the end of a chain was cut off, and
            whether the holder of the key has written a chain again.
        public_key: a key of the coordinator that is known from elsewhere. The keys of the store must follow on it.
    """
    report = Report()
    with report.checking("the database file"):
        for problem in check_integrity(store.engine):
            report.require(False, f"the database file: {problem}")
    task_ids: list[str] = []
    with report.checking("table tasks"):
        task_ids = store.read(lambda tx: all_task_ids(tx.connection))
    with report.checking("the tables"):
        for problem in store.read(lambda tx: list(lost_rows(tx.connection))):
            report.require(False, problem)
    keys = KeyList(keys=())
    with report.checking("table signing_keys"):
        keys = store.read(lambda tx: tx.keys.all())
    chains = ChainAuditor(keys, kept, public_key, report)
    with report.checking("the store"):
        store.read(chains.audit_store, snapshot=True)
    for task_id in task_ids:
        with report.checking(f"task {task_id}"):
            store.read(partial(_audit_task, task_id=task_id, rules=rules, chains=chains, report=report), snapshot=True)
    return report


def _audit_task(tx: Transaction, task_id: str, rules: RuleRegistry, chains: ChainAuditor, report: Report) -> None:
    damage = list(damaged_rows(tx.connection, task_id))
    for problem in damage:
        report.require(False, f"task {task_id}: {problem}")
    if damage:
        report.not_checkable.append(f"task {task_id}: everything that depends on its damaged rows")
        return
    report.checked += 1
    task = tx.tasks.get(task_id)
    assert task is not None
    with report.checking(f"task {task.name}"):
        chains.audit_task(tx, task_id, f"task {task.name}")
    rounds = tx.rounds.of_task(task_id)
    clients = {client.client_id: client for client in tx.clients.of_task(task_id)}
    first_kept = first_kept_version(tx, task)
    if first_kept > 0:
        gone = f"models before version {first_kept} and updates of rounds up to {first_kept}"
        report.not_checkable.append(f"task {task.name}: {gone} are not kept")
    for function, reason in rules.missing(task.spec).items():
        report.not_checkable.append(f"task {task.name}: {_ASKED[function]}: {reason}")
    with report.checking(f"task {task.name}"):
        audit_selection(task, list(clients.values()), rules, report)
    with report.checking(f"task {task.name}"):
        audit_timeline(task, rounds, report)
        audit_models(tx, tx.blobs, task, rounds, first_kept, report)
    with report.checking(f"task {task.name}"):
        audit_escrow(task, clients, tx.payments.escrow(task_id), tx.payments.escrow_settlements(task_id), report)
    planner = PlanAuditor(task, _accounts(tx, task, clients), rules.reward(task.spec))
    _audit_rounds(tx, task, rounds, clients, first_kept, planner, report)


def _audit_rounds(
    tx: Transaction,
    task: Task,
    rounds: list[Round],
    clients: dict[str, Client],
    first_kept: int,
    planner: PlanAuditor,
    report: Report,
) -> None:
    for record in read_rounds(tx, task, rounds, clients):
        for check in (audit_round, audit_answers, audit_money, planner.audit):
            with report.checking(record.place):
                check(record, report)
        if record.round_.round_number > first_kept:
            _audit_blobs(tx, record, report)
    planner.audit_lifetimes(report)


def _accounts(tx: Transaction, task: Task, clients: dict[str, Client]) -> dict[str, PrivacyAccount]:
    return privacy_accounts(tx, task, [client for client in clients.values() if client.has_profile])


def _audit_blobs(tx: Transaction, record: RoundRecord, report: Report) -> None:
    audit_deliveries(tx.blobs, record, report)
    if record.settled:
        with report.checking(record.place):
            base = tx.tasks.model(record.task.task_id, record.round_.base_version)
            published = tx.tasks.model(record.task.task_id, record.round_.round_number)
            audit_recomputation(tx.blobs, record, base, published, report)
