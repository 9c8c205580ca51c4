"""Which blobs are still needed. Everything else is swept, once it is old enough that nobody can be about to need it."""

from qidpfl_shared.protocol.messages import RoundState

from .domain import Task
from .store.store import Store
from .store.transaction import Transaction

# An upload or a settlement in another process may have written a blob whose row is not committed yet.
_ORPHAN_AGE_S = 3600.0


def first_kept_round(tx: Transaction, task: Task) -> int:
    """The oldest round whose updates, and model, are kept: all of them, or those of the last rounds."""
    last = task.spec.retention.last_rounds
    if last is None:
        return 0
    settled = sum(held.state is RoundState.SETTLED for held in tx.rounds.of_task(task.task_id))
    return max(0, settled - last)


def kept_digests(tx: Transaction) -> set[str]:
    """The digests that some task still refers to."""
    kept: set[str] = set()
    for task in tx.tasks.all():
        first = first_kept_round(tx, task)
        for model in tx.tasks.models(task.task_id):
            if model.version >= first:
                kept.add(model.digest)
                kept |= {model.momentum_digest} if model.momentum_digest else set()
        for held in tx.rounds.of_task(task.task_id):
            if held.round_number >= first:
                kept |= {update.digest for update in tx.rounds.updates(task.task_id, held.round_number).values()}
    return kept


def sweep(store: Store, *, older_than_s: float = _ORPHAN_AGE_S) -> int:
    """Remove what nothing refers to any more; the number of files removed."""
    return store.blobs.sweep(store.read(kept_digests), older_than_s=older_than_s)
