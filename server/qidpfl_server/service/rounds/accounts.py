"""What a task has cost its clients and its operator so far: privacy accounts and paid rewards.

Settled rounds never change. The writer of the store therefore keeps their sums in memory, and each round reads only the
rows of the last two rounds. The sums are exact: they give the same bits as a sum over all rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from qidpfl_shared.core.privacy.account import PrivacyAccount, Release
from qidpfl_shared.core.privacy.mechanisms import Mechanism
from qidpfl_shared.core.privacy.running_account import RunningAccount
from qidpfl_shared.protocol.releases import histogram_release, release_of

from ...domain import Client, Task
from ...store.transaction import Transaction


def privacy_accounts(tx: Transaction, task: Task, clients: Sequence[Client]) -> dict[str, PrivacyAccount]:
    """The server's privacy ledger of each client, with every release: the histogram if it sent one, and all updates."""
    releases = {client.client_id: _first_releases(client) for client in clients}
    for client_id, _, release in _releases(tx, task, clients):
        releases[client_id].append(release)
    return {client.client_id: _account(client, releases[client.client_id]) for client in clients}


def present_accounts(
    tx: Transaction, task: Task, clients: Sequence[Client], round_number: int
) -> dict[str, PrivacyAccount]:
    """The same accounts when a round is opened or answered, with the sums of earlier releases instead of each one."""
    sums, settled = _sums(tx, task), _last_settled(round_number)
    known = {client.client_id: sums.clients.setdefault(client.client_id, _ClientSum()) for client in clients}
    first_missing = min((sum_.through for sum_ in known.values()), default=0)
    recent: dict[str, list[Release]] = {client_id: [] for client_id in known}
    for client_id, number, release in _releases(tx, task, clients, after_round=first_missing):
        if number > settled:
            recent[client_id].append(release)
        elif number > known[client_id].through:
            known[client_id].spent.add(release)
    for sum_ in known.values():
        sum_.through = max(sum_.through, settled)
    return {
        client.client_id: _account(
            client,
            [
                *_first_releases(client),
                *known[client.client_id].spent.account().releases,
                *recent[client.client_id],
            ],
        )
        for client in clients
    }


def paid_micro(tx: Transaction, task: Task, round_number: int) -> int:
    """What the rounds before this one have cost: payments and escrow."""
    sums, settled = _sums(tx, task), _last_settled(round_number)
    totals = tx.payments.totals_micro(task.task_id, after_round=sums.paid_through)
    recent = sum(amount for number, amount in totals.items() if number > settled)
    if settled > sums.paid_through:
        sums.paid_micro += sum(totals.values()) - recent
        sums.paid_through = settled
    # With an earlier round number than at the last call, every row is a recent one.
    return sums.paid_micro + recent


@dataclass
class _ClientSum:
    """The updates of a client up to and with round `through`."""

    spent: RunningAccount = field(default_factory=RunningAccount)
    through: int = 0


@dataclass
class _SettledSums:
    """The sums of one task over rounds that can no longer change."""

    clients: dict[str, _ClientSum] = field(default_factory=dict)
    paid_micro: int = 0
    paid_through: int = 0


def _sums(tx: Transaction, task: Task) -> _SettledSums:
    known = tx.derived.get(task.task_id)
    if not isinstance(known, _SettledSums):
        known = _SettledSums()
        tx.keep(task.task_id, known)
    return known


def _last_settled(round_number: int) -> int:
    """The last round whose settlement is surely committed when `round_number` is opened or answered.

    The transaction that opens a round also settles the one before, and may still be rolled back.
    """
    return max(0, round_number - 2)


def _releases(
    tx: Transaction, task: Task, clients: Sequence[Client], *, after_round: int = 0
) -> list[tuple[str, int, Release]]:
    """(client, round, release) of each stored update, in the order of the rounds."""
    mechanism = task.spec.privacy.mechanism.build()
    sizes = {client.client_id: client.size or 1 for client in clients}
    rows = tx.rounds.spent_budgets(task.task_id, sizes.keys(), after_round=after_round)
    return [
        (client_id, number, _release(mechanism, number, rho, sizes[client_id], noise=task.spec.privacy.noise))
        for number, client_id, rho in rows
    ]


def _release(mechanism: Mechanism, round_number: int, rho: float, size: int, *, noise: bool) -> Release:
    proven = mechanism.proven_rho(rho=rho, size=size) if noise else math.inf
    return Release(name=release_of(round_number), mechanism=mechanism.name, rho=rho, proven_rho=proven)


def _first_releases(client: Client) -> list[Release]:
    return [histogram_release(client.histogram_rho)] if client.has_histogram else []


def _account(client: Client, releases: Sequence[Release]) -> PrivacyAccount:
    """The owner has accepted unproven releases on the client, so the server accepts them: they disable the limit."""
    lifetime = math.inf if client.lifetime_rho is None else client.lifetime_rho
    return PrivacyAccount(lifetime_rho=lifetime, accept_unproven=True, releases=tuple(releases))
