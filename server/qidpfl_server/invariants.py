"""What must hold in every store, at any moment: the checks behind `qidpfl-server audit`."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from qidpfl_shared.core.planning import Standing
from qidpfl_shared.protocol.messages import RoundState
from qidpfl_shared.protocol.wire import encode

from .averaging import next_state
from .domain import BudgetState, Client, Round, Task
from .errors import DamagedState
from .models import load_model
from .retention import first_kept_version
from .rounds import privacy_accounts
from .store.database import check_integrity
from .store.store import Store
from .store.transaction import Transaction


@dataclass
class Report:
    """What an audit has found."""

    checked: int = 0
    violations: list[str] = field(default_factory=list)
    not_checkable: list[str] = field(default_factory=list)

    def require(self, holds: bool, violation: str) -> None:
        self.checked += 1
        if not holds:
            self.violations.append(violation)

    def lines(self) -> Iterator[str]:
        yield from (f"violated: {violation}" for violation in self.violations)
        yield from (f"not checkable: {reason}" for reason in self.not_checkable)
        yield f"{self.checked} checks, {len(self.violations)} violated"


def audit(store: Store) -> Report:
    """Check the whole store. Each task is read in one transaction, so that a live store can be audited."""
    report = Report()
    for problem in check_integrity(store.engine):
        report.require(False, f"the database file: {problem}")
    for task_id in store.read(lambda tx: [task.task_id for task in tx.tasks.all()]):
        store.read(partial(_audit_task, store=store, task_id=task_id, report=report), snapshot=True)
    return report


def _audit_task(tx: Transaction, store: Store, task_id: str, report: Report) -> None:
    task = tx.tasks.get(task_id)
    assert task is not None
    rounds = tx.rounds.of_task(task_id)
    clients = {client.client_id: client for client in tx.clients.of_task(task_id)}
    first_kept = first_kept_version(tx, task)
    if first_kept > 0:
        gone = f"models before version {first_kept} and updates of rounds up to {first_kept}"
        report.not_checkable.append(f"task {task.name}: {gone} are not kept")
    _audit_models(tx, store, task, rounds, first_kept, report)
    for held in rounds:
        _audit_money(tx, task, held, report)
        if held.round_number <= first_kept:
            continue
        _audit_deliveries(tx, store, task, held, report)
        if held.state is RoundState.SETTLED:
            _audit_recomputation(tx, store, task, held, clients, report)
    _audit_privacy(tx, task, list(clients.values()), report)


def _audit_models(
    tx: Transaction, store: Store, task: Task, rounds: list[Round], first_kept: int, report: Report
) -> None:
    """Versions without a gap, one per settled round, each with the bytes of its digest."""
    models = tx.tasks.models(task.task_id)
    settled = sum(held.state is RoundState.SETTLED for held in rounds)
    report.require(
        [model.version for model in models] == list(range(settled + 1)),
        f"task {task.name}: model versions {[model.version for model in models]} for {settled} settled rounds",
    )
    for model in models[first_kept:]:
        try:
            load_model(store.blobs, model, task.spec.dimension)
        except DamagedState as error:
            report.require(False, f"task {task.name}: model version {model.version}: {error}")
    open_rounds = [held.round_number for held in rounds if held.state is RoundState.OPEN]
    report.require(len(open_rounds) <= 1, f"task {task.name}: several open rounds {open_rounds}")
    report.require(not (task.ended and open_rounds), f"task {task.name} has ended, but round {open_rounds} is open")


def _audit_money(tx: Transaction, task: Task, held: Round, report: Report) -> None:
    """Payments and what is kept are exactly the reward; only those who declared, delivered and passed are paid."""
    place = f"task {task.name}, round {held.round_number}"
    payments = tx.rounds.payments(task.task_id, held.round_number)
    if held.state is not RoundState.SETTLED:
        report.require(not payments, f"{place}: payments in a round that is {held.state}")
        return
    paid = sum(payments.values())
    report.require(
        paid + (held.kept_micro or 0) == held.reward_micro,
        f"{place}: {paid} paid and {held.kept_micro} kept are not the reward {held.reward_micro}",
    )
    budgets = tx.rounds.budgets(task.task_id, held.round_number)
    updates = tx.rounds.updates(task.task_id, held.round_number)
    invitations = tx.rounds.invitations(task.task_id, held.round_number)
    for client_id in payments:
        invitation, budget, update = invitations.get(client_id), budgets.get(client_id), updates.get(client_id)
        earned = (
            invitation is not None
            and invitation.standing is Standing.INVITED
            and budget is not None
            and budget.state is BudgetState.DECLARED
            and update is not None
            and bool(update.accepted)
        )
        report.require(earned, f"{place}: client {client_id} was paid without having earned it")


def _audit_deliveries(tx: Transaction, store: Store, task: Task, held: Round, report: Report) -> None:
    """Every acknowledged update is there, with the bytes of its digest."""
    for client_id, update in tx.rounds.updates(task.task_id, held.round_number).items():
        place = f"task {task.name}, round {held.round_number}, client {client_id}"
        try:
            data = store.blobs.get(update.digest)
            report.require(len(data) == update.byte_length, f"{place}: the update has another length")
        except DamagedState as error:
            report.require(False, f"{place}: {error}")


def _audit_recomputation(
    tx: Transaction, store: Store, task: Task, held: Round, clients: dict[str, Client], report: Report
) -> None:
    """The model recomputed from the stored updates is bit for bit the published one."""
    place = f"task {task.name}, round {held.round_number}"
    updates = tx.rounds.updates(task.task_id, held.round_number)
    accepted = sorted((known for known, u in updates.items() if u.accepted), key=lambda known: clients[known].ordinal)
    base = tx.tasks.model(task.task_id, held.base_version)
    published = tx.tasks.model(task.task_id, held.round_number)
    if base is None or published is None or not all(store.blobs.has(updates[known].digest) for known in accepted):
        report.not_checkable.append(f"{place}: some of its blobs are gone")
        return
    budgets = tx.rounds.budgets(task.task_id, held.round_number)
    try:
        state = next_state(store.blobs, task, base, [clients[known] for known in accepted], budgets, updates)
        same = encode(state.parameters) == store.blobs.get(published.digest)
        report.require(same, f"{place}: the model recomputed from its updates differs from the published one")
    except DamagedState as error:
        report.require(False, f"{place}: {error}")


def _audit_privacy(tx: Transaction, task: Task, clients: list[Client], report: Report) -> None:
    """Nobody has spent more than its lifetime budget, and every update has a declared budget."""
    for client_id, account in privacy_accounts(tx, task, [c for c in clients if c.has_profile]).items():
        within = not account.limited or account.spent_rho <= account.lifetime_rho * (1 + 1e-9)
        report.require(
            within, f"task {task.name}, client {client_id}: {account.spent_rho} spent of {account.lifetime_rho}"
        )
    for held in tx.rounds.of_task(task.task_id):
        budgets = tx.rounds.budgets(task.task_id, held.round_number)
        for client_id in tx.rounds.updates(task.task_id, held.round_number):
            place = f"task {task.name}, round {held.round_number}, client {client_id}"
            report.require(client_id in budgets, f"{place}: an update without a declared budget")
