"""How a round is planned and announced, and when it is complete."""

import math
from dataclasses import replace

from qidpfl_shared.core.custom_rules import CustomRuleFailed, PastRound
from qidpfl_shared.core.money import from_micro
from qidpfl_shared.core.planning import PlanStatus, RoundPlan, plan_round
from qidpfl_shared.core.privacy.account import PrivacyAccount, Release
from qidpfl_shared.core.reward import RewardPolicy
from qidpfl_shared.core.round_rules import Participant
from qidpfl_shared.protocol.messages import RoundState, TaskState
from qidpfl_shared.protocol.releases import histogram_release, release_of

from ..clock import Micros, seconds
from ..domain import Client, EndReason, Round, RoundInvitation, Task
from ..plugins.rules import RuleRegistry
from ..store.transaction import Transaction
from .lifecycle import active_clients, end_task, fail_by_rule, known_client

_ENDS = {
    PlanStatus.TOO_FEW_CLIENTS: (TaskState.FAILED, EndReason.TOO_FEW_CLIENTS),
    PlanStatus.NO_REWARD: (TaskState.FAILED, EndReason.NO_REWARD),
    PlanStatus.BUDGET_EXHAUSTED: (TaskState.FINISHED, EndReason.BUDGET_EXHAUSTED),
}


def open_round(tx: Transaction, task: Task, round_number: int, now: Micros, rules: RuleRegistry) -> None:
    """Plan a round and announce it, or end the task if no round can be planned."""
    clients = [_returned(tx, client) for client in active_clients(tx, task.task_id)]
    accounts = privacy_accounts(tx, task, clients)
    try:
        plan = plan_round(
            rules=task.spec.round_rules(),
            round_number=round_number,
            participants=[participant(client, accounts[client.client_id]) for client in clients],
            reward_left_micro=task.spec.bounds.reward_total_micro - tx.rounds.paid_micro(task.task_id),
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
    _insert_round(tx, task, plan, clients, now)


def privacy_accounts(tx: Transaction, task: Task, clients: list[Client]) -> dict[str, PrivacyAccount]:
    """The server's privacy ledger of each client: the histogram if it sent one, and every stored update.

    The owner has accepted unproven releases on the client, so the server accepts them too: they disable the limit.
    """
    mechanism = task.spec.privacy.mechanism.build()
    sizes = {client.client_id: client.size or 1 for client in clients}
    releases = {
        client.client_id: [histogram_release(client.histogram_rho)] if client.has_histogram else []
        for client in clients
    }
    for round_number, client_id, rho in tx.rounds.spent_budgets(task.task_id, releases.keys()):
        proven = mechanism.proven_rho(rho=rho, size=sizes[client_id]) if task.spec.privacy.noise else math.inf
        name = release_of(round_number)
        releases[client_id].append(Release(name=name, mechanism=mechanism.name, rho=rho, proven_rho=proven))
    return {
        client.client_id: PrivacyAccount(
            lifetime_rho=math.inf if client.lifetime_rho is None else client.lifetime_rho,
            accept_unproven=True,
            releases=tuple(releases[client.client_id]),
        )
        for client in clients
    }


def participant(client: Client, account: PrivacyAccount) -> Participant:
    """A client as input of the plan of a round."""
    assert client.privacy_value is not None and client.size is not None
    return Participant(
        privacy_value=client.privacy_value,
        size=client.size,
        rho_cap=client.rho_limit,
        remaining_rho=account.remaining_rho,
        set_aside=client.set_aside,
    )


def past_round(round_: Round) -> PastRound:
    """A settled round as input of a reward policy."""
    return PastRound(reward=from_micro(round_.reward_micro), accuracy=round_.accuracy)


def round_is_complete(tx: Transaction, round_: Round, now: Micros) -> bool:
    """Whether the round waits for no client: each invited one has delivered, declined, left or missed its deadline."""
    if now > round_.deliver_by:
        return True
    return not tx.rounds.awaits(round_.task_id, round_.round_number, silent=now <= round_.declare_by)


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
    round_ = Round(
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
        opened_at=now,
    )
    tx.rounds.insert(round_)
    tx.rounds.invite(
        round_,
        [
            RoundInvitation(client_id=client.client_id, standing=standing, expected_rho=rho)
            for client, standing, rho in zip(clients, plan.standings, plan.budgets, strict=True)
        ],
    )
    detail = f"reward {plan.reward_micro} micro, {plan.invited} invited, bound {plan.bound}"
    tx.events.add(task.task_id, "round.opened", at=now, round_number=plan.round_number, detail=detail)
    tx.touch(task.task_id)


def _returned(tx: Transaction, client: Client) -> Client:
    if not (client.set_aside and client.coming_back):
        return client
    tx.clients.bring_back(client.client_id)
    return replace(client, set_aside=False, coming_back=False, misses=0)
