"""The state of a task as API messages. While a round is open, no client sees the budget of another."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

from qidpfl_shared.core.planning import Standing
from qidpfl_shared.core.privacy.account import Release
from qidpfl_shared.core.privacy.conversion import epsilon_from_rho
from qidpfl_shared.core.privacy.mechanisms import MechanismName
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.ledger import Ledger, LedgerEntry, SpendState
from qidpfl_shared.protocol.mechanism_specs import BoltOn
from qidpfl_shared.protocol.messages import (
    Announcement,
    ClientResult,
    ModelInfo,
    RoundOffer,
    RoundResult,
    RoundState,
    RoundTiming,
    SelectionVerdict,
    TaskState,
    TaskSummary,
    TaskView,
)
from qidpfl_shared.protocol.releases import histogram_release, round_release
from qidpfl_shared.protocol.signatures import ChainPosition, MessageSignature, SigningKey
from qidpfl_shared.protocol.task_spec import SelectionRule

from ..clock import Micros, as_datetime, seconds_left
from ..domain import (
    Budget,
    BudgetState,
    Client,
    ClientState,
    EndReason,
    Model,
    Payment,
    Round,
    RoundInvitation,
    Task,
    Update,
    standing_of,
)
from ..errors import RequestRefused
from ..store.guarded import round_subject
from ..store.transaction import Transaction
from .figures import regrets_of
from .lifecycle import get_task, known_client
from .rounds.late_updates import late_digests
from .selection import TOO_FEW_PASS


@dataclass(frozen=True, kw_only=True)
class AnnouncementState:
    """What a task announces at one moment, to all its clients."""

    task: Task
    round_: Round | None
    base: Model | None
    invitations: dict[str, RoundInvitation]
    # The clients that the selection has refused.
    refused: frozenset[str] = frozenset()
    # Where the chain records the announcement, and its signature, which is the same for all clients.
    chain: ChainPosition | None = None
    signature: MessageSignature | None = None

    def is_newer_than(self, after: tuple[int, int]) -> bool:
        """Whether the open round and attempt are later than `after`."""
        return self.round_ is not None and (self.round_.round_number, self.round_.attempt) > after

    def accepts_updates(self, round_number: int, now: Micros) -> bool:
        """Whether this round is the open one and its time to deliver is not over."""
        return self.round_ is not None and self.round_.round_number == round_number and now <= self.round_.deliver_by

    def was_set_aside(self, client_id: str) -> bool:
        """Whether the plan of the open round leaves this client out because it missed too many rounds."""
        invitation = self.invitations.get(client_id)
        return invitation is not None and invitation.standing is Standing.SET_ASIDE

    def announcement(self, client_id: str, now: Micros) -> Announcement:
        """The announcement for one client."""
        if self.round_ is None or self.base is None or self.task.ended:
            return Announcement(task_state=self.task.state, reason=self.task.reason)
        return Announcement(task_state=self.task.state, round=self._offer(client_id, now))

    def _offer(self, client_id: str, now: Micros) -> RoundOffer:
        assert self.round_ is not None and self.base is not None
        spec, round_ = self.task.spec, self.round_
        mechanism = spec.privacy.mechanism
        return RoundOffer(
            round_number=round_.round_number,
            attempt=round_.attempt,
            reward_micro=round_.reward_micro,
            total=round_.total,
            standing=standing_of(self.invitations.get(client_id), refused=client_id in self.refused),
            model_version=self.base.version,
            model_digest=self.base.digest,
            mechanism=MechanismName(mechanism.name),
            clip_norm=None if isinstance(mechanism, BoltOn) else mechanism.clip_norm,
            dimension=spec.dimension,
            rho_max=self._rho_max(client_id),
            base_rho=self._base(client_id),
            noise=spec.privacy.noise,
            declare_by=as_datetime(round_.declare_by),
            deliver_by=as_datetime(round_.deliver_by),
            declare_in_s=seconds_left(round_.declare_by, now),
            deliver_in_s=seconds_left(round_.deliver_by, now),
            chain=self.chain,
            signature=self.signature,
        )

    def _base(self, client_id: str) -> float | None:
        """The base of the menu of an invited client; None in other markets."""
        invitation = self.invitations.get(client_id)
        if not self._announces_base or invitation is None or invitation.standing is not Standing.INVITED:
            return None
        return invitation.expected_rho

    @cached_property
    def _announces_base(self) -> bool:
        return self.task.spec.design.announces_base

    def _rho_max(self, client_id: str) -> float:
        """The largest budget that a client may declare in this round."""
        invitation, largest = self.invitations.get(client_id), self.task.spec.bounds.rho_max
        return largest if invitation is None or invitation.rho_limit is None else min(largest, invitation.rho_limit)

    def signed(self, key: SigningKey) -> "AnnouncementState":
        """The state with the signature of its announcement, made once for all clients."""
        return replace(self, signature=key.signed(self._offer("", 0)).signature)


def announcement_state(tx: Transaction, task_id: str) -> AnnouncementState | None:
    """Read what a task announces now. None if there is no such task."""
    task = tx.tasks.get(task_id)
    if task is None:
        return None
    round_ = tx.rounds.latest(task_id)
    if round_ is None or round_.state is not RoundState.OPEN or task.ended:
        return AnnouncementState(task=task, round_=None, base=None, invitations={})
    state = AnnouncementState(
        task=task,
        round_=round_,
        base=tx.tasks.model(task_id, round_.base_version),
        invitations=tx.rounds.invitations(task_id, round_.round_number),
        refused=tx.clients.refused(task_id) if task.is_versioned else frozenset(),
        chain=tx.chain.position(task_id, round_subject(round_.round_number)),
    )
    return state if tx.key is None or state.base is None else state.signed(tx.key)


def task_summary(tx: Transaction, task: Task) -> TaskSummary:
    """A task in a list."""
    # All rounds before the latest are settled.
    latest = tx.rounds.latest(task.task_id)
    settled = 0 if latest is None else latest.round_number - (latest.state is not RoundState.SETTLED)
    return TaskSummary(
        task_id=task.task_id,
        name=task.name,
        preset=task.preset,
        state=task.state,
        reason=task.reason,
        settled_rounds=settled,
        horizon=task.spec.game.horizon,
        clients=tx.clients.count(task.task_id),
        paid_micro=_paid_micro(tx, task.task_id, settled),
        paused=True if task.paused else None,
    )


def _paid_micro(tx: Transaction, task_id: str, settled: int) -> int:
    """What the rounds of a task have cost. A reader sums the payments of a settled round only once."""
    through, paid = tx.settled.paid(task_id)
    totals = tx.payments.totals_micro(task_id, after_round=through)
    tx.settled.keep_paid(task_id, settled, paid + sum(totals[number] for number in totals if number <= settled))
    return paid + sum(totals.values())


def task_view(tx: Transaction, task: Task, *, shows_pause: bool = False) -> TaskView:
    """A task with its counts and its whole spec. Clients of earlier versions do not know that a task can pause."""
    summary = task_summary(tx, task)
    return TaskView(
        **dict(summary if shows_pause else summary.model_copy(update={"paused": None})),
        spec=task.spec,
        spec_digest=task.spec_digest,
        chain=tx.chain.head(task.task_id),
    )


def selection_verdict(tx: Transaction, client_id: str) -> SelectionVerdict:
    """The label distance and verdict of a client, and the counts of the task."""
    client = known_client(tx, client_id)
    task = tx.tasks.get(client.task_id)
    assert task is not None
    counts = tx.clients.counts(client.task_id)
    if task.state is TaskState.ENROLLING or not client.has_verdict:
        return SelectionVerdict(profiles=counts.profiles)
    rule = task.spec.selection
    # Then no client is selected, also if its own labels are near the reference.
    failed = task.reason == f"{EndReason.TOO_FEW_CLIENTS}: {TOO_FEW_PASS}"
    return SelectionVerdict(
        selected=None if failed else client.state is not ClientState.REFUSED,
        label_distance=client.label_distance,
        distance_threshold=rule.distance_threshold if rule.rule is SelectionRule.THRESHOLD else None,
        filled_up=client.filled_up,
        profiles=counts.profiles,
        selected_clients=counts.of(ClientState.SELECTED, ClientState.LEFT),
    )


def round_result(tx: Transaction, task: Task, round_number: int) -> RoundResult:
    """The result of a round for admin and viewer, with all clients once it is closed. Raises `RequestRefused`."""
    round_ = tx.rounds.get(task.task_id, round_number)
    if round_ is None:
        raise RequestRefused(ErrorCode.NOT_FOUND, f"round {round_number} has not been announced")
    payments = tx.payments.of_round(task.task_id, round_number)
    closed = round_.state is not RoundState.OPEN
    version = round_number if round_.state is RoundState.SETTLED else round_.base_version
    model = tx.tasks.model(task.task_id, version)
    return RoundResult(
        round_number=round_number,
        attempt=round_.attempt,
        state=round_.state,
        reward_micro=round_.reward_micro,
        paid_micro=sum(payment.amount_micro for payment in payments.values()),
        escrow_micro=sum(payment.escrow_micro for payment in payments.values()) or None,
        kept_micro=round_.kept_micro or 0,
        total=round_.total,
        declared_total=round_.declared_total,
        updates=tx.rounds.update_count(task.task_id, round_number),
        model_version=version,
        model_digest=None if model is None else model.digest,
        accuracy=round_.accuracy,
        loss=round_.loss,
        timing=_timing(round_),
        clients=tuple(_client_results(tx, task, round_, payments)) if closed else None,
        chain=tx.chain.position(task.task_id, round_subject(round_number)),
    )


def result_of_round(tx: Transaction, task_id: str, round_number: int) -> tuple[RoundResult, bool]:
    """The result of a round, and whether its model has yet to be evaluated. Raises `RequestRefused`."""
    round_ = tx.rounds.get(task_id, round_number)
    result = round_result(tx, get_task(tx, task_id), round_number)
    return result, round_ is not None and round_.awaits_evaluation


def last_closed_round(tx: Transaction, task: Task) -> int | None:
    """The number of the latest round that is not open. None before the end of the first."""
    latest = tx.rounds.latest(task.task_id)
    if latest is None:
        return None
    number = latest.round_number - (latest.state is RoundState.OPEN)
    return number or None


def as_seen_by(result: RoundResult, client_id: str) -> RoundResult:
    """The result for one client: the totals and its own part."""
    own = next((part for part in result.clients or () if part.client_id == client_id), None)
    return result.model_copy(update={"own": own, "clients": None})


def _timing(round_: Round) -> RoundTiming | None:
    if round_.opened_at is None:
        return None
    return RoundTiming(
        opened_at=as_datetime(round_.opened_at),
        settled_at=None if round_.settled_at is None else as_datetime(round_.settled_at),
        settlement_s=round_.settlement_s,
        evaluation_s=round_.evaluation_s,
        evaluated_at=None if round_.evaluated_at is None else as_datetime(round_.evaluated_at),
    )


def _client_results(tx: Transaction, task: Task, round_: Round, payments: dict[str, Payment]) -> list[ClientResult]:
    budgets = tx.rounds.budgets(task.task_id, round_.round_number)
    updates = tx.rounds.updates(task.task_id, round_.round_number)
    invitations = tx.rounds.invitations(task.task_id, round_.round_number)
    clients = [client for client in tx.clients.of_task(task.task_id) if client.client_id in invitations]
    bidders = [client for client in clients if client.client_id in budgets and budgets[client.client_id].rho > 0]
    bids = [budgets[client.client_id].rho for client in bidders]
    regret = {
        client.client_id: value
        # Other markets than the contest have no regrets.
        for client, value in zip(bidders, regrets_of(task, round_.reward_micro, bidders, bids), strict=False)
    }
    results = []
    for client in clients:
        budget, update = budgets.get(client.client_id), updates.get(client.client_id)
        payment = payments.get(client.client_id, Payment(amount_micro=0))
        results.append(
            ClientResult(
                client_id=client.client_id,
                ordinal=client.ordinal,
                standing=invitations[client.client_id].standing,
                rho=budget.rho if budget else 0.0,
                declined=budget is not None and budget.state is BudgetState.DECLINED,
                delivered=update is not None,
                verdict=update.verdict if update else None,
                accepted=bool(update and update.accepted),
                payment_micro=payment.amount_micro,
                escrow_micro=payment.escrow_micro or None,
                alignment=update.alignment if update else None,
                voided=True if update and update.voided_at is not None else None,
                regret=regret.get(client.client_id),
            )
        )
    return results


def ledger(tx: Transaction, client_id: str) -> Ledger:
    """The ledger of a client in a task: the histogram if it sent one, then every round that it answered."""
    client = known_client(tx, client_id)
    task = tx.tasks.get(client.task_id)
    assert task is not None
    entries = [_entry(histogram_release(client.histogram_rho), SpendState.SPENT)] if client.has_histogram else []
    late = late_digests(tx, task.task_id, client_id)
    entries += [
        _round_entry(task, client, round_, budget, update, paid, late.get(round_.round_number))
        for round_, budget, update, paid in tx.rounds.history(task.task_id, client.client_id)
        if budget.state is not BudgetState.DECLINED or budget.rho > 0
    ]
    proven = [
        math.inf if entry.proven_rho is None else entry.proven_rho
        for entry in entries
        if entry.state in (SpendState.SPENT, SpendState.SPENT_UNPAID)
    ]
    spent = math.fsum(proven)
    delta = task.spec.privacy.delta
    settlement = tx.payments.escrow_settlements(task.task_id).get(client_id)
    released = None if settlement is None else 0 if settlement.forfeited else settlement.amount_micro
    return Ledger(
        client_id=client.client_id,
        entries=tuple(entries),
        spent_rho=spent if math.isfinite(spent) else None,
        epsilon=epsilon_from_rho(rho=spent, delta=delta) if math.isfinite(spent) else None,
        delta=delta,
        earned_micro=sum(entry.payment_micro or 0 for entry in entries) + (released or 0),
        escrow_micro=sum(entry.escrow_micro or 0 for entry in entries) or None,
        released_micro=released,
    )


def _round_entry(
    task: Task,
    client: Client,
    round_: Round,
    budget: Budget,
    update: Update | None,
    paid: Payment | None,
    late_digest: str | None,
) -> LedgerEntry:
    release = round_release(
        privacy=task.spec.privacy, round_number=round_.round_number, rho=budget.rho, size=client.size or 1
    )
    if update is None and late_digest is not None:
        # The server has seen the bytes, so the budget is not free.
        is_open = round_.state is RoundState.OPEN and not task.ended
        return _entry(release, SpendState.SPENT if is_open else SpendState.SPENT_UNPAID, digest=late_digest)
    if update is None:
        closed = round_.state is not RoundState.OPEN or budget.state is BudgetState.DECLINED
        state = SpendState.FREED if closed else SpendState.RESERVED
    elif not update.accepted and (round_.state is not RoundState.OPEN or task.ended):
        state = SpendState.SPENT_UNPAID
    else:
        state = SpendState.SPENT
    return _entry(release, state, digest=update.digest if update else None, payment=paid)


def _entry(
    release: Release, state: SpendState, *, digest: str | None = None, payment: Payment | None = None
) -> LedgerEntry:
    return LedgerEntry(
        release=release.name,
        mechanism=release.mechanism,
        state=state,
        rho=release.rho,
        proven_rho=None if release.unprotected else release.proven_rho,
        digest=digest,
        payment_micro=None if payment is None else payment.amount_micro,
        escrow_micro=None if payment is None else payment.escrow_micro or None,
    )


def model_info(task: Task, model: Model) -> ModelInfo:
    """A version of the model."""
    return ModelInfo(
        version=model.version,
        digest=model.digest,
        dimension=task.spec.dimension,
        byte_length=task.spec.layout.byte_length,
    )
