"""The life of a task: rounds without a gap, their attempts, deadlines and answers."""

import math

from qidpfl_shared.core.planning import Standing
from qidpfl_shared.protocol.messages import RoundState, TaskState
from qidpfl_shared.protocol.task_spec import DefenceSpec

from ...clock import seconds
from ...domain import BudgetState, Round, Task
from ...service.rounds.acceptance import is_accepted, quorum
from ..records import RoundRecord
from ..report import Report

# Relative rounding error of a sum.
_TOLERANCE = 1e-9


def audit_timeline(task: Task, rounds: list[Round], report: Report) -> None:
    """Rounds from 1 to at most the horizon, without a gap; all but the last settled; none open in an ended task."""
    place = f"task {task.name}"
    numbers = [round_.round_number for round_ in rounds]
    report.require(numbers == list(range(1, len(rounds) + 1)), f"{place}: the rounds are numbered {numbers}")
    report.require(len(rounds) <= task.spec.game.horizon, f"{place}: {len(rounds)} rounds are more than its horizon")
    unsettled = [round_.round_number for round_ in rounds[:-1] if round_.state is not RoundState.SETTLED]
    report.require(not unsettled, f"{place}: later rounds follow on rounds {unsettled}, which are not settled")
    open_rounds = [round_.round_number for round_ in rounds if round_.state is RoundState.OPEN]
    report.require(len(open_rounds) <= 1, f"{place}: several open rounds {open_rounds}")
    report.require(not (task.ended and open_rounds), f"{place} has ended, but round {open_rounds} is open")
    report.require(task.state is not TaskState.ENROLLING or not rounds, f"{place} is enrolling, but has rounds")
    between = task.paused and bool(rounds) and rounds[-1].state is RoundState.SETTLED
    report.require(task.state is not TaskState.TRAINING or bool(open_rounds) or between, f"{place} has no open round")
    has_end = (task.reason is not None, task.ended_at is not None)
    report.require(has_end == (task.ended, task.ended), f"{place}: reason or end do not fit the state {task.state}")


def audit_round(record: RoundRecord, report: Report) -> None:
    """The base model of a round, its attempts and deadlines, and the values that only a settled round has."""
    round_, rules, place = record.round_, record.task.spec.rounds, record.place
    report.require(round_.base_version == round_.round_number - 1, f"{place}: starts from model {round_.base_version}")
    report.require(
        1 <= round_.attempt <= rules.max_attempts, f"{place}: attempt {round_.attempt} of {rules.max_attempts}"
    )
    pairs = [(rules.declare_s, rules.deliver_s), *record.deadlines]
    fits = any(_fits(round_, declare_s, deliver_s, record.task.spec.defence) for declare_s, deliver_s in pairs)
    report.require(fits, f"{place}: its deadlines do not fit the task")
    written = (round_.settled_at is not None, round_.declared_total is not None)
    report.require(
        written == (record.settled, record.settled), f"{place}: settled_at or declared_total do not fit its state"
    )
    if not record.settled:
        return
    declared = math.fsum(budget.rho for budget in record.budgets.values())
    report.require(
        round_.declared_total is not None and math.isclose(declared, round_.declared_total, rel_tol=_TOLERANCE),
        f"{place}: the budgets add up to {declared}, not to the declared total {round_.declared_total}",
    )
    accepted = record.accepted
    needed = quorum(record.task.spec, round_, record.invitations, record.updates, accepted)
    report.require(len(accepted) >= needed, f"{place}: settled with {len(accepted)} updates of {needed}")


def _fits(round_: Round, declare_s: float, deliver_s: float, defence: DefenceSpec | None) -> bool:
    time_left = seconds(declare_s + deliver_s) - seconds(declare_s)
    given = round_.deliver_by - round_.declare_by
    # Deadlines that follow the clients lie between two bounds; rounding to microseconds may move them by one.
    shortest = time_left if defence is None else int(time_left * defence.deadline_floor) - 1
    return shortest <= given <= time_left


def audit_answers(record: RoundRecord, report: Report) -> None:
    """Only invited clients answer, only clients with a budget deliver, and each update has a verdict at settlement."""
    for client_id in record.budgets:
        invitation = record.invitations.get(client_id)
        invited = invitation is not None and invitation.standing is Standing.INVITED
        report.require(invited, f"{record.place}, client {client_id}: an answer without an invitation")
    for client_id, update in record.updates.items():
        place = f"{record.place}, client {client_id}"
        budget = record.budgets.get(client_id)
        has_place = budget is not None and budget.state is not BudgetState.DECLINED
        report.require(has_place, f"{place}: an update without a declared budget")
        report.require(update.received_at <= record.round_.deliver_by, f"{place}: the update came after the deadline")
        counts = update.voided_at is None and is_accepted(record.task.spec, update.verdict)
        expected = counts if record.settled else None
        report.require(update.accepted == expected, f"{place}: accepted is {update.accepted}, not {expected}")
