"""Plans: each round is planned again from the state at its opening, and compared: reward, total, standings, budgets."""

import math
from dataclasses import replace

from qidpfl_shared.core.arguments import Vector
from qidpfl_shared.core.custom_rules import CustomReward, CustomRuleFailed, PastRound
from qidpfl_shared.core.money import from_micro
from qidpfl_shared.core.planning import PlanStatus, RoundPlan, Standing, plan_round
from qidpfl_shared.core.privacy.account import PrivacyAccount
from qidpfl_shared.core.reward import RewardPolicy
from qidpfl_shared.core.round_rules import Participant, RoundRules
from qidpfl_shared.protocol.releases import HISTOGRAM, release_of

from ...domain import BudgetState, Task
from ...service.rounds.planning import participant, past_round
from ...service.rounds.weights import label_gaps
from ..records import RoundRecord
from ..report import Report

# Other machines and library versions round differently.
_TOLERANCE = 1e-9


class PlanAuditor:
    """Plans the rounds of a task one after the other, each with what was left of budgets and money before it.

    `accounts` are the whole ledgers: the histogram, if the client sent one, and the updates.
    """

    def __init__(self, task: Task, accounts: dict[str, PrivacyAccount], custom_reward: CustomReward | None) -> None:
        self._task = task
        self._rules = task.spec.round_rules()
        self._final = accounts
        self._accounts = {known: _before_the_rounds(account) for known, account in accounts.items()}
        self._releases = {
            (known, release.name): release for known, account in accounts.items() for release in account.releases
        }
        self._paid = 0
        self._past: list[PastRound] = []
        self._custom_reward = custom_reward

    def audit(self, record: RoundRecord, report: Report) -> None:
        """Compare a round with its plan. Call it for the rounds in their order."""
        try:
            invited_ids = record.in_order(iter(record.invitations))
            gaps = label_gaps(self._task.spec, record.clients.values())
            participants = {known: self._participant(record, known, gaps.get(known)) for known in invited_ids}
            plan = self._plan(record, list(participants.values()), report)
            _compare(record, invited_ids, plan, self._rules, report)
            self._audit_budgets(record, participants, report)
        finally:
            self._advance(record)

    def audit_lifetimes(self, report: Report) -> None:
        """No client has spent more than its lifetime budget."""
        for client_id, account in self._final.items():
            within = not account.limited or account.spent_rho <= account.lifetime_rho * (1 + _TOLERANCE)
            place = f"task {self._task.name}, client {client_id}"
            report.require(within, f"{place}: {account.spent_rho} spent of {account.lifetime_rho}")

    def _plan(self, record: RoundRecord, participants: list[Participant], report: Report) -> RoundPlan:
        """The plan of a round. If a custom rule is not loaded or fails, the recorded reward counts as its wish."""

        def plan(own: CustomReward) -> RoundPlan:
            return plan_round(
                rules=self._rules,
                round_number=record.round_.round_number,
                participants=participants,
                reward_left_micro=max(0, self._task.spec.bounds.reward_total_micro - self._paid),
                past=self._past,
                custom_reward=own,
            )

        recorded = from_micro(record.round_.reward_micro)
        if self._rules.schedule is not None:
            # The schedule multiplies what the policy returns.
            recorded /= self._rules.schedule.multiple(record.round_.round_number)
        if self._custom_reward is not None:
            try:
                return plan(self._custom_reward)
            except CustomRuleFailed as error:
                report.require(False, f"{record.place}: {error}")
        return plan(lambda _: recorded)

    def _participant(self, record: RoundRecord, client_id: str, gap: Vector | None) -> Participant:
        known = participant(self._task.spec, record.clients[client_id], self._accounts[client_id], gap)
        # A client that was set aside then may have returned since.
        return replace(known, set_aside=record.invitations[client_id].standing is Standing.SET_ASIDE)

    def _audit_budgets(self, record: RoundRecord, participants: dict[str, Participant], report: Report) -> None:
        """Every declared budget was within the limits of its client; under policy none there are no budgets."""
        unpaid = self._rules.policy == RewardPolicy.NONE
        for client_id, budget in record.budgets.items():
            place = f"{record.place}, client {client_id}"
            fits = budget.state is not (BudgetState.DECLARED if unpaid else BudgetState.JOINED)
            report.require(fits, f"{place}: {budget.state} under policy {self._rules.policy}")
            if budget.state is not BudgetState.DECLARED and budget.rho == 0:
                continue
            smallest = self._rules.rho_min
            largest = self._rules.cap(participants[client_id]) if client_id in participants else 0.0
            limit = record.invitations[client_id].rho_limit if client_id in record.invitations else None
            largest = largest if limit is None else min(largest, limit)
            within = smallest * (1 - _TOLERANCE) <= budget.rho <= largest * (1 + _TOLERANCE)
            report.require(within, f"{place}: budget {budget.rho} outside [{smallest}, {largest}]")

    def _advance(self, record: RoundRecord) -> None:
        """Subtract what this round spent of budgets and money."""
        self._paid += sum(payment.amount_micro + payment.escrow_micro for payment in record.payments.values())
        self._past.append(past_round(record.round_))
        for client_id in record.updates.keys() & self._accounts.keys():
            release = self._releases.get((client_id, release_of(record.round_.round_number)))
            if release is not None:
                account = self._accounts[client_id]
                self._accounts[client_id] = replace(account, releases=(*account.releases, release))


def _before_the_rounds(account: PrivacyAccount) -> PrivacyAccount:
    return replace(account, releases=tuple(known for known in account.releases if known.name == HISTOGRAM))


def _compare(record: RoundRecord, invited_ids: list[str], plan: RoundPlan, rules: RoundRules, report: Report) -> None:
    round_, place = record.round_, record.place
    report.require(plan.status is PlanStatus.PLANNED, f"{place}: no round could be planned: {plan.status}")
    reward = math.isclose(round_.reward_micro, plan.reward_micro, rel_tol=_TOLERANCE, abs_tol=1)
    report.require(reward, f"{place}: the reward is {round_.reward_micro}, but the plan says {plan.reward_micro}")
    total = math.isclose(round_.total, plan.total, rel_tol=_TOLERANCE)
    report.require(total, f"{place}: the total is {round_.total}, but the plan says {plan.total}")
    report.require(
        round_.min_updates == plan.min_updates,
        f"{place}: min_updates is {round_.min_updates}, but the plan says {plan.min_updates}",
    )
    for client_id, standing, rho, limit in zip(invited_ids, plan.standings, plan.budgets, plan.limits, strict=True):
        invitation = record.invitations[client_id]
        same = invitation.standing is standing and math.isclose(invitation.expected_rho, rho, rel_tol=_TOLERANCE)
        if invitation.rho_limit is not None:
            same = same and math.isclose(invitation.rho_limit, limit, rel_tol=_TOLERANCE)
        elif rules.design.fixes_payments and standing is Standing.INVITED:
            # Without its limit a larger budget, and its payment, would pass.
            same = False
        report.require(same, f"{place}, client {client_id}: the invitation is not that of the plan")
