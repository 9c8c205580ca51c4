"""How a round is planned and announced, and when it is complete."""

from dataclasses import replace
from statistics import quantiles
from typing import Protocol

from qidpfl_shared.core.arguments import Vector
from qidpfl_shared.core.custom_rules import CustomRuleFailed, PastRound
from qidpfl_shared.core.money import from_micro
from qidpfl_shared.core.noise_audit import alignment_score
from qidpfl_shared.core.planning import PlanStatus, RoundPlan, Standing, plan_round
from qidpfl_shared.core.privacy.account import PrivacyAccount
from qidpfl_shared.core.reward import RewardPolicy
from qidpfl_shared.core.round_rules import Participant
from qidpfl_shared.protocol.messages import RoundState, TaskState
from qidpfl_shared.protocol.task_spec import DefenceSpec, TaskSpec

from ...clock import SECOND, Micros, seconds
from ...domain import Client, EndReason, Round, RoundInvitation, Task
from ...plugins.rules import RuleRegistry
from ...store.transaction import Transaction
from ..lifecycle import active_clients, end_task, fail_by_rule, known_client
from .accounts import paid_micro, present_accounts
from .weights import label_gaps

# Deadlines follow the answers to so many of the last rounds.
_OBSERVED_ROUNDS = 3
_ENDS = {
    PlanStatus.TOO_FEW_CLIENTS: (TaskState.FAILED, EndReason.TOO_FEW_CLIENTS),
    PlanStatus.NO_REWARD: (TaskState.FAILED, EndReason.NO_REWARD),
    PlanStatus.BUDGET_EXHAUSTED: (TaskState.FINISHED, EndReason.BUDGET_EXHAUSTED),
}


def open_round(
    tx: Transaction,
    task: Task,
    round_number: int,
    now: Micros,
    rules: RuleRegistry,
    active: list[Client] | None = None,
) -> None:
    """Plan a round and announce it, or end the task if no round can be planned.

    `active` are the clients of the task that have not left, if this transaction has already read them.
    """
    if active is None:
        active = active_clients(tx, task.task_id)
    clients = [_returned(tx, task, client, round_number) for client in active]
    accounts = present_accounts(tx, task, clients, round_number)
    gaps = _label_gaps(tx, task, clients)
    try:
        plan = plan_round(
            rules=task.spec.round_rules(),
            round_number=round_number,
            participants=[
                participant(task.spec, client, accounts[client.client_id], gaps.get(client.client_id))
                for client in clients
            ],
            reward_left_micro=task.spec.bounds.reward_total_micro - paid_micro(tx, task, round_number),
            past=_past(tx, task),
            custom_reward=rules.reward(task.spec),
        )
    except CustomRuleFailed as error:
        fail_by_rule(tx, task, task.spec.game.own_rules, error, now)
        return
    if plan.status is not PlanStatus.PLANNED:
        state, reason = _ENDS[plan.status]
        end_task(tx, task, state, reason, now)
        return
    if task.spec.defence is not None and task.spec.game.policy is not RewardPolicy.NONE:
        too_few = _too_few_bidders(plan, clients, flagged_clients(tx, task), task.spec.rounds.min_clients)
        if too_few is not None:
            end_task(tx, task, TaskState.FAILED, EndReason.TOO_FEW_BIDDERS, now, too_few)
            return
    _insert_round(tx, task, plan, clients, now)


def _too_few_bidders(plan: RoundPlan, clients: list[Client], flagged: set[str], needed: int) -> str | None:
    """Why a round must not open: cheap bidders have priced the others out, or most bidders are flagged. None: it may.

    A round with few clients because others have left or are set aside may open. A few flags do not matter: honest
    clients with unusual data are flagged too.
    """
    standings = zip(clients, plan.standings, strict=True)
    invited = {client.client_id for client, standing in standings if standing is Standing.INVITED}
    if len(invited) < needed and Standing.PRICED_OUT in plan.standings:
        return f"{len(invited)} clients price the others out, {needed} are needed"
    unflagged = len(invited - flagged)
    if 2 * unflagged < len(invited) and unflagged < needed:
        return f"{unflagged} of {len(invited)} invited clients have no alignment flag, {needed} are needed"
    return None


def alignment_scores(tx: Transaction, task: Task) -> dict[str, float]:
    """How well the updates of each client agree with the others so far; about N(0, 1) for a client that sends noise."""
    if task.spec.defence is None:
        return {}
    scores = tx.rounds.alignments(task.task_id, first_rounds=task.spec.defence.alignment_rounds)
    return {client_id: alignment_score(of_client) for client_id, of_client in scores.items()}


def flagged_clients(tx: Transaction, task: Task) -> set[str]:
    """The clients whose updates contradict those of the others: a soft flag, without a consequence for their pay."""
    if task.spec.defence is None:
        return set()
    floor = task.spec.defence.alignment_floor
    return {client_id for client_id, score in alignment_scores(tx, task).items() if score < floor}


def deadlines(tx: Transaction, task: Task, latest: int, now: Micros) -> tuple[Micros, Micros]:
    """Until when clients may declare and deliver in an attempt that starts now. `latest` is the last stored round.

    With a defence the deadlines follow the time that most clients needed in the last rounds, so that a client that only
    delays cannot stretch every round to the task's own deadlines. The announced deadlines stay binding.
    """
    rules, defence = task.spec.rounds, task.spec.defence
    declare_s = rules.declare_s if task.declare_s is None else task.declare_s
    deliver_s = rules.deliver_s if task.deliver_s is None else task.deliver_s
    if defence is not None:
        declared, delivered = _answer_times(tx, task, latest)
        whole_s = _adapted(declare_s + deliver_s, delivered, defence)
        declare_s = _adapted(declare_s, declared, defence)
        deliver_s = min(deliver_s, max(whole_s - declare_s, defence.deadline_floor * deliver_s))
    return now + seconds(declare_s), now + seconds(declare_s + deliver_s)


def _adapted(longest_s: float, times_s: list[float], defence: DefenceSpec) -> float:
    if not times_s:
        return longest_s
    usual = quantiles(times_s, n=4, method="inclusive")[2] if len(times_s) > 1 else times_s[0]
    return min(longest_s, max(defence.deadline_floor * longest_s, defence.deadline_factor * usual))


def _answer_times(tx: Transaction, task: Task, latest: int) -> tuple[list[float], list[float]]:
    """The seconds after which clients declared and delivered in the last rounds that needed one attempt."""
    if latest == 0:
        return [], []
    first = max(1, latest - _OBSERVED_ROUNDS + 1)
    opened = {
        round_.round_number: round_.opened_at
        for round_ in tx.rounds.range(task.task_id, first, latest)
        if round_.state is RoundState.SETTLED and round_.opened_at is not None and round_.attempt == 1
    }
    times = [
        (declared_at - start, delivered_at - start)
        for number, declared_at, delivered_at in tx.rounds.answer_times(task.task_id, first, latest)
        if (start := opened.get(number)) is not None
    ]
    return [declared / SECOND for declared, _ in times], [delivered / SECOND for _, delivered in times]


def _label_gaps(tx: Transaction, task: Task, active: list[Client]) -> dict[str, Vector]:
    # Clients that have left belong to a pooled reference too.
    pooled = task.spec.selection.reference == "pooled"
    return label_gaps(task.spec, tx.clients.of_task(task.task_id) if pooled else active)


def participant(spec: TaskSpec, client: Client, account: PrivacyAccount, gap: Vector | None = None) -> Participant:
    """A client as input of the plan of a round. `gap` is that of its labels, if the weights use it."""
    assert client.size is not None
    return Participant(
        privacy_value=client.counted_value(spec),
        size=client.size,
        rho_cap=client.rho_limit,
        remaining_rho=account.remaining_rho,
        set_aside=client.set_aside,
        label_gap=None if gap is None else tuple(gap.tolist()),
    )


def past_round(round_: Round) -> PastRound:
    """A settled round as input of a reward policy."""
    return PastRound(reward=from_micro(round_.reward_micro), accuracy=round_.accuracy)


class RoundAnswers(Protocol):
    """What clients have answered so far: the rows of the store, or a whole `RoundSnapshot`."""

    def awaits(self, known: Round, *, silent: bool) -> bool: ...

    def update_count(self, task_id: str, round_number: int) -> int: ...

    def has_declines(self, known: Round) -> bool: ...


def round_is_complete(answers: RoundAnswers, round_: Round, now: Micros) -> bool:
    """Whether the round waits for no client: each invited one has delivered, declined, left or missed its deadline.

    With too few updates an attempt lasts at least until its first deadline, if clients that declined it may answer the
    next one. Otherwise a few quick declines would use up all attempts at once.
    """
    if now > round_.deliver_by:
        return True
    may_declare = now <= round_.declare_by
    if answers.awaits(round_, silent=may_declare):
        return False
    if not may_declare or answers.update_count(round_.task_id, round_.round_number) >= round_.min_updates:
        return True
    return not answers.has_declines(round_)


def mark_coming_back(tx: Transaction, client_id: str) -> None:
    """Let a client that was set aside, and polls again, take part from the next round on."""
    if not known_client(tx, client_id).coming_back:
        tx.clients.set_coming_back(client_id)


def _past(tx: Transaction, task: Task) -> list[PastRound]:
    """The rounds so far, for the custom policy; the other policies do not use them."""
    if task.spec.game.policy is not RewardPolicy.OWN:
        return []
    return [past_round(round_) for round_ in tx.rounds.of_task(task.task_id)]


def _insert_round(tx: Transaction, task: Task, plan: RoundPlan, clients: list[Client], now: Micros) -> None:
    declare_by, deliver_by = deadlines(tx, task, plan.round_number - 1, now)
    round_ = Round(
        task_id=task.task_id,
        round_number=plan.round_number,
        attempt=1,
        state=RoundState.OPEN,
        reward_micro=plan.reward_micro,
        total=plan.total,
        min_updates=plan.min_updates,
        base_version=plan.round_number - 1,
        declare_by=declare_by,
        deliver_by=deliver_by,
        opened_at=now,
    )
    # A client of release 0.1.0 accepts no other bound than that of the spec, unless the task has a defence.
    known = task.spec.defence is not None or task.is_versioned or task.spec.design.fixes_payments
    bounded = known and plan.reward_micro > 0
    tx.rounds.insert(round_)
    tx.rounds.invite(
        round_,
        [
            RoundInvitation(
                client_id=client.client_id,
                standing=standing,
                expected_rho=rho,
                rho_limit=limit if bounded and standing is Standing.INVITED else None,
            )
            for client, standing, rho, limit in zip(clients, plan.standings, plan.budgets, plan.limits, strict=True)
        ],
    )
    detail = f"reward {plan.reward_micro} micro, {plan.invited} invited, bound {plan.bound}"
    fields = {"reward_micro": plan.reward_micro, "invited": plan.invited, "total": plan.total}
    tx.events.add(task.task_id, "round.opened", at=now, round_number=plan.round_number, detail=detail, fields=fields)
    tx.touch(task.task_id)


def _returned(tx: Transaction, task: Task, client: Client, round_number: int) -> Client:
    """The client as it takes part in a new round: back, if it was set aside, polls again and its exclusion is over.

    In a task with a defence one more miss sets it aside again, for longer.
    """
    if not (client.set_aside and client.coming_back) or round_number < client.excluded_until:
        return client
    misses = 0 if task.spec.defence is None else task.spec.rounds.set_aside_after - 1
    tx.clients.bring_back(client.client_id, misses)
    return replace(client, set_aside=False, coming_back=False, misses=misses)
