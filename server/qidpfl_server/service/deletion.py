"""How an admin deletes a task that has ended: all its rows go, and a signed tombstone stays."""

from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.evidence import Tombstone
from qidpfl_shared.protocol.messages import RoundState

from ..clock import Micros, as_datetime
from ..errors import DamagedState, RequestRefused
from ..store.transaction import Transaction
from .lifecycle import get_task_for_update
from .rounds.payments import settle_escrow


def delete_task(tx: Transaction, task_id: str, *, deleted_by: str, now: Micros) -> Tombstone:
    """Delete a task that has ended. A repeat returns the first tombstone. The sweep removes its blobs later.

    Raises:
        RequestRefused: there is no such task, or it has not ended.
    """
    if (known := tx.tombstones.get(task_id)) is not None:
        return known
    task = get_task_for_update(tx, task_id)
    if not task.ended:
        raise RequestRefused(ErrorCode.TASK_NOT_ENDED, f"the task is {task.state}: stop it first")
    if not tx.payments.escrow_settlements(task_id):
        # A task that failed by a fault has kept its escrow, in case that it is resumed.
        settle_escrow(tx, task_id, now)
    final = tx.chain.present(task_id)
    if final is None:
        raise DamagedState(f"task {task.name} has no chain: `qidpfl-server audit` shows what is wrong")
    stone = Tombstone(
        task_id=task_id,
        name=task.name,
        spec_digest=task.spec_digest,
        state=task.state,
        reason=task.reason,
        clients=tx.clients.count(task_id),
        settled_rounds=sum(round_.state is RoundState.SETTLED for round_ in tx.rounds.of_task(task_id)),
        paid_micro=tx.payments.total_micro(task_id),
        deleted_by=deleted_by,
        deleted_at=as_datetime(now),
        chain=final,
    )
    if tx.key is not None:
        stone = tx.key.signed(stone)
    tx.tombstones.replace_task(stone)
    tx.touch(task_id)
    failpoint("delete.before_commit")
    return stone
