"""A round until its settlement: planned, announced, answered, delivered."""

import math
from dataclasses import replace

from qidpfl_shared.core.planning import Participant, PlanStatus, RoundPlan, Standing, plan_round
from qidpfl_shared.core.privacy.account import PrivacyAccount, Release
from qidpfl_shared.core.reward import RewardPolicy
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import (
    BudgetReceipt,
    BudgetRequest,
    Declaration,
    Decline,
    RoundState,
    TaskState,
    UpdateReceipt,
)
from qidpfl_shared.protocol.tasks import TaskSpec

from .clock import Micros, as_datetime, seconds
from .domain import Budget, BudgetState, Client, EndReason, Invitation, Round, Task, Update
from .errors import Refused
from .failpoints import failpoint
from .lifecycle import active_clients, end_task, known_client, locked
from .store.blobs import StagedBlob
from .store.transaction import Transaction

_ENDS = {
    PlanStatus.TOO_FEW_CLIENTS: (TaskState.FAILED, EndReason.TOO_FEW_CLIENTS),
    PlanStatus.NO_REWARD: (TaskState.FAILED, EndReason.NO_REWARD),
    PlanStatus.BUDGET_EXHAUSTED: (TaskState.FINISHED, EndReason.BUDGET_EXHAUSTED),
}
# Rounding of a sum of budgets, relatively.
_TOLERANCE = 1e-12


def open_round(tx: Transaction, task: Task, round_number: int, now: Micros) -> None:
    """Plan a round and announce it, or end the task where no round can be held."""
    clients = [_returned(tx, client) for client in active_clients(tx, task.task_id)]
    accounts = privacy_accounts(tx, task, clients)
    plan = plan_round(
        rules=task.spec.round_rules(),
        round_number=round_number,
        participants=[_participant(client, accounts[client.client_id]) for client in clients],
        reward_left_micro=task.spec.bounds.reward_total_micro - tx.rounds.paid_micro(task.task_id),
    )
    if plan.status is not PlanStatus.PLANNED:
        state, reason = _ENDS[plan.status]
        end_task(tx, task, state, reason, now)
        return
    _insert_round(tx, task, plan, clients, now)


def privacy_accounts(tx: Transaction, task: Task, clients: list[Client]) -> dict[str, PrivacyAccount]:
    """The coordinator's ledger of each client: the histogram, and every update that came.

    What the owner had to accept on the client's side is accepted here: an unproven release switches the limit off.
    """
    mechanism = task.spec.privacy.mechanism.build()
    sizes = {client.client_id: client.size or 1 for client in clients}
    releases = {client.client_id: [_histogram_release(client)] for client in clients}
    for round_number, client_id, rho in tx.rounds.spent_budgets(task.task_id, list(releases)):
        if client_id in releases:
            proven = mechanism.proven_rho(rho=rho, size=sizes[client_id]) if task.spec.privacy.noise else math.inf
            name = f"round/{round_number}"
            releases[client_id].append(Release(name=name, mechanism=mechanism.name, rho=rho, proven_rho=proven))
    return {
        client.client_id: PrivacyAccount(
            lifetime_rho=math.inf if client.lifetime_rho is None else client.lifetime_rho,
            accept_unproven=True,
            releases=tuple(releases[client.client_id]),
        )
        for client in clients
    }


def declare(tx: Transaction, client_id: str, round_number: int, request: BudgetRequest, now: Micros) -> BudgetReceipt:
    """Record a client's answer to an announcement. A repeat gets its first receipt, whatever became of the round."""
    client = known_client(tx, client_id)
    task = locked(tx, client.task_id)
    wanted = _budget_of(task.spec, client, request, now)
    known = tx.rounds.budget(task.task_id, round_number, client.client_id)
    if known is not None and _same_answer(known, wanted):
        return _budget_receipt(round_number, known)

    held = _open_round_of(tx, task, round_number)
    _require_invitation(tx, held, client_id)
    if known is not None:
        if not (known.state is BudgetState.DECLARED and wanted.state is BudgetState.DECLINED):
            raise Refused(ErrorCode.BUDGET_DECLARED, f"the answer is already {known.state}")
        if tx.rounds.update(task.task_id, round_number, client.client_id) is not None:
            raise Refused(ErrorCode.UPDATE_EXISTS, "the update is already stored: its budget is spent")
        wanted = replace(wanted, rho=known.rho)
    elif now > held.declare_by:
        raise Refused(ErrorCode.ROUND_CLOSED, "the time to declare a budget is over")
    if wanted.state is BudgetState.DECLARED:
        _require_affordable(tx, task, client, wanted.rho)
    tx.rounds.put_budget(held, wanted)
    _wake_when_complete(tx, held)
    failpoint("declare.before_commit")
    return _budget_receipt(round_number, wanted)


def first_receipt(
    tx: Transaction, task_id: str, client_id: str, round_number: int, digest: str, now: Micros
) -> UpdateReceipt | None:
    """Look an upload up before its body is read: the receipt of a known one, or None where it would be taken now."""
    task = tx.tasks.get(task_id)
    assert task is not None
    admitted = _admit(tx, task, client_id, round_number, digest, now)
    return admitted if isinstance(admitted, UpdateReceipt) else None


def accept_update(
    tx: Transaction,
    task_id: str,
    client_id: str,
    round_number: int,
    blob: StagedBlob,
    squared_norm: float,
    now: Micros,
) -> UpdateReceipt:
    """Record a staged upload and publish its bytes, in one transaction."""
    admitted = _admit(tx, locked(tx, task_id), client_id, round_number, blob.digest, now)
    if isinstance(admitted, UpdateReceipt):
        return admitted
    new = Update(
        client_id=client_id,
        digest=blob.digest,
        byte_length=blob.byte_length,
        squared_norm=squared_norm,
        received_at=now,
    )
    tx.publish(blob)
    tx.rounds.insert_update(admitted, new)
    _wake_when_complete(tx, admitted)
    failpoint("upload.before_commit")
    return _update_receipt(round_number, new)


def _admit(
    tx: Transaction, task: Task, client_id: str, round_number: int, digest: str, now: Micros
) -> UpdateReceipt | Round:
    """The first receipt of a known upload, or the open round that a new one belongs to."""
    known = tx.rounds.update(task.task_id, round_number, client_id)
    if known is not None:
        if known.digest != digest:
            raise Refused(ErrorCode.UPDATE_EXISTS, "another update of this client is stored for this round")
        return _update_receipt(round_number, known)
    held = _open_round_of(tx, task, round_number)
    if now > held.deliver_by:
        raise Refused(ErrorCode.ROUND_CLOSED, "the time to deliver is over")
    budget = tx.rounds.budget(task.task_id, round_number, client_id)
    if budget is None or budget.state is BudgetState.DECLINED:
        _require_invitation(tx, held, client_id)
        raise Refused(ErrorCode.BUDGET_MISSING, "no budget is declared for this round")
    if task.spec.privacy.noise and tx.rounds.digest_is_known(task.task_id, digest):
        raise Refused(ErrorCode.UPDATE_REPLAYED, "these bytes are known from another round or client")
    return held


def is_complete(tx: Transaction, held: Round, now: Micros) -> bool:
    """Whether nothing more is to be expected: everybody invited has delivered, declined, left or missed the time."""
    if now > held.deliver_by:
        return True
    return tx.rounds.awaited(held.task_id, held.round_number, silent=now <= held.declare_by) == 0


def mark_coming_back(tx: Transaction, client_id: str) -> None:
    """A client that was set aside is heard of again: it may take part from the next round on."""
    if not known_client(tx, client_id).coming_back:
        tx.clients.change(client_id, coming_back=True)


def _insert_round(tx: Transaction, task: Task, plan: RoundPlan, clients: list[Client], now: Micros) -> None:
    held = Round(
        task_id=task.task_id,
        round_number=plan.round_number,
        attempt=1,
        state=RoundState.OPEN,
        reward_micro=plan.reward_micro,
        total=plan.total,
        min_updates=plan.min_updates,
        base_version=plan.round_number - 1,
        declare_by=now + seconds(task.spec.rounds.declare_s),
        deliver_by=now + seconds(task.spec.rounds.declare_s + task.spec.rounds.deliver_s),
    )
    tx.rounds.insert(held)
    tx.rounds.invite(
        held,
        [
            Invitation(client_id=client.client_id, standing=standing, expected_rho=rho)
            for client, standing, rho in zip(clients, plan.standings, plan.budgets, strict=True)
        ],
    )
    detail = f"reward {plan.reward_micro} micro, {plan.invited} invited, bound {plan.bound}"
    tx.events.add(task.task_id, "round.opened", at=now, round_number=plan.round_number, detail=detail)
    tx.touch(task.task_id)


def _participant(client: Client, account: PrivacyAccount) -> Participant:
    assert client.privacy_value is not None and client.size is not None
    return Participant(
        privacy_value=client.privacy_value,
        size=client.size,
        rho_cap=client.rho_limit,
        remaining_rho=account.remaining_rho,
        set_aside=client.set_aside,
    )


def _histogram_release(client: Client) -> Release:
    exact = client.histogram_rho is None
    return Release(
        name="histogram",
        mechanism="exact histogram" if exact else "gaussian histogram",
        rho=client.histogram_rho or 0.0,
        proven_rho=math.inf if client.histogram_rho is None else client.histogram_rho,
    )


def _returned(tx: Transaction, client: Client) -> Client:
    if not (client.set_aside and client.coming_back):
        return client
    tx.clients.change(client.client_id, set_aside=False, coming_back=False, misses=0)
    return replace(client, set_aside=False, coming_back=False, misses=0)


def _open_round_of(tx: Transaction, task: Task, round_number: int) -> Round:
    held = tx.rounds.get(task.task_id, round_number)
    if held is None:
        raise Refused(ErrorCode.NOT_FOUND, f"round {round_number} has not been announced")
    if held.state is not RoundState.OPEN or task.ended:
        raise Refused(ErrorCode.ROUND_CLOSED, f"round {round_number} is {held.state}")
    return held


def _require_invitation(tx: Transaction, held: Round, client_id: str) -> None:
    standing = tx.rounds.standing(held.task_id, held.round_number, client_id) or Standing.SET_ASIDE
    if standing is not Standing.INVITED:
        raise Refused(ErrorCode.NOT_INVITED, f"standing in this round: {standing}")


def _require_affordable(tx: Transaction, task: Task, client: Client, rho: float) -> None:
    account = privacy_accounts(tx, task, [client])[client.client_id]
    cap = task.spec.round_rules().cap(_participant(client, account))
    if not task.spec.bounds.rho_min * (1 - _TOLERANCE) <= rho <= cap * (1 + _TOLERANCE):
        allowed = f"[{task.spec.bounds.rho_min!r}, {cap!r}]"
        raise Refused(ErrorCode.OUT_OF_BOUNDS, f"rho must lie in {allowed} in this round")


def _budget_of(spec: TaskSpec, client: Client, request: BudgetRequest, now: Micros) -> Budget:
    if isinstance(request, Decline):
        state, rho, reason = BudgetState.DECLINED, 0.0, request.reason
    elif (spec.game.policy == RewardPolicy.NONE) == isinstance(request, Declaration):
        expected = "{join: true}" if spec.game.policy == RewardPolicy.NONE else "{rho: ...}"
        raise Refused(ErrorCode.OUT_OF_BOUNDS, f"under policy {spec.game.policy} the answer is {expected}")
    elif isinstance(request, Declaration):
        state, rho, reason = BudgetState.DECLARED, request.rho, None
    else:
        state, rho, reason = BudgetState.JOINED, 0.0, None
    return Budget(client_id=client.client_id, state=state, rho=rho, reason=reason, recorded_at=now)


def _same_answer(known: Budget, wanted: Budget) -> bool:
    if known.state is not wanted.state:
        return False
    return known.state is BudgetState.DECLINED or known.rho == wanted.rho


def _wake_when_complete(tx: Transaction, held: Round) -> None:
    """Announce the change only when it makes the round ready to settle: nobody waits for less."""
    if is_complete(tx, held, held.declare_by):
        tx.touch(held.task_id)


def _budget_receipt(round_number: int, budget: Budget) -> BudgetReceipt:
    return BudgetReceipt(
        round_number=round_number,
        state=budget.state.value,
        rho=budget.rho if budget.rho > 0 else None,
        recorded_at=as_datetime(budget.recorded_at),
    )


def _update_receipt(round_number: int, update: Update) -> UpdateReceipt:
    return UpdateReceipt(
        round_number=round_number,
        client_id=update.client_id,
        digest=update.digest,
        byte_length=update.byte_length,
        received_at=as_datetime(update.received_at),
    )
