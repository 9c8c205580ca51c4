"""Which blobs are still needed. A sweep removes the others after a grace period in which a process may use them."""

from collections.abc import Collection

from qidpfl_shared.protocol.messages import RoundState

from ..clock import Micros, seconds
from ..domain import Task
from ..store.store import Store
from ..store.transaction import Transaction

# The time in which a process must commit the row of a blob that it wrote, or read a blob that it found in a row.
_GRACE_S = 3600.0


def first_kept_version(tx: Transaction, task: Task, settled_by: Micros | None = None) -> int:
    """The oldest kept model version. The first kept round starts from it, and all later rounds are kept.

    `settled_by` asks for the version that was the oldest one at that moment.
    """
    last = task.spec.retention.last_rounds
    if last is None:
        return 0
    settled = [
        round_.settled_at or 0 for round_ in tx.rounds.of_task(task.task_id) if round_.state is RoundState.SETTLED
    ]
    return max(0, sum(settled_by is None or at <= settled_by for at in settled) - last)


def kept_digests(tx: Transaction, since: Micros | None = None) -> set[str]:
    """The digests that a task refers to, or has referred to at any moment since `since`."""
    kept: set[str] = set()
    for task in tx.tasks.all():
        first = first_kept_version(tx, task, since)
        for model in tx.tasks.models(task.task_id)[first:]:
            kept.update(digest for digest in (model.digest, model.momentum_digest) if digest is not None)
        kept.update(tx.rounds.update_digests(task.task_id, after_round=first))
    return kept


class _Claims:
    """Claims blobs for their removal, in transactions that exclude those which publish blobs."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def claim(self, digests: Collection[str], since: Micros) -> list[str]:
        def claim(tx: Transaction) -> list[str]:
            tx.removals.lock()
            return tx.removals.claim(set(digests) - kept_digests(tx, since) if digests else ())

        return self._store.write(claim)

    def finish(self, digests: Collection[str]) -> None:
        self._store.write(lambda tx: tx.removals.finish(digests))


def sweep_at_start(store: Store) -> int:
    """Remove the uploads that a killed server has left; the number of removed files.

    With several servers they may belong to another one: then the hourly sweep removes them.
    """
    return store.blobs.sweep_staging() if store.has_one_server else 0


def sweep(store: Store, *, grace_s: float = _GRACE_S) -> int:
    """Remove blobs that no row refers to; files also only if they are older than the grace period. Returns the number.

    Several processes may sweep one folder at the same time, and may pause in the middle of it.
    """

    unused: dict[str, int] = {}

    def referenced(since: Micros) -> set[str]:
        # Rows and references of the same moment: a row that gets its reference later is written again then.
        rows, kept = store.read(lambda tx: (tx.small_blobs.writes(), kept_digests(tx, since)), snapshot=True)
        unused.update((digest, writes) for digest, writes in rows.items() if digest not in kept)
        return kept

    removed = store.blobs.sweep(referenced, _Claims(store), grace=seconds(grace_s))
    return removed + (store.write(lambda tx: tx.small_blobs.remove(unused)) if unused else 0)
