"""A round as the server checks budgets and updates against it, and as it settles it: its clients and their answers.

Clients answer one by one, and each answer needs the same rows. The writer of the store therefore reads them once, adds
what it records, and keeps them for the next answers. The rows are valid while the chain of the task has the same head:
each change of them appends an entry, and a head depends on all entries before it. So neither another server nor a
transaction that was rolled back can make them wrong.
"""

from collections.abc import Collection, Hashable
from dataclasses import dataclass

from qidpfl_shared.core.planning import Standing
from qidpfl_shared.core.privacy.account import PrivacyAccount
from qidpfl_shared.protocol.messages import RoundState
from qidpfl_shared.protocol.signatures import ChainPosition

from ...clock import Micros
from ...domain import Budget, BudgetState, Client, ClientState, Model, Round, RoundInvitation, Task, Update
from ...errors import DamagedState
from ...store.store import Store
from ...store.transaction import Transaction
from ..lifecycle import get_task_for_update
from .accounts import present_accounts
from .deferred_evaluation import may_be_deferred
from .planning import round_is_complete


class RoundSnapshot:
    """The rows of a round and of the clients that were asked for so far."""

    def __init__(self, task: Task, round_number: int, round_: Round | None) -> None:
        self.task = task
        self.round_number = round_number
        self.round_ = round_
        self.clients: dict[str, Client] = {}
        self.invitations: dict[str, RoundInvitation] = {}
        self.budgets: dict[str, Budget] = {}
        self.updates: dict[str, Update] = {}
        self.accounts: dict[str, PrivacyAccount] = {}
        self._read: set[str] = set()
        # Whether the rows of all clients were read.
        self.is_whole = False
        # Invited clients that are here and have not delivered, once the rows of all clients were read.
        self._undelivered: dict[str, None] = {}

    def read(self, tx: Transaction, client_ids: Collection[str]) -> None:
        """Read the rows of these clients that were not read yet.

        The only writer of a store reads the rows of all clients: no other server will make them invalid.
        """
        if self.is_whole or not (missing := set(client_ids) - self._read):
            return
        if tx.is_only_writer:
            self.read_all(tx)
            return
        key = (self.task.task_id, self.round_number, missing)
        self.clients |= tx.clients.some(missing)
        self.invitations |= tx.rounds.invitations(*key)
        self.budgets |= tx.rounds.budgets(*key)
        self.updates |= tx.rounds.updates(*key)
        self._read |= missing

    def read_all(self, tx: Transaction) -> None:
        """Read the rows of all clients."""
        key = (self.task.task_id, self.round_number)
        self.clients = {client.client_id: client for client in tx.clients.of_task(self.task.task_id)}
        self.invitations, self.budgets = tx.rounds.invitations(*key), tx.rounds.budgets(*key)
        self.updates = tx.rounds.updates(*key)
        self.is_whole = True
        self._undelivered = {known: None for known in self.invitations if self._may_deliver(known)}

    def read_accounts(self, tx: Transaction, client_ids: Collection[str]) -> None:
        """Compute the accounts of these clients. In a round only the update of a client changes its account."""
        missing = [known for known in client_ids if known in self.clients and known not in self.accounts]
        if missing:
            wanted = self.clients if self.is_whole else missing
            clients = [self.clients[known] for known in wanted]
            self.accounts |= present_accounts(tx, self.task, clients, self.round_number)

    def add_budget(self, budget: Budget) -> None:
        """Add an answer that will be recorded."""
        self.budgets[budget.client_id] = budget

    def add_update(self, update: Update) -> None:
        """Add an update that will be recorded."""
        self.updates[update.client_id] = update
        self._undelivered.pop(update.client_id, None)

    def awaits(self, known: Round, *, silent: bool) -> bool:
        """As `tx.rounds.awaits`, for a whole snapshot."""
        return any(_may_answer(self.budgets.get(client), known, silent=silent) for client in self._undelivered)

    def update_count(self, task_id: str, round_number: int) -> int:
        """As `tx.rounds.update_count`, for a whole snapshot."""
        return len(self.updates)

    def has_declines(self, known: Round) -> bool:
        """As `tx.rounds.has_declines`, for a whole snapshot."""
        return any(
            budget.state is BudgetState.DECLINED and budget.rho == 0 and self._is_here(budget.client_id)
            for budget in self.budgets.values()
        )

    def _may_deliver(self, client_id: str) -> bool:
        invited = self.invitations[client_id].standing is Standing.INVITED
        return invited and self._is_here(client_id) and client_id not in self.updates

    def _is_here(self, client_id: str) -> bool:
        client = self.clients.get(client_id)
        return client is not None and client.state is ClientState.SELECTED


def _may_answer(budget: Budget | None, round_: Round, *, silent: bool) -> bool:
    """Whether an invited client without an update may still deliver one."""
    if budget is None:
        return silent
    if budget.state is not BudgetState.DECLINED:
        return True
    # A client that only declined an earlier attempt may still answer this one.
    return silent and budget.rho == 0 and budget.attempt < round_.attempt


def take_snapshot(tx: Transaction, task_id: str, round_number: int) -> RoundSnapshot:
    """The snapshot that was kept of this round, if it is still valid; else a new one. Locks the task.

    It is no longer kept then: a transaction that fails must not leave what it has added. Raises `RequestRefused` if
    there is no such task.
    """
    kept = tx.derived.pop(_key(task_id), None)
    # The only writer of a store needs no lock, and an unchanged chain says that the task has not changed either.
    task = None if tx.is_only_writer else get_task_for_update(tx, task_id)
    if isinstance(kept, _Kept) and kept.is_valid(round_number, tx.chain.present(task_id)):
        return kept.snapshot
    return new_snapshot(tx, task or get_task_for_update(tx, task_id), round_number)


def new_snapshot(tx: Transaction, task: Task, round_number: int) -> RoundSnapshot:
    """A snapshot without the rows of any client."""
    return RoundSnapshot(task, round_number, tx.rounds.get(task.task_id, round_number))


def keep_snapshot(tx: Transaction, snapshot: RoundSnapshot) -> None:
    """Keep a snapshot for the next transactions of the writer, after all that it contains was recorded."""
    position = tx.chain.present(snapshot.task.task_id)
    if position is not None:
        tx.keep(_key(snapshot.task.task_id), _Kept(position, snapshot))


@dataclass(frozen=True)
class _Kept:
    """A snapshot, and the end of the task's chain for which it is valid."""

    position: ChainPosition
    snapshot: RoundSnapshot

    def is_valid(self, round_number: int, position: ChainPosition | None) -> bool:
        return self.snapshot.round_number == round_number and self.position == position


def _key(task_id: str) -> Hashable:
    return "snapshot", task_id


@dataclass(frozen=True, kw_only=True)
class ReadyRound:
    """A round that is ready to settle, as it was read."""

    task: Task
    round_: Round
    base: Model
    clients: dict[str, Client]
    invitations: dict[str, RoundInvitation]
    budgets: dict[str, Budget]
    updates: dict[str, Update]
    # The newest entry of the task's chain: while it stays the newest one, no row of the task has changed.
    chain: ChainPosition | None
    # The round before; None in the first round, and if no evaluation can be deferred.
    previous: Round | None = None


def ready_round(store: Store, task_id: str, now: Micros, *, stop: bool, evaluated: bool) -> ReadyRound | None:
    """The open round of a task if it is ready to settle. The only writer of a store has most of its rows in memory."""

    def read(tx: Transaction) -> ReadyRound | None:
        return _read_ready_round(tx, task_id, now, stop=stop, evaluated=evaluated)

    return store.write(read) if store.has_one_server else store.read(read, snapshot=True)


def _read_ready_round(tx: Transaction, task_id: str, now: Micros, *, stop: bool, evaluated: bool) -> ReadyRound | None:
    known = _kept_snapshot(tx, task_id)
    task = tx.tasks.get(task_id) if known is None else known.task
    round_ = tx.rounds.latest(task_id) if known is None else known.round_
    if task is None or task.ended or round_ is None or round_.state is not RoundState.OPEN:
        return None
    if not stop and not round_is_complete(tx.rounds if known is None else known, round_, now):
        return None
    base = tx.tasks.model(task_id, round_.base_version)
    if base is None:
        raise DamagedState(f"model version {round_.base_version} of task {task_id} is missing from table models")
    number = round_.round_number
    if known is None:
        known = new_snapshot(tx, task, number)
        known.read_all(tx)
    deferrable = evaluated and number > 1 and may_be_deferred(task.spec)
    return ReadyRound(
        task=task,
        round_=round_,
        base=base,
        # Copies: the writer may add to its snapshot meanwhile.
        clients=dict(known.clients),
        invitations=dict(known.invitations),
        budgets=dict(known.budgets),
        updates=dict(known.updates),
        chain=tx.chain.head(task_id) if not tx.is_only_writer else tx.chain.present(task_id),
        previous=tx.rounds.get(task_id, number - 1) if deferrable else None,
    )


def _kept_snapshot(tx: Transaction, task_id: str) -> RoundSnapshot | None:
    """The snapshot that is kept of the latest round, if it has the rows of all clients and is still valid."""
    kept = tx.derived.get(_key(task_id))
    if not isinstance(kept, _Kept) or not kept.snapshot.is_whole:
        return None
    return kept.snapshot if kept.is_valid(kept.snapshot.round_number, tx.chain.present(task_id)) else None
