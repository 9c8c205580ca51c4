"""What operators see of a task as a whole: rounds in lists, the open round, outcomes, accounts, forecast.

Nothing here shows the budget of an open round.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from qidpfl_shared.core.forecast import fit_accuracy_curve
from qidpfl_shared.core.money import from_micro
from qidpfl_shared.core.noise_audit import NoiseVerdict
from qidpfl_shared.core.planning import Standing
from qidpfl_shared.core.privacy.account import Release
from qidpfl_shared.core.privacy.conversion import epsilon_from_rho
from qidpfl_shared.core.utility import training_cost
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.ledger import Ledger
from qidpfl_shared.protocol.messages import RoundState
from qidpfl_shared.protocol.operators import (
    AccountPage,
    AccountSummary,
    AnswerState,
    ClientAnswer,
    ClientRound,
    Forecast,
    OpenRound,
    PresetInfo,
    RoundOutcomes,
    RoundProgress,
    RoundSummary,
)
from qidpfl_shared.protocol.presets import PRESETS
from qidpfl_shared.protocol.releases import histogram_release, release_of, round_release

from ..clock import Micros, as_datetime, seconds_left
from ..domain import Budget, BudgetState, Client, ClientState, EscrowSettlement, Round, RoundInvitation, Task
from ..errors import RequestRefused
from ..store.settled import NO_SUMS, RoundSums
from ..store.transaction import Transaction
from .lifecycle import get_task
from .views import last_closed_round, ledger


def presets() -> list[PresetInfo]:
    """All presets with their specs."""
    return [
        PresetInfo(name=name, description=" ".join((make.__doc__ or "").split()), spec=make())
        for name, make in PRESETS.items()
    ]


def round_summaries(tx: Transaction, task_id: str, after: int, limit: int) -> list[RoundSummary]:
    """The rounds after a number, in order, at most `limit`."""
    get_task(tx, task_id)
    found = tx.rounds.between(task_id, after + 1, after + limit)
    settled = max((round_.round_number for round_ in found if round_.state is RoundState.SETTLED), default=0)
    sums = tx.figures.sums(task_id, after + 1, found[-1].round_number, settled=settled) if found else {}
    return [_round_summary(round_, sums.get(round_.round_number, NO_SUMS)) for round_ in found]


def _round_summary(round_: Round, sums: RoundSums) -> RoundSummary:
    return RoundSummary(
        round_number=round_.round_number,
        attempt=round_.attempt,
        state=round_.state,
        reward_micro=round_.reward_micro,
        paid_micro=sums.paid_micro,
        escrow_micro=sums.escrow_micro,
        kept_micro=round_.kept_micro or 0,
        total=round_.total,
        declared_total=round_.declared_total,
        invited=sums.invited,
        updates=sums.updates,
        accuracy=round_.accuracy,
        loss=round_.loss,
        opened_at=None if round_.opened_at is None else as_datetime(round_.opened_at),
        settled_at=None if round_.settled_at is None else as_datetime(round_.settled_at),
        settlement_s=round_.settlement_s,
        evaluation_s=round_.evaluation_s,
    )


def round_progress(tx: Transaction, task_id: str, now: Micros) -> RoundProgress:
    """What a task waits for: its open round, and how far each client is."""
    task, round_ = get_task(tx, task_id), tx.rounds.latest(task_id)
    is_open = round_ is not None and round_.state is RoundState.OPEN and not task.ended
    return RoundProgress(
        task_state=task.state,
        paused=task.paused,
        last_event=tx.events.last_id(task_id),
        round=_open_round(tx, round_, now) if is_open and round_ is not None else None,
    )


def _open_round(tx: Transaction, round_: Round, now: Micros) -> OpenRound:
    invitations = tx.rounds.invitations(round_.task_id, round_.round_number)
    budgets = tx.rounds.budgets(round_.task_id, round_.round_number)
    delivered = tx.rounds.updates(round_.task_id, round_.round_number).keys()
    answers = [
        ClientAnswer(
            client_id=client.client_id,
            ordinal=client.ordinal,
            standing=invitations[client.client_id].standing,
            answer=AnswerState.DELIVERED
            if client.client_id in delivered
            else _answer(client, round_, invitations[client.client_id], budgets.get(client.client_id), now),
        )
        for client in tx.clients.of_task(round_.task_id)
        if client.client_id in invitations
    ]
    return OpenRound(
        round_number=round_.round_number,
        attempt=round_.attempt,
        reward_micro=round_.reward_micro,
        total=round_.total,
        min_updates=round_.min_updates,
        opened_at=None if round_.opened_at is None else as_datetime(round_.opened_at),
        declare_by=as_datetime(round_.declare_by),
        deliver_by=as_datetime(round_.deliver_by),
        declare_in_s=seconds_left(round_.declare_by, now),
        deliver_in_s=seconds_left(round_.deliver_by, now),
        clients=tuple(answers),
    )


def _answer(
    client: Client, round_: Round, invitation: RoundInvitation, budget: Budget | None, now: Micros
) -> AnswerState:
    """How far a client is that has not delivered."""
    if client.state is not ClientState.SELECTED:
        return AnswerState.LEFT
    if invitation.standing is not Standing.INVITED:
        return AnswerState.NOT_INVITED
    if budget is not None and budget.state is not BudgetState.DECLINED:
        return AnswerState(budget.state.value)
    # A client that only declined an earlier attempt may still answer this one.
    if budget is not None and (budget.withdrawn or budget.attempt >= round_.attempt):
        return AnswerState.DECLINED
    return AnswerState.AWAITED if now <= round_.declare_by else AnswerState.MISSED


def round_outcomes(tx: Transaction, task_id: str, after: int, limit: int) -> list[RoundOutcomes]:
    """What every client did in the closed rounds after a number, at most `limit` of them."""
    get_task(tx, task_id)
    found = []
    for (number, state), rows in groupby(
        tx.figures.answers(task_id, after + 1, after + limit), key=lambda row: (row.round_number, row.round_state)
    ):
        parts = list(rows)
        found.append(
            # Not validated again: up to a million numbers from rows that were validated when they were written.
            RoundOutcomes.model_construct(
                round_number=number,
                state=RoundState(state),
                ordinals=tuple(row.ordinal for row in parts),
                outcomes="".join(map(_outcome, parts)),
                rho=tuple(row.rho or 0.0 for row in parts),
                payment_micro=tuple((row.amount_micro or 0) + (row.escrow_micro or 0) for row in parts),
            )
        )
    return found


def _outcome(row: Any) -> str:
    """The letter of what a client did in a closed round; `operators.OUTCOMES` explains the letters."""
    if row.received_at is not None:
        if row.voided_at is not None:
            return "v"
        if row.round_state != RoundState.SETTLED:
            return "u"
        return "d" if row.accepted else "r"
    if row.answer is not None:
        return "n" if row.answer == BudgetState.DECLINED else "b"
    return "m" if row.standing == Standing.INVITED else "o"


def client_rounds(tx: Transaction, task_id: str, client_id: str) -> list[ClientRound]:
    """The closed rounds of one client. Raises `RequestRefused` if it is not in the task."""
    task, client = get_task(tx, task_id), client_of_task(tx, task_id, client_id)
    value, weight = client.privacy_value or 1.0, task.spec.game.privacy_weight
    return [
        ClientRound(
            round_number=row.round_number,
            state=RoundState(row.round_state),
            standing=Standing(row.standing),
            outcome=_outcome(row),
            rho=row.rho or 0.0,
            payment_micro=row.amount_micro or 0,
            escrow_micro=row.escrow_micro or 0,
            utility=from_micro((row.amount_micro or 0) + (row.escrow_micro or 0))
            - (training_cost(rho=row.rho, privacy_value=value, privacy_weight=weight) if row.received_at else 0.0),
            verdict=None if row.verdict is None else NoiseVerdict(row.verdict),
            alignment=row.alignment,
            digest=row.digest,
            received_at=None if row.received_at is None else as_datetime(row.received_at),
        )
        for row in tx.figures.answers_of(task_id, client_id)
    ]


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
    (account,) = _accounts(tx, task, [client])
    return whole.model_copy(
        update={"entries": tuple(entries), "spent_rho": account.spent_rho, "epsilon": account.epsilon}
    )


def account_page(tx: Transaction, task_id: str, after: int, limit: int) -> AccountPage:
    """The accounts of the clients with an ordinal above `after`, at most `limit` of them."""
    task = get_task(tx, task_id)
    clients = tx.clients.of_task(task_id)
    page = [client for client in clients if client.ordinal > after][:limit]
    accounts = _accounts(tx, task, page)
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


@dataclass
class _Spent:
    """The releases of one client as numbers: a task may have half a million of them."""

    proven: list[float] = field(default_factory=list)
    sold: list[float] = field(default_factory=list)
    unproven: bool = False

    def add(self, release: Release) -> None:
        self.proven.append(release.proven_rho)
        self.unproven = self.unproven or release.unproven


def _spent(tx: Transaction, task: Task, clients: Sequence[Client]) -> dict[str, _Spent]:
    """What each client has released, without the open round."""
    latest, privacy = tx.rounds.latest(task.task_id), task.spec.privacy
    open_round = latest.round_number if latest is not None and latest.state is RoundState.OPEN else None
    sizes = {client.client_id: client.size or 1 for client in clients}
    found = {client.client_id: _Spent() for client in clients}
    for client in clients:
        if client.has_histogram:
            found[client.client_id].add(histogram_release(client.histogram_rho))
    # Many releases have the same budget, or the mechanism gives the same bound: each is computed once.
    known: dict[tuple[float, int], Release] = {}
    for number, client_id, rho in tx.rounds.spent_budgets(task.task_id, sizes.keys()):
        if number == open_round:
            continue
        key = rho, sizes[client_id]
        if key not in known:
            known[key] = round_release(privacy=privacy, round_number=number, rho=rho, size=key[1])
        found[client_id].add(known[key])
        found[client_id].sold.append(rho)
    return found


def _accounts(tx: Transaction, task: Task, clients: Sequence[Client]) -> list[AccountSummary]:
    if not clients:
        return []
    releases = _spent(tx, task, clients)
    earned = tx.figures.earned(task.task_id, [client.client_id for client in clients])
    settlements = tx.payments.escrow_settlements(task.task_id)
    latest = tx.rounds.latest(task.task_id)
    answering: set[str] = set()
    if latest is not None and latest.state is RoundState.OPEN:
        budgets = tx.rounds.budgets(task.task_id, latest.round_number)
        answering = {key for key, budget in budgets.items() if budget.state is not BudgetState.DECLINED}
    return [
        _account(
            task,
            client,
            releases[client.client_id],
            earned.get(client.client_id, (0, 0)),
            settlements.get(client.client_id),
            answering=client.client_id in answering,
        )
        for client in clients
    ]


def _account(
    task: Task,
    client: Client,
    released: _Spent,
    earned: tuple[int, int],
    settlement: EscrowSettlement | None,
    *,
    answering: bool,
) -> AccountSummary:
    spent, delta = math.fsum(released.proven), task.spec.privacy.delta
    lifetime = math.inf if client.lifetime_rho is None or released.unproven else client.lifetime_rho
    paid, escrow = earned
    cost = training_cost(
        rho=math.fsum(released.sold),
        privacy_value=client.privacy_value or 1.0,
        privacy_weight=task.spec.game.privacy_weight,
    )
    return AccountSummary(
        client_id=client.client_id,
        ordinal=client.ordinal,
        releases=len(released.proven),
        spent_rho=spent if math.isfinite(spent) else None,
        epsilon=epsilon_from_rho(rho=spent, delta=delta) if math.isfinite(spent) else None,
        delta=delta,
        guarantee="none" if math.isinf(spent) else "heuristic" if released.unproven else "proven",
        lifetime_rho=client.lifetime_rho,
        left_rho=max(0.0, lifetime - spent) if math.isfinite(lifetime) else None,
        answering=answering,
        earned_micro=paid + (0 if settlement is None or settlement.forfeited else settlement.amount_micro),
        escrow_micro=escrow,
        utility=from_micro(paid + escrow) - cost,
    )


def forecast(tx: Transaction, task_id: str) -> Forecast:
    """The accuracy curve of the settled rounds, if their budgets differ enough to determine one."""
    get_task(tx, task_id)
    measured = [
        (round_.declared_total, round_.accuracy)
        for round_ in tx.rounds.of_task(task_id)
        if round_.declared_total and round_.accuracy is not None
    ]
    if len(measured) < 3:
        return Forecast(status="not_identifiable")
    fit = fit_accuracy_curve(totals=[total for total, _ in measured], accuracies=[value for _, value in measured])
    if fit.curve is None:
        return Forecast(status="not_identifiable")
    return Forecast(
        status="fitted",
        ceiling=fit.curve.ceiling,
        drop=fit.curve.drop,
        rate=fit.curve.rate,
        total_min=fit.curve.total_min,
        total_max=fit.curve.total_max,
        rmse=fit.rmse,
    )
