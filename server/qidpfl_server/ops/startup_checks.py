"""What has to be in order before a coordinator may start: later it could only end a task for it."""

from qidpfl_shared.protocol.messages import RoundState

from ..domain import Task
from ..errors import CoordinatorError, DamagedState
from ..plugins.rules import missing_rules
from ..store.store import Store
from ..store.transaction import Transaction


def prepare_blobs(store: Store) -> None:
    """Make the folder of blobs for a new store; refuse one that has tasks, but lost its folder."""
    if not store.blobs.present and store.read(lambda tx: tx.tasks.count()):
        raise DamagedState(
            f"there are tasks, but no folder of their models and updates at {store.blobs.root}: mount it,"
            " or name the right one with --blob-dir"
        )
    store.blobs.create()


def require_living_tasks(tx: Transaction) -> None:
    """Refuse to start if what the next step of a living task needs cannot be read or is not there."""
    for task in tx.tasks.all():
        if not task.ended:
            for reason in missing_rules(task.spec).values():
                raise CoordinatorError(f"task {task.name} is {task.state} by rules of your own: {reason}")
            tx.clients.of_task(task.task_id)
            _require_rounds(tx, task)
            _require_newest_model(tx, task)


def _require_rounds(tx: Transaction, task: Task) -> None:
    for held in tx.rounds.of_task(task.task_id):
        if held.state is RoundState.OPEN:
            place = (task.task_id, held.round_number)
            for read in (tx.rounds.invitations, tx.rounds.budgets, tx.rounds.updates):
                read(*place)


def _require_newest_model(tx: Transaction, task: Task) -> None:
    for newest in tx.tasks.models(task.task_id)[-1:]:
        for digest in filter(None, (newest.digest, newest.momentum_digest)):
            if not tx.blobs.has(digest):
                raise DamagedState(
                    f"blob {digest} of task {task.name}, model version {newest.version}, is missing from"
                    f" {tx.blobs.root}: restore it, or end the task with `tasks stop`"
                )
