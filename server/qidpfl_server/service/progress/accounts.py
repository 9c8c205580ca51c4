"""The accounts of clients as operators see them: what each has released, has left and has earned in closed rounds.

Settled rounds never change. A reader keeps what they add up to for each client, and reads only later rows again.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from qidpfl_shared.core.money import from_micro
from qidpfl_shared.core.privacy.account import Release
from qidpfl_shared.core.privacy.conversion import epsilon_from_rho
from qidpfl_shared.core.utility import training_cost
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.ledger import Ledger
from qidpfl_shared.protocol.messages import RoundState
from qidpfl_shared.protocol.operators import AccountPage, AccountSummary
from qidpfl_shared.protocol.releases import histogram_release, release_of, round_release

from ...domain import BudgetState, Client, EscrowSettlement, Round, Task
from ...errors import RequestRefused
from ...store.transaction import Transaction
from ..lifecycle import get_task
from ..views import last_closed_round, ledger


def client_of_task(tx: Transaction, task_id: str, client_id: str) -> Client:
    """A client, if it is one of this task. Raises `RequestRefused`."""
    client = tx.clients.get(client_id)
    if client is None or client.task_id != task_id:
        raise RequestRefused(ErrorCode.NOT_FOUND, "there is no such client in this task")
    return client


def closed_ledger(tx: Transaction, task: Task, client: Client, *, up_to_round: int | None = None) -> Ledger:
    """The ledger of a client as operators see it: without the open round, or only up to a closed round."""
    whole, last = ledger(tx, client.client_id), up_to_round or last_closed_round(tx, task) or 0
    names = {release_of(number) for number in range(1, last + 1)}
    entries = [entry for entry in whole.entries if not entry.release.startswith("round/") or entry.release in names]
    if len(entries) == len(whole.entries):
        return whole
    (account,) = accounts_of(tx, task, [client])
    return whole.model_copy(
        update={"entries": tuple(entries), "spent_rho": account.spent_rho, "epsilon": account.epsilon}
    )


def account_page(tx: Transaction, task_id: str, after: int, limit: int) -> AccountPage:
    """The accounts of the clients with an ordinal above `after`, at most `limit` of them."""
    task = get_task(tx, task_id)
    clients = tx.clients.of_task(task_id)
    page = [client for client in clients if client.ordinal > after][:limit]
    accounts = accounts_of(tx, task, page)
    return AccountPage(accounts=tuple(accounts), statement=_statement(accounts) if len(page) == len(clients) else None)


def _statement(accounts: Sequence[AccountSummary]) -> str | None:
    """The guarantee for every record: that of the largest account, because a record belongs to one client."""
    if not accounts:
        return None
    if any(account.spent_rho is None for account in accounts):
        return "no privacy guarantee: at least one release is unprotected"
    largest = max(accounts, key=lambda account: account.spent_rho or 0.0)
    weaker = sum(account.guarantee == "heuristic" for account in accounts)
    caveat = f"; {weaker} clients have releases that guarantee less than declared" if weaker else ""
    return f"every record: {largest.spent_rho:.4g}-zCDP, that is ({largest.epsilon:.4g}, {largest.delta:g})-DP{caveat}"


@dataclass(frozen=True, kw_only=True)
class _Total:
    """What one client has released and earned up to and with round `through`.

    `proven` and `sold` are a few numbers whose exact sums are those of all proven and all declared budgets.
    """

    through: int = 0
    releases: int = 0
    proven: tuple[float, ...] = ()
    sold: tuple[float, ...] = ()
    unproven: bool = False
    unprotected: bool = False
    paid_micro: int = 0
    escrow_micro: int = 0

    def plus(self, released: Sequence[Release], *, is_sold: bool) -> "_Total":
        """The total with more releases. The histogram of a client is not sold."""
        return replace(
            self,
            releases=self.releases + len(released),
            proven=_exact_parts([*self.proven, *(one.proven_rho for one in released if not one.unprotected)]),
            sold=_exact_parts([*self.sold, *(one.rho for one in released)]) if is_sold else self.sold,
            unproven=self.unproven or any(one.unproven for one in released),
            unprotected=self.unprotected or any(one.unprotected for one in released),
        )

    @property
    def spent_rho(self) -> float:
        return math.inf if self.unprotected else math.fsum(self.proven)


_NOTHING = _Total()


def _exact_parts(values: Iterable[float]) -> tuple[float, ...]:
    """A few numbers with the same exact sum as the values."""
    rest, parts = list(values), []
    while part := math.fsum(rest):
        parts.append(part)
        rest.append(-part)
    return tuple(parts)


def _totals(tx: Transaction, task: Task, clients: Sequence[Client], latest: Round | None) -> dict[str, _Total]:
    """What each client has released and earned, without the open round."""
    # All rounds before the latest are settled.
    settled = 0 if latest is None else latest.round_number - (latest.state is not RoundState.SETTLED)
    found = _settled_totals(tx, task, clients, settled)
    # The updates of a void round were released, too.
    if latest is not None and latest.state is RoundState.VOID:
        for client_id, released in _released(tx, task, clients, after=settled, last=latest.round_number).items():
            found[client_id] = found[client_id].plus(released, is_sold=True)
    for client in clients:
        if client.has_histogram:
            histogram = histogram_release(client.histogram_rho)
            found[client.client_id] = found[client.client_id].plus([histogram], is_sold=False)
    return found


def _settled_totals(tx: Transaction, task: Task, clients: Sequence[Client], settled: int) -> dict[str, _Total]:
    """The totals up to the last settled round. What is known from earlier reads is only extended."""
    kept: dict[str, _Total] = tx.settled.accounts(task.task_id)
    found = {client.client_id: kept.get(client.client_id, _NOTHING) for client in clients}
    # Nearly always all clients of a page are equally far.
    behind: dict[int, list[Client]] = defaultdict(list)
    for client in clients:
        if (through := found[client.client_id].through) < settled:
            behind[through].append(client)
    for through, group in behind.items():
        released = _released(tx, task, group, after=through, last=settled)
        earned = tx.figures.earned(task.task_id, [one.client_id for one in group], after=through, last=settled)
        for client_id in (client.client_id for client in group):
            total = found[client_id].plus(released[client_id], is_sold=True)
            paid, escrow = earned.get(client_id, (0, 0))
            found[client_id] = kept[client_id] = replace(
                total, through=settled, paid_micro=total.paid_micro + paid, escrow_micro=total.escrow_micro + escrow
            )
    return found


def _released(
    tx: Transaction, task: Task, clients: Sequence[Client], *, after: int, last: int
) -> defaultdict[str, list[Release]]:
    """The releases of clients in the rounds after `after`, up to and with round `last`."""
    sizes = {client.client_id: client.size or 1 for client in clients}
    found: defaultdict[str, list[Release]] = defaultdict(list)
    # Many releases have the same budget, or the mechanism gives the same bound: each is computed once.
    known: dict[tuple[float, int], Release] = {}
    for number, client_id, rho in tx.figures.released(task.task_id, list(sizes), after=after, last=last):
        key = rho, sizes[client_id]
        if key not in known:
            known[key] = round_release(privacy=task.spec.privacy, round_number=number, rho=rho, size=key[1])
        found[client_id].append(known[key])
    return found


def accounts_of(tx: Transaction, task: Task, clients: Sequence[Client]) -> list[AccountSummary]:
    """The accounts of clients, in the order of the clients."""
    if not clients:
        return []
    latest = tx.rounds.latest(task.task_id)
    totals = _totals(tx, task, clients, latest)
    settlements = tx.payments.escrow_settlements(task.task_id)
    answering: set[str] = set()
    if latest is not None and latest.state is RoundState.OPEN:
        budgets = tx.rounds.budgets(task.task_id, latest.round_number)
        answering = {key for key, budget in budgets.items() if budget.state is not BudgetState.DECLINED}
    return [
        _account(
            task,
            client,
            totals[client.client_id],
            settlements.get(client.client_id),
            answering=client.client_id in answering,
        )
        for client in clients
    ]


def _account(
    task: Task,
    client: Client,
    total: _Total,
    settlement: EscrowSettlement | None,
    *,
    answering: bool,
) -> AccountSummary:
    spent, delta = total.spent_rho, task.spec.privacy.delta
    lifetime = math.inf if client.lifetime_rho is None or total.unproven else client.lifetime_rho
    paid, escrow = total.paid_micro, total.escrow_micro
    cost = training_cost(
        rho=math.fsum(total.sold),
        privacy_value=client.counted_value(task.spec),
        privacy_weight=task.spec.game.privacy_weight,
    )
    return AccountSummary(
        client_id=client.client_id,
        ordinal=client.ordinal,
        releases=total.releases,
        spent_rho=spent if math.isfinite(spent) else None,
        epsilon=epsilon_from_rho(rho=spent, delta=delta) if math.isfinite(spent) else None,
        delta=delta,
        guarantee="none" if math.isinf(spent) else "heuristic" if total.unproven else "proven",
        lifetime_rho=client.lifetime_rho,
        left_rho=max(0.0, lifetime - spent) if math.isfinite(lifetime) else None,
        answering=answering,
        earned_micro=paid + (0 if settlement is None or settlement.forfeited else settlement.amount_micro),
        escrow_micro=escrow,
        utility=from_micro(paid + escrow) - cost,
    )
