"""Which blobs are still needed. Everything else is swept, once it is so old that nobody can be using it any more."""

from qidpfl_shared.protocol.messages import RoundState

from ..clock import Clock, Micros, seconds
from ..domain import Task
from ..store.store import Store
from ..store.transaction import Transaction

# How long a blob whose row is not committed yet may wait for it, and how long whoever has seen that a blob is kept may
# take to read it.
_GRACE_S = 3600.0


def first_kept_version(tx: Transaction, task: Task, settled_by: Micros | None = None) -> int:
    """The oldest model that is kept, which is where the first kept round starts from. All rounds after it are kept.

    Where `settled_by` is given, it is what was kept at that moment.
    """
    last = task.spec.retention.last_rounds
    if last is None:
        return 0
    settled = [
        round_.settled_at or 0 for round_ in tx.rounds.of_task(task.task_id) if round_.state is RoundState.SETTLED
    ]
    return max(0, sum(settled_by is None or at <= settled_by for at in settled) - last)


def kept_digests(tx: Transaction, since: Micros | None = None) -> set[str]:
    """The digests that some task refers to, or has referred to at any moment `since`."""
    kept: set[str] = set()
    for task in tx.tasks.all():
        first = first_kept_version(tx, task, since)
        for model in tx.tasks.models(task.task_id)[first:]:
            kept.update(digest for digest in (model.digest, model.momentum_digest) if digest is not None)
        kept.update(tx.rounds.update_digests(task.task_id, after_round=first))
    return kept


def sweep(store: Store, clock: Clock, *, grace_s: float = _GRACE_S) -> int:
    """Remove the blobs that nothing refers to and that nobody can be using any more; the number of files removed.

    Any number of coordinators may sweep the same folder, and be held up in the middle of it for any time.
    """
    # The moment comes first: what is written, or committed, after it is never removed by this sweep.
    moment = clock.now() - seconds(grace_s)
    return store.blobs.sweep(store.read(lambda tx: kept_digests(tx, moment), snapshot=True), before=moment)
