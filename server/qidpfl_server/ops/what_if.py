"""What a task of this store would cost under a change: read once, then computed without the store, in bounded time."""

from dataclasses import dataclass, replace

from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.money import MAX_MICRO
from qidpfl_shared.core.planner.answers import AnswerStatus, PlannedOutcome, Planner, PlanningCase
from qidpfl_shared.core.planner.noise_curve import NoCurve, NoiseCurve, fit_noise_curve
from qidpfl_shared.core.planning import PlanStatus
from qidpfl_shared.core.reward import RewardPolicy, Weighting
from qidpfl_shared.core.round_rules import Participant
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.operators import ExpectedAccuracy, WhatIf, WhatIfRequest
from qidpfl_shared.protocol.releases import HISTOGRAM
from qidpfl_shared.protocol.task_spec import TaskSpec

from ..errors import RequestRefused
from ..service.lifecycle import active_clients, get_task
from ..service.rounds.accounts import present_accounts
from ..service.rounds.planning import participant
from ..service.rounds.weights import label_gaps
from ..store.transaction import Transaction

# The work of one question, about two seconds: a round costs as much as so many clients, and weights that balance labels
# make it dearer.
_MOST_WORK = 150_000
_WORK_OF_A_ROUND = 50
_WORK_OF_LABELS = 3


@dataclass(frozen=True, kw_only=True)
class Situation:
    """The selected clients of a task as they were before the first round."""

    spec: TaskSpec
    participants: tuple[Participant, ...]
    ordinals: tuple[int, ...]
    histogram_rho: float


def read_situation(tx: Transaction, task_id: str) -> Situation:
    """The clients of a task, for questions. Raises `RequestRefused` if there is no such task."""
    task = get_task(tx, task_id)
    clients = active_clients(tx, task_id)
    gaps = label_gaps(task.spec, tx.clients.of_task(task_id))
    accounts = present_accounts(tx, task, clients, 1)
    participants = []
    for client in clients:
        account = accounts[client.client_id]
        before = replace(account, releases=tuple(one for one in account.releases if one.name == HISTOGRAM))
        known = participant(task.spec, client, before, gaps.get(client.client_id))
        participants.append(replace(known, set_aside=False))
    return Situation(
        spec=task.spec,
        participants=tuple(participants),
        ordinals=tuple(client.ordinal for client in clients),
        histogram_rho=max((client.histogram_rho or 0.0 for client in clients), default=0.0),
    )


def what_if(situation: Situation, request: WhatIfRequest) -> WhatIf:
    """Compute the change. Raises `RequestRefused` for a question that is too large or impossible."""
    spec, rounds = situation.spec, request.rounds or situation.spec.game.horizon
    without = set(request.without)
    kept = [place for place, ordinal in enumerate(situation.ordinals) if ordinal not in without]
    dearer = _WORK_OF_LABELS if spec.aggregation.weighting is Weighting.OPTIMAL else 1
    of_a_round = (_WORK_OF_A_ROUND + len(kept)) * dearer
    if rounds * of_a_round > _MOST_WORK:
        detail = f"{rounds} rounds of {len(kept)} clients are too many: ask for at most {_MOST_WORK // of_a_round}"
        raise RequestRefused(ErrorCode.INVALID_REQUEST, detail)
    curve, detail = _curve(request)
    if spec.game.policy in (RewardPolicy.NONE, RewardPolicy.OWN) or not spec.privacy.noise:
        return WhatIf(status="no_market", detail=f"policy {spec.game.policy} has no rewards that could be planned")
    factor = request.privacy_value_factor
    clients = [situation.participants[place] for place in kept]
    try:
        question = PlanningCase(
            rules=spec.round_rules(),
            participants=[replace(one, privacy_value=factor * one.privacy_value) for one in clients],
            rounds=rounds,
            delta=spec.privacy.delta,
            histogram_rho=situation.histogram_rho,
        )
        planner = Planner(scenario=question, curve=curve)
        base = planner.base()
        if base.status is not AnswerStatus.ANSWERED:
            return WhatIf(status="no_market", detail=base.detail)
        outcome = planner.at(request.reward_factor)
        if outcome.money_micro > MAX_MICRO:
            raise RequestRefused(
                ErrorCode.INVALID_REQUEST, "the task would pay more than any task can: lower the factor"
            )
    except ImpossibleArgument as error:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, str(error)) from error
    return _answer(outcome, detail or _reason(outcome, curve), situation.ordinals[kept[outcome.worst_client]])


def _curve(request: WhatIfRequest) -> tuple[NoiseCurve | None, str]:
    if request.calibration is None:
        return None, "no calibration was given"
    try:
        curve = fit_noise_curve(
            noises=[point.noise for point in request.calibration],
            accuracies=[point.accuracy for point in request.calibration],
        )
    except NoCurve as error:
        return None, str(error)
    return curve, ""


def _reason(outcome: PlannedOutcome, curve: NoiseCurve | None) -> str:
    """Why there is no accuracy; empty if there is one."""
    if outcome.accuracy is not None or curve is None:
        return ""
    if outcome.played.status is not PlanStatus.PLANNED:
        return f"no round after {len(outcome.played.rounds)} can be planned: {outcome.played.status}"
    return f"the calibration covers a noise of {curve.noise_min:.4g} to {curve.noise_max:.4g}"


def _answer(outcome: PlannedOutcome, detail: str, worst: int) -> WhatIf:
    rounds, predicted = outcome.played.rounds, outcome.accuracy
    return WhatIf(
        status="answered",
        detail=detail,
        rounds=len(rounds),
        money_micro=outcome.money_micro,
        first_reward_micro=rounds[0].reward_micro,
        last_reward_micro=rounds[-1].reward_micro,
        noise=outcome.noise,
        worst_rho=outcome.worst_rho,
        worst_epsilon=outcome.worst_epsilon,
        worst_ordinal=worst,
        accuracy=None
        if predicted is None
        else ExpectedAccuracy(low=predicted.low, expected=predicted.expected, high=predicted.high),
    )
