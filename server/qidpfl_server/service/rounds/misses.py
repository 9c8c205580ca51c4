"""Counts the settled rounds in a row that a client did not answer, and sets it aside after too many."""

from collections.abc import Collection, Mapping

from qidpfl_shared.core.planning import Standing

from ...domain import Budget, BudgetState, Client, Round, RoundInvitation, Task
from ...store.transaction import Transaction
from ..lifecycle import active_clients

# An exclusion lasts at most 2 to the power of this many rounds.
_LONGEST_EXCLUSION = 16


def count_misses(
    tx: Transaction,
    task: Task,
    round_: Round,
    *,
    known: Mapping[str, Client],
    invitations: Mapping[str, RoundInvitation],
    budgets: Mapping[str, Budget],
    delivered: Collection[str],
) -> list[Client] | None:
    """Store the misses of all invited clients after a round.

    Returns the clients that are still here, or None if this has changed some of them.
    """
    rules, defended = task.spec.rounds, task.spec.defence is not None
    clients = active_clients(tx, task.task_id)
    here = {client.client_id for client in clients}
    changed = False
    for client_id, invitation in invitations.items():
        if invitation.standing is not Standing.INVITED or client_id not in here:
            continue
        client = known[client_id]
        misses = _misses(client, budgets.get(client_id), client_id in delivered, defended=defended)
        if misses == client.misses:
            continue
        changed = True
        if misses >= rules.set_aside_after and defended:
            # Each exclusion lasts twice as many rounds as the one before.
            exclusions = client.exclusions + 1
            until = round_.round_number + 1 + 2 ** min(exclusions - 1, _LONGEST_EXCLUSION)
            tx.clients.exclude(client_id, misses, exclusions=exclusions, until=until)
        else:
            tx.clients.set_misses(client_id, misses, set_aside=misses >= rules.set_aside_after)
    return None if changed else clients


def _misses(client: Client, answer: Budget | None, delivered: bool, *, defended: bool) -> int:
    """The misses of a client after a round.

    In a task with a defence, only a delivery ends a series of misses, and a withdrawn budget is a miss: the client has
    kept the others waiting.
    """
    if delivered:
        return 0
    if answer is not None and answer.state is BudgetState.DECLINED:
        if not defended:
            return 0
        return client.misses + 1 if answer.withdrawn else client.misses
    return client.misses + 1
