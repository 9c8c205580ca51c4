"""What operators see of a task as a whole: rounds in lists, the open round, outcomes, forecast.

Nothing here shows the budget of an open round.
"""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from qidpfl_shared.core.forecast import fit_accuracy_curve, fit_loss_curve
from qidpfl_shared.core.money import from_micro
from qidpfl_shared.core.noise_audit import NoiseVerdict
from qidpfl_shared.core.planning import Standing
from qidpfl_shared.core.utility import training_cost
from qidpfl_shared.protocol.messages import RoundState
from qidpfl_shared.protocol.operators import (
    AnswerState,
    ClientAnswer,
    ClientRound,
    Forecast,
    LossForecast,
    OpenRound,
    PresetInfo,
    RoundOutcomes,
    RoundProgress,
    RoundSummary,
)
from qidpfl_shared.protocol.presets import PRESETS

from ..clock import Micros, as_datetime, seconds_left
from ..domain import Budget, BudgetState, Client, ClientState, Round, RoundInvitation, RoundSums
from ..store.settled import NO_SUMS
from ..store.transaction import Transaction
from .lifecycle import get_task
from .progress.accounts import client_of_task

# Fewer points determine no curve.
_MIN_ROUNDS = 3


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
    unknown = [round_.round_number for round_ in found if round_.sums is None]
    sums = tx.figures.sums(task_id, unknown[0], unknown[-1], settled=settled) if unknown else {}
    return [_round_summary(round_, round_.sums or sums.get(round_.round_number, NO_SUMS)) for round_ in found]


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
    # By column instead of by row: there may be a million numbers.
    for number, rows in groupby(tx.figures.answers(task_id, after + 1, after + limit), key=itemgetter(0)):
        _, states, *answers, rho, paid, escrow, ordinals = zip(*rows, strict=True)
        found.append(
            # Not validated again: the rows were validated when they were written.
            RoundOutcomes.model_construct(
                round_number=number,
                state=RoundState(states[0]),
                ordinals=ordinals,
                outcomes="".join(map(_outcome, states, *answers)),
                rho=tuple(one or 0.0 for one in rho),
                payment_micro=tuple((one or 0) + (held or 0) for one, held in zip(paid, escrow, strict=True)),
            )
        )
    return found


def _outcome(
    round_state: str,
    standing: str,
    answer: str | None,
    accepted: bool | None,
    voided_at: Micros | None,
    received_at: Micros | None,
) -> str:
    """The letter of what a client did in a closed round; `operators.OUTCOMES` explains the letters."""
    if received_at is not None:
        if voided_at is not None:
            return "v"
        if round_state != RoundState.SETTLED:
            return "u"
        return "d" if accepted else "r"
    if answer is not None:
        return "n" if answer == BudgetState.DECLINED else "b"
    return "m" if standing == Standing.INVITED else "o"


def client_rounds(tx: Transaction, task_id: str, client_id: str) -> list[ClientRound]:
    """The closed rounds of one client. Raises `RequestRefused` if it is not in the task."""
    task, client = get_task(tx, task_id), client_of_task(tx, task_id, client_id)
    value, weight = client.counted_value(task.spec), task.spec.game.privacy_weight
    return [
        ClientRound(
            round_number=row.round_number,
            state=RoundState(row.round_state),
            standing=Standing(row.standing),
            outcome=_outcome(row.round_state, row.standing, row.answer, row.accepted, row.voided_at, row.received_at),
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


def forecast(tx: Transaction, task_id: str) -> Forecast:
    """The curves of accuracy and loss of the settled rounds, if their budgets differ enough to determine one."""
    get_task(tx, task_id)
    rounds = [round_ for round_ in tx.rounds.of_task(task_id) if round_.declared_total]
    loss = _loss_forecast([(one.declared_total or 0.0, one.loss) for one in rounds if one.loss is not None])
    measured = [(one.declared_total or 0.0, one.accuracy) for one in rounds if one.accuracy is not None]
    if len(measured) < _MIN_ROUNDS:
        return Forecast(status="not_identifiable", loss=loss)
    fit = fit_accuracy_curve(totals=[total for total, _ in measured], accuracies=[value for _, value in measured])
    if fit.curve is None:
        return Forecast(status="not_identifiable", loss=loss)
    return Forecast(
        status="fitted",
        ceiling=fit.curve.ceiling,
        drop=fit.curve.drop,
        rate=fit.curve.rate,
        total_min=fit.curve.total_min,
        total_max=fit.curve.total_max,
        rmse=fit.rmse,
        loss=loss,
    )


def _loss_forecast(measured: Sequence[tuple[float, float]]) -> LossForecast | None:
    if len(measured) < _MIN_ROUNDS:
        return None
    fit = fit_loss_curve(totals=[total for total, _ in measured], losses=[value for _, value in measured])
    if fit.curve is None:
        return None
    return LossForecast(
        floor=fit.curve.floor,
        rise=fit.curve.rise,
        rate=fit.curve.rate,
        total_min=fit.curve.total_min,
        total_max=fit.curve.total_max,
        rmse=fit.rmse,
    )
