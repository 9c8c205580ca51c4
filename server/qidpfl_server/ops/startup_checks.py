"""Checks before the server starts: at the start it can refuse, later it could only fail the task."""

from qidpfl_shared.protocol.messages import RoundState

from ..domain import Task
from ..errors import CoordinatorError, DamagedState
from ..plugins.rules import RuleRegistry
from ..store.store import Store
from ..store.transaction import Transaction


def prepare_blobs(store: Store) -> None:
    """Create the blob folder, or what marks a bucket, of a new store. Raise if there are tasks but no blobs."""
    if not store.blobs.present and store.read(lambda tx: tx.tasks.count()):
        raise DamagedState(
            f"the store has tasks, but their models and updates are not at {store.blobs.place}: {store.blobs.remedy}"
        )
    store.blobs.create()
    if store.engine.dialect.name == "postgresql":
        _require_shared_blobs(store)


def _require_shared_blobs(store: Store) -> None:
    """Raise if the blob folder is not the one of the other coordinators on this store.

    A restored folder has no identity. It gets that of the store if it has the newest model of every task.
    """
    own, is_new = store.blobs.folder_id()
    shared = store.write(lambda tx: tx.shared_folder_id(own))
    if own == shared:
        return
    if is_new:
        if store.read(_has_newest_models):
            store.blobs.set_folder_id(shared)
            return
        store.blobs.forget_folder_id()
    raise DamagedState(
        f"{store.blobs.place} does not have the blobs that the other coordinators of this store use:"
        f" {store.blobs.remedy}"
    )


def _has_newest_models(tx: Transaction) -> bool:
    newest = [model for task in tx.tasks.all() for model in tx.tasks.models(task.task_id)[-1:]]
    return bool(newest) and all(tx.blobs.has(model.digest) for model in newest)


def require_living_tasks(tx: Transaction, rules: RuleRegistry) -> None:
    """Raise if rules, rows or the model that a running task needs next are missing or cannot be read."""
    for task in tx.tasks.all():
        if not task.ended:
            for reason in rules.missing(task.spec).values():
                raise CoordinatorError(f"task {task.name} is {task.state} with custom rules: {reason}")
            tx.clients.of_task(task.task_id)
            _require_rounds(tx, task)
            _require_newest_model(tx, task)


def _require_rounds(tx: Transaction, task: Task) -> None:
    for round_ in tx.rounds.of_task(task.task_id):
        if round_.state is RoundState.OPEN:
            place = (task.task_id, round_.round_number)
            for read in (tx.rounds.invitations, tx.rounds.budgets, tx.rounds.updates):
                read(*place)


def _require_newest_model(tx: Transaction, task: Task) -> None:
    for newest in tx.tasks.models(task.task_id)[-1:]:
        for digest in filter(None, (newest.digest, newest.momentum_digest)):
            if not tx.blobs.has(digest):
                raise DamagedState(
                    f"blob {digest} of task {task.name}, model version {newest.version}, is missing from"
                    f" {tx.blobs.place}: restore it, or end the task with `tasks stop`"
                )
